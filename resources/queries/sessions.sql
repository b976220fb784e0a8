-- Sessions by topic and status.
SELECT topic, status, count(*) AS sessions, sum(messages) AS messages, sum(gaps) AS gaps
FROM IDENTIFIER(:prefix || 'silver.sessions')
GROUP BY topic, status
ORDER BY topic, status
