"""What gold stores about its tables."""
