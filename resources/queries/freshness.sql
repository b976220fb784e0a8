-- How long ago each layer committed last, if it has in the last 30 days, and what it has done in the last hour.
SELECT
  layer,
  max(committed_at) AS last_commit,
  unix_timestamp(current_timestamp()) - unix_timestamp(max(committed_at)) AS age_seconds,
  count_if(committed_at > current_timestamp() - INTERVAL 1 HOUR) AS batches,
  coalesce(sum(messages) FILTER (WHERE committed_at > current_timestamp() - INTERVAL 1 HOUR), 0) AS messages
FROM IDENTIFIER(:prefix || 'ops.ledger')
WHERE committed_at > current_timestamp() - INTERVAL 30 DAYS
GROUP BY layer
ORDER BY layer
