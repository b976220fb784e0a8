"""Bronze: every message of Kafka, or of archives, exactly once."""
