-- Texts that columns were set to, how often, and when last.
SELECT topic, column, value, changes, timestamp_millis(last_ts) AS latest
FROM IDENTIFIER(:prefix || 'gold.distinct_values')
ORDER BY changes DESC, topic, column, value
LIMIT 1000
