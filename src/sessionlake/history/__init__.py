"""Read only: the past, the state and the report of a lake."""
