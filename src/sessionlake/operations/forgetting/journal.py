"""What is done of a forgetting that is under way: until its end no layer starts. At its end the note is removed.

It names the session, so that whoever finds a forgetting interrupted can have it finished.

Each step can be taken twice; but once the layers' streams are told where to go on, what is before that is gone, and is
not looked for again.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from sessionlake.delta.schemas.names import ERASURES
from sessionlake.delta.storage.faults import fault_point
from sessionlake.settings.model import Settings
from sessionlake.streaming.checkpoint import write_whole
from sessionlake.streaming.guards import forget_journal, read_journal

Step = Callable[[], dict[str, int] | None]
"""Something to be done; what there is to tell of it."""


class Journal(msgspec.Struct):
    """The note, beside the checkpoints.

    Attributes:
        receipt: of which erasure.
        topic: of the session.
        session: its id.
        done: steps, and what there is to tell of each.
    """

    receipt: str
    topic: str
    session: str
    done: dict[str, dict[str, int]] = {}
    format: int = 2

    @classmethod
    def read(cls, settings: Settings) -> Journal | None:
        """The one that is under way; None if none is.

        Raises:
            LossError: it cannot be read.
        """
        return read_journal(
            forget_journal(settings),
            cls,
            "Put it back from a backup. Without one, remove it, and run `sessionlake forget` with the same session: "
            f"its receipt in {ERASURES} has no `done_at`",
        )

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
