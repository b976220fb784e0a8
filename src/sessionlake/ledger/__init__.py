"""The ledger `ops.ledger`, which records what each batch read and wrote, and small tables of related facts.

These are sums of the ledger, histories of topics, offsets without messages, removed rows, and receipts of forgotten
sessions.
"""
