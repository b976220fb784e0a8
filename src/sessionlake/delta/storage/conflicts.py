"""What Spark raises when another commit has changed what a write has read: the write can be done again, or left."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

T = TypeVar("T")
_ATTEMPTS = 5


def retry_on_conflict(write: Callable[[], T]) -> T:
    """Does an idempotent write until no other commit is in its way."""
    for _ in range(_ATTEMPTS - 1):
        with suppress(*conflict_errors()):
            return write()
    return write()


def conflict_errors() -> tuple[type[Exception], ...]:
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
