"""`ops.ledger` and what is kept beside it: which batches took in what."""
