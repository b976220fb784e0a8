"""The fold of one shard of silver: decodes, judges and turns messages into changes. Pure."""
