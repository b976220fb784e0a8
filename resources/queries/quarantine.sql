-- Messages that could not be used, and why, by topic, of the last seven days in Kafka's time.
SELECT topic, reason, count(*) AS messages, max(kafka_timestamp) AS latest
FROM IDENTIFIER(:prefix || 'silver.quarantine')
WHERE kafka_timestamp > current_timestamp() - INTERVAL 7 DAYS
GROUP BY topic, reason
ORDER BY messages DESC
