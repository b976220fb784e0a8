"""Access to Kafka and the schema registry: client options, security, admin questions and transactions."""
