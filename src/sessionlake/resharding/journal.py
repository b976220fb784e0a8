"""What is decided of a resharding that is under way: until its end, no layer whose states it may have changed starts.

Before it is written nothing has changed; from then on nothing is left to do but to bring into force what is prepared.
"""

from __future__ import annotations

import msgspec

from sessionlake.config import Settings
from sessionlake.streaming.checkpoint import write_whole
from sessionlake.streaming.guards import reshard_journal


class Journal(msgspec.Struct, frozen=True):
    """The note, beside the checkpoints.

    Attributes:
        name: of the resharding; its handovers bear it.
        shards: how many there will be.
        layers: whose states change, in order.
    """

    name: str
    shards: int
    layers: list[str]
    format: int = 1

    @classmethod
    def read(cls, settings: Settings) -> Journal | None:
        """The one that is under way; None if none is."""
        try:
            return msgspec.json.decode(reshard_journal(settings).read_bytes(), type=cls)
        except FileNotFoundError:
            return None

    def write(self, settings: Settings) -> None:
        """Notes it down."""
        reshard_journal(settings).parent.mkdir(parents=True, exist_ok=True)
        write_whole(reshard_journal(settings), msgspec.json.encode(self))

    @staticmethod
    def end(settings: Settings) -> None:
        """Lets the layers start again."""
        reshard_journal(settings).unlink(missing_ok=True)
