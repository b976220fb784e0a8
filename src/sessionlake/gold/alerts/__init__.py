"""Rules in gold: loads them from `gold.rules`, reads their data from the lake, and logs their alerts."""
