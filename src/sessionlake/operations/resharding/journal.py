"""What is decided of a resharding that is under way: until its end, no layer whose states it may have changed starts.

Before it is written nothing has changed; from then on nothing is left to do but to bring into force what is prepared.
"""

from __future__ import annotations

import msgspec

from sessionlake.settings.model import Settings
from sessionlake.streaming.checkpoint import write_whole
from sessionlake.streaming.guards import read_journal, reshard_journal


class Journal(msgspec.Struct, frozen=True):
    """The note, beside the checkpoints.

    Attributes:
        name: of the resharding; its handovers bear it.
        shards: how many there will be.
        layers: whose states change, in order.
        former: the number of shards that the states of each were of, if it has any.
    """

    name: str
    shards: int
    layers: list[str]
    former: dict[str, int] = {}
    format: int = 2

    @classmethod
    def read(cls, settings: Settings) -> Journal | None:
        """The one that is under way; None if none is."""
        return read_journal(
            reshard_journal(settings),
            cls,
            "Remove it: layers whose shards are not those of the configuration then name the command that moves them",
        )

    def write(self, settings: Settings) -> None:
        """Notes it down."""
        reshard_journal(settings).parent.mkdir(parents=True, exist_ok=True)
        write_whole(reshard_journal(settings), msgspec.json.encode(self))

    @staticmethod
    def end(settings: Settings) -> None:
        """Lets the layers start again."""
        reshard_journal(settings).unlink(missing_ok=True)
