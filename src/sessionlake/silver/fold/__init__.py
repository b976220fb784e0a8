"""The fold of one shard of silver. Pure."""
