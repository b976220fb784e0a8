"""A session's stream of messages, judged. Pure."""
