-- Messages read by each layer per minute in the last day, without rebuilds and recoveries.
SELECT layer, date_trunc('MINUTE', committed_at) AS minute, sum(messages) AS messages
FROM IDENTIFIER(:prefix || 'ops.ledger')
WHERE committed_at > current_timestamp() - INTERVAL 1 DAY
  AND NOT startswith(app_id, 'rebuild:') AND source <> 'recovered'
GROUP BY layer, date_trunc('MINUTE', committed_at)
ORDER BY minute, layer
