"""Reference tables in the lake: applied by gold, joined with changes, and written from files and by lookups."""
