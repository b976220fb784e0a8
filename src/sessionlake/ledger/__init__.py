"""The ledger `ops.ledger`, which records what each batch read and wrote, and the small tables that complete it."""
