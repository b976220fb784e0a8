"""Rows that are older than `maintain.retention` removed, except those that somebody still needs."""
