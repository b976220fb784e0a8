-- Percentage of the messages read by silver in the last hour that are in quarantine.
SELECT
  coalesce(sum(quarantined), 0) AS quarantined,
  coalesce(sum(messages), 0) AS messages,
  coalesce(100.0D * sum(quarantined) / nullif(sum(messages), 0), 0.0D) AS percent
FROM IDENTIFIER(:prefix || 'ops.ledger')
WHERE layer = 'silver' AND committed_at > current_timestamp() - INTERVAL 1 HOUR AND NOT startswith(app_id, 'rebuild:')
