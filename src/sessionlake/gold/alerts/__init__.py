"""Rules on tables: loads them, reads what they need from the lake, and logs their alerts."""
