"""The tables of gold that the configuration declares, with their schemas and column comments."""
