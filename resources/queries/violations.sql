-- Gaps, and all else that broke the class of a session's stream, of what came into silver in the last hour.
SELECT count(*) AS violations
FROM IDENTIFIER(:prefix || 'silver.integrity_events')
WHERE action IN ('isolated', 'recorded') AND _batch IN (
  SELECT batch_id
  FROM IDENTIFIER(:prefix || 'ops.ledger')
  WHERE layer = 'silver' AND committed_at > current_timestamp() - INTERVAL 1 HOUR AND NOT startswith(app_id, 'rebuild:')
)
