-- Violations of sessions' integrity classes, such as gaps, in messages that silver read in the last hour.
SELECT count(*) AS violations
FROM IDENTIFIER(:prefix || 'silver.integrity_events')
WHERE action IN ('isolated', 'recorded') AND _batch IN (
  SELECT batch_id
  FROM IDENTIFIER(:prefix || 'ops.ledger')
  WHERE layer = 'silver' AND committed_at > current_timestamp() - INTERVAL 1 HOUR AND NOT startswith(app_id, 'rebuild:')
)
