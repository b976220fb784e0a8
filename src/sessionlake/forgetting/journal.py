"""What is done of a forgetting that is under way: until its end no layer starts. It does not name the session.

Each step can be taken twice; but once the layers' streams are told where to go on, what is before that is gone, and is
not looked for again.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from sessionlake.config import Settings
from sessionlake.lake.faults import fault_point
from sessionlake.streaming.checkpoint import write_whole
from sessionlake.streaming.guards import forget_journal

Step = Callable[[], dict[str, int] | None]
"""Something to be done; what there is to tell of it."""


class Journal(msgspec.Struct):
    """The note, beside the checkpoints.

    Attributes:
        receipt: of which erasure.
        done: steps, and what there is to tell of each.
    """

    receipt: str
    done: dict[str, dict[str, int]] = {}
    format: int = 1

    @classmethod
    def read(cls, settings: Settings) -> Journal | None:
        """The one that is under way; None if none is."""
        try:
            return msgspec.json.decode(forget_journal(settings).read_bytes(), type=cls)
        except FileNotFoundError:
            return None

    def write(self, settings: Settings) -> None:
        """Notes it down."""
        forget_journal(settings).parent.mkdir(parents=True, exist_ok=True)
        write_whole(forget_journal(settings), msgspec.json.encode(self))

    def step(self, settings: Settings, name: str, take: Step) -> None:
        """Takes a step, unless it was taken before the process died."""
        if name in self.done:
            return
        fault_point(f"before:forget:{name}")
        told = take()
        fault_point(f"after:forget:{name}")
        self.done[name] = told or {}
        self.write(settings)

    @staticmethod
    def end(settings: Settings) -> None:
        """Lets the layers start again."""
        forget_journal(settings).unlink(missing_ok=True)
