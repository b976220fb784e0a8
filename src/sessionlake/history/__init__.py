"""Read-only views of a lake: past tables, traces of messages, explanations of figures, status and the report."""
