-- Numeric columns of each topic by hour of event time, over all rows.
SELECT
  window_start,
  topic,
  metric,
  sum(points) AS points,
  min(min) AS min,
  max(max) AS max,
  sum(average * points) / sum(points) AS average
FROM IDENTIFIER(:prefix || 'gold.metrics_1h')
GROUP BY window_start, topic, metric
ORDER BY window_start, topic, metric
