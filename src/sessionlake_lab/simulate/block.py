"""A run of consecutive messages as columns: what the drawing, the text and the faults share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

UPDATE, HEARTBEAT, DELETE, SNAPSHOT, FIRST, END = range(6)
"""What a slot says: DELETE is an update that deletes, FIRST a session's opening snapshot."""


@dataclass(frozen=True)
class Block:
    """Consecutive slots of the stream; all arrays have one element a slot.

    Attributes:
        session: who speaks.
        kind: UPDATE, HEARTBEAT, DELETE, SNAPSHOT, FIRST or END.
        seq: sequence numbers.
        ts: event times, milliseconds.
        time: stream time, milliseconds, never falling.
    """

    session: NDArray[np.int64]
    kind: NDArray[np.int8]
    seq: NDArray[np.int64]
    ts: NDArray[np.int64]
    time: NDArray[np.int64]
