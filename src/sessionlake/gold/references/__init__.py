"""Reference tables in the lake: taken by gold, joined with changes, written from files and by lookups."""
