"""Messages decoded. Pure."""
