-- Messages that each layer took in, by the minute, of the last day.
SELECT layer, date_trunc('MINUTE', committed_at) AS minute, sum(messages) AS messages
FROM IDENTIFIER(:prefix || 'ops.ledger')
WHERE committed_at > current_timestamp() - INTERVAL 1 DAY
GROUP BY layer, date_trunc('MINUTE', committed_at)
ORDER BY minute, layer
