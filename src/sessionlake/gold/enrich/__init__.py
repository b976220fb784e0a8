"""Pure: what reference tables said of a key at a time, and what a change of theirs touches."""
