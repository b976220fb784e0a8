-- Integrity events by topic, of the last seven days by Kafka timestamp.
SELECT topic, event, action, count(*) AS events, max(kafka_timestamp) AS latest
FROM IDENTIFIER(:prefix || 'silver.integrity_events')
WHERE kafka_timestamp > current_timestamp() - INTERVAL 7 DAYS
   OR kafka_timestamp < timestamp_seconds(0) -- Kafka's -1: the producer gave no time
GROUP BY topic, event, action
ORDER BY events DESC
