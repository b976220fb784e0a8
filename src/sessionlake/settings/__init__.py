"""The configuration: one validated tree, read from a YAML file and the environment."""
