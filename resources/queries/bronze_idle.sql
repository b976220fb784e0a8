-- Seconds since bronze last committed a batch; 0 if it committed none in the last 30 days.
SELECT coalesce(unix_timestamp(current_timestamp()) - unix_timestamp(max(committed_at)), 0) AS idle_seconds
FROM IDENTIFIER(:prefix || 'ops.ledger')
WHERE layer = 'bronze' AND committed_at > current_timestamp() - INTERVAL 30 DAYS
