-- Quarantined messages by topic and reason, of the last seven days by Kafka timestamp, or without a timestamp.
SELECT topic, reason, count(*) AS messages, max(kafka_timestamp) AS latest
FROM IDENTIFIER(:prefix || 'silver.quarantine')
WHERE kafka_timestamp > current_timestamp() - INTERVAL 7 DAYS
   OR kafka_timestamp < timestamp_seconds(0) -- Kafka's -1: the producer gave no time
GROUP BY topic, reason
ORDER BY messages DESC
