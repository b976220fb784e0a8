"""Kafka's clients, admin and security."""
