-- Messages that came into each layer, by the minute, of the last day: without rebuilds, and what was recovered.
SELECT layer, date_trunc('MINUTE', committed_at) AS minute, sum(messages) AS messages
FROM IDENTIFIER(:prefix || 'ops.ledger')
WHERE committed_at > current_timestamp() - INTERVAL 1 DAY
  AND NOT startswith(app_id, 'rebuild:') AND source <> 'recovered'
GROUP BY layer, date_trunc('MINUTE', committed_at)
ORDER BY minute, layer
