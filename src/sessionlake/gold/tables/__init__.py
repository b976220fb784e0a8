"""What gold notes of its tables."""
