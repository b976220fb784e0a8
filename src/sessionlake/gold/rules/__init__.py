"""Rules over gold's figures: read from their text, and evaluated on arrays. Pure."""
