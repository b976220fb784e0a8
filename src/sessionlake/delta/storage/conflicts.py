"""Handles commit conflicts: exceptions that Delta raises if another commit has changed what a write has read."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

T = TypeVar("T")
_ATTEMPTS = 5


def retry_on_conflict(write: Callable[[], T]) -> T:
    """Calls `write`, and calls it again if another commit conflicts, five times in all. Returns its result.

    Args:
        write: writes to a table. It may be called several times, so it must have the same effect as one call.
    """
    for _ in range(_ATTEMPTS - 1):
        with suppress(*list_conflict_errors()):
            return write()
    return write()


def list_conflict_errors() -> tuple[type[Exception], ...]:
    """Returns the exception classes for commit conflicts. Delta has no common base class for them."""
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
