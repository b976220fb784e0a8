-- Time since the last commit of each layer within the last 30 days, and its batches and messages in the last hour.
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
