"""What Spark raises when another commit has changed what a write has read: the write can be done again, or left."""

from __future__ import annotations


def conflicts() -> tuple[type[Exception], ...]:
    """The classes of Delta's exceptions that say so; they have no common one."""
    from delta import exceptions as delta

    return (
        delta.ConcurrentAppendException,
        delta.ConcurrentDeleteDeleteException,
        delta.ConcurrentDeleteReadException,
        delta.ConcurrentTransactionException,
        delta.ConcurrentWriteException,
        delta.DeltaConcurrentModificationException,
        delta.MetadataChangedException,
        delta.ProtocolChangedException,
    )
