"""Columnar representation of consecutive messages, which the modules of the simulator exchange."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

UPDATE, HEARTBEAT, DELETE, SNAPSHOT, FIRST, END = range(6)
"""Kinds of messages. DELETE is an update that deletes a row, FIRST is a session's first snapshot."""


@dataclass(frozen=True)
class MessageBlock:
    """Consecutive slots of the stream. A slot is the place of one message. All arrays have one element per slot.

    Attributes:
        session: Number of the session that sends the message.
        kind: UPDATE, HEARTBEAT, DELETE, SNAPSHOT, FIRST or END.
        seq: Sequence number.
        ts: Event time in milliseconds.
        time: Stream time in milliseconds. It never decreases.
    """

    session: NDArray[np.int64]
    kind: NDArray[np.int8]
    seq: NDArray[np.int64]
    ts: NDArray[np.int64]
    time: NDArray[np.int64]
