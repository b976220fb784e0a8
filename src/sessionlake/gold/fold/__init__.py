"""The fold of one shard of gold. Pure."""
