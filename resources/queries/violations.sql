-- Gaps, and all else that broke the class of a session's stream, of the last hour that was ingested.
SELECT coalesce(sum(events.violations), 0) AS violations
FROM (
  SELECT _batch, count(*) AS violations
  FROM IDENTIFIER(:prefix || 'silver.integrity_events')
  WHERE action IN ('stopped', 'isolated', 'recorded')
  GROUP BY _batch
) AS events
JOIN IDENTIFIER(:prefix || 'ops.ledger') AS ledger
  ON ledger.layer = 'silver' AND ledger.batch_id = events._batch
WHERE ledger.committed_at > current_timestamp() - INTERVAL 1 HOUR
