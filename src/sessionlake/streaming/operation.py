"""The kinds of operations that replace tables or states, and what is said of one that was interrupted."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from sessionlake.delta.schemas.names import BRONZE, ERASURES, GOLD, SILVER
from sessionlake.settings.model import ProcessorSettings, Settings

FOLDER = "journal"


@dataclass(frozen=True)
class Operation:
    """A kind of operation, and what is said of one that was interrupted.

    Attributes:
        name: of its file.
        interrupted: what was interrupted, and what is wrong until it is finished.
        finish: the command that finishes it. `{shards}` is replaced by the input of that name.
        cancel: the sentence that says how to cancel it, or to start over; empty if neither can be done.
        damaged: what to do if its file cannot be read.
        layers: the layers that do not start meanwhile; None means all.
        point: what the fault points of its steps are called.
    """

    name: str
    interrupted: str
    finish: str
    cancel: str
    damaged: str
    layers: tuple[str, ...] | None = None
    point: str = "publish"

    def file(self, settings: Settings) -> Path:
        """The file of one that is under way."""
        return Path(settings.checkpoint(FOLDER)) / f"{self.name}.json"

    def refusal(self, shards: object) -> str:
        """What is said to whoever cannot work until it is finished.

        Args:
            shards: its input of that name; of other operations, anything.
        """
        finish, cancel = (text.replace("{shards}", str(shards)) for text in (self.finish, self.cancel))
        said = f"{self.interrupted}: run `sessionlake {finish}`, which finishes it"
        return f"{said}. {cancel}" if cancel else said


FORGET = Operation(
    "forget",
    "the forgetting of a session was interrupted, so tables may still hold it",
    "forget --resume",
    "`sessionlake forget --cancel` gives it up as long as nothing was erased",
    "Put it back from a backup. Without one, remove it, and run `sessionlake forget` with the same session: "
    f"its receipt in {ERASURES} has no `done_at`",
    point="forget",
)
RESHARD = Operation(
    "reshard",
    "a resharding was interrupted, so layers may have different numbers of shards",
    "reshard {shards}",
    "`sessionlake reshard {shards} --cancel` leaves the other layers as they are",
    "Remove it: layers whose shards are not those of the configuration then name the command that moves them",
    point="reshard",
)
RECOVER_BRONZE = Operation(
    "recover-bronze",
    "the recovery of bronze's checkpoint was interrupted, so bronze would go on from the wrong offsets",
    "recover bronze",
    "",
    "Remove it, and run `sessionlake recover bronze`",
    layers=(BRONZE,),
)


def _rebuild(made: str, target: str, *layers: str) -> Operation:
    """The rebuild of a layer or table, which `sessionlake rebuild` calls `target`."""
    return Operation(
        f"rebuild-{target.replace(':', '-')}",
        f"a rebuild of {made} was interrupted while it replaced the tables, which may be of two versions",
        f"rebuild {target}",
        f"`sessionlake rebuild {target} --cancel` gives it up as long as no table was replaced; `sessionlake rebuild "
        f"{target} --start-over` builds everything again from bronze if its files are damaged",
        f"`sessionlake rebuild {target} --start-over` builds it again from bronze",
        layers=layers,
    )


REBUILD_SILVER = _rebuild("silver", "silver", SILVER, GOLD)


def rebuild_of(own: ProcessorSettings) -> Operation:
    """The rebuild of a processor's table."""
    return _rebuild(own.into, own.rebuilt_as, own.layer)


def operations_of(settings: Settings) -> Iterator[Operation]:
    """All kinds that a lake can have."""
    yield from (REBUILD_SILVER, FORGET, RESHARD, RECOVER_BRONZE)
    yield from (rebuild_of(own) for own in settings.processors if not own.key)
