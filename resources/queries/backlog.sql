-- What waits before each layer, how much and for how long: messages before silver, silver's batches before the others.
-- A layer is stopped if something has waited for a quarter of an hour in which it has committed nothing.
WITH bronze AS (
  SELECT committed_at, part.topic, part.partition, part.last
  FROM IDENTIFIER(:prefix || 'ops.ledger') LATERAL VIEW explode(offsets) AS part
  WHERE layer = 'bronze'
),
silver AS (
  SELECT part.topic, part.partition, max(part.last) AS last
  FROM IDENTIFIER(:prefix || 'ops.ledger') LATERAL VIEW explode(offsets) AS part
  WHERE layer = 'silver'
  GROUP BY part.topic, part.partition
),
taken AS (
  SELECT followers.layer, coalesce(max(source_to), -1) AS batch
  FROM (VALUES ('silver_tables'), ('gold')) AS followers(layer)
  LEFT JOIN IDENTIFIER(:prefix || 'ops.ledger') AS ledger ON ledger.layer = followers.layer
  GROUP BY followers.layer
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
  SELECT taken.layer, count(ledger.batch_id), min(ledger.committed_at)
  FROM taken
  LEFT JOIN IDENTIFIER(:prefix || 'ops.ledger') AS ledger
    ON ledger.layer = 'silver' AND ledger.batch_id > taken.batch
  GROUP BY taken.layer
)
SELECT
  waiting.layer,
  waiting.waiting,
  coalesce(unix_timestamp(current_timestamp()) - unix_timestamp(waiting.since), 0) AS waiting_seconds,
  CASE
    WHEN waiting.since < current_timestamp() - INTERVAL 15 MINUTES
      AND coalesce(max(ledger.committed_at), waiting.since) < current_timestamp() - INTERVAL 15 MINUTES
    THEN 1
    ELSE 0
  END AS stopped
FROM waiting
LEFT JOIN IDENTIFIER(:prefix || 'ops.ledger') AS ledger ON ledger.layer = waiting.layer
GROUP BY waiting.layer, waiting.waiting, waiting.since
ORDER BY waiting.layer
