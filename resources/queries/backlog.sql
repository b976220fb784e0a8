-- How much input waits for each layer, and for how long. Silver's input is counted in messages, others' in silver's batches.
-- A layer counts as stopped if input has waited for 15 minutes and the layer has committed nothing in that time.
WITH entries AS (
  SELECT layer, batch_id, source_to, offsets, committed_at, startswith(app_id, 'rebuild:') AS rebuilds,
    exists(outputs, wrote -> wrote.`table` = 'silver.session_changes' AND wrote.`rows` > 0) AS changes
  FROM IDENTIFIER(:prefix || 'ops.ledger')
  WHERE committed_at > current_timestamp() - INTERVAL 30 DAYS
),
begun AS (
  SELECT followers.layer, coalesce(max(emptied.committed_at), timestamp_seconds(0)) AS at
  FROM (VALUES ('silver_tables'), ('gold')) AS followers(layer)
  LEFT JOIN entries AS emptied ON emptied.layer = followers.layer AND emptied.layer = 'gold' AND emptied.rebuilds
  GROUP BY followers.layer
),
bronze AS (
  SELECT committed_at, part.topic, part.partition, part.last
  FROM entries LATERAL VIEW explode(offsets) AS part
  WHERE layer = 'bronze'
),
silver AS (
  SELECT part.topic, part.partition, max(part.last) AS last
  FROM entries LATERAL VIEW explode(offsets) AS part
  WHERE layer = 'silver'
  GROUP BY part.topic, part.partition
),
taken AS (
  SELECT begun.layer, begun.at, coalesce(max(source_to), -1) AS batch,
    begun.at > timestamp_seconds(0) AND max(source_to) IS NULL AS emptied
  FROM begun
  LEFT JOIN entries ON entries.layer = begun.layer AND entries.committed_at > begun.at
  GROUP BY begun.layer, begun.at
),
ahead AS (
  SELECT bronze.topic, bronze.partition, max(bronze.last) - max(coalesce(silver.last, -1)) AS messages,
    min(committed_at) AS since
  FROM bronze
  LEFT JOIN silver ON silver.topic = bronze.topic AND silver.partition = bronze.partition
  WHERE bronze.last > coalesce(silver.last, -1)
  GROUP BY bronze.topic, bronze.partition
),
waiting AS (
  SELECT 'silver' AS layer, coalesce(sum(messages), 0) AS waiting, min(since) AS since
  FROM ahead
  UNION ALL
  -- Gold only reads batches with changes. It skips batches that silver rebuilt, unless gold was emptied.
  SELECT taken.layer, count(entries.batch_id), greatest(min(entries.committed_at), max(taken.at))
  FROM taken
  LEFT JOIN entries ON entries.layer = 'silver' AND entries.batch_id > taken.batch
    AND (taken.layer <> 'gold' OR (entries.changes AND (taken.emptied OR NOT entries.rebuilds)))
  GROUP BY taken.layer
)
SELECT
  waiting.layer,
  waiting.waiting,
  CASE
    WHEN waiting.waiting > 0 THEN unix_timestamp(current_timestamp()) - unix_timestamp(waiting.since)
    ELSE 0
  END AS waiting_seconds,
  CASE
    WHEN waiting.waiting > 0 AND waiting.since < current_timestamp() - INTERVAL 15 MINUTES
      AND coalesce(max(entries.committed_at), waiting.since) < current_timestamp() - INTERVAL 15 MINUTES
    THEN 1
    ELSE 0
  END AS stopped
FROM waiting
LEFT JOIN entries ON entries.layer = waiting.layer
GROUP BY waiting.layer, waiting.waiting, waiting.since
ORDER BY waiting.layer
