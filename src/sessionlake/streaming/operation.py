"""The kinds of operations that replace tables or states, with the texts about an interrupted one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from sessionlake.delta.schemas.names import BRONZE, ERASURES, GOLD, SILVER
from sessionlake.settings.model import ProcessorSettings, Settings

FOLDER = "journal"


@dataclass(frozen=True)
class Operation:
    """A kind of operation, with the texts of the error about an interrupted one.

    Attributes:
        name: The name of its file.
        interrupted: What was interrupted, and what may be wrong until it is finished.
        finish: The command that finishes it. `{shards}` is replaced by the input of that name.
        cancel: How to cancel it or start over, as a sentence; empty if neither is possible.
        damaged: What to do if its file cannot be read.
        layers: The layers that do not start meanwhile; None means all.
        point: The prefix in the names of the fault points of its steps.
    """

    name: str
    interrupted: str
    finish: str
    cancel: str
    damaged: str
    layers: tuple[str, ...] | None = None
    point: str = "publish"

    def file(self, settings: Settings) -> Path:
        """Returns the path of its file, which exists while it is in progress."""
        return Path(settings.checkpoint(FOLDER)) / f"{self.name}.json"

    def how_to_finish(self, shards: object) -> str:
        """Returns how to finish or cancel an interrupted operation.

        Args:
            shards: The input of that name; ignored by operations that have none.
        """
        finish, cancel = (text.replace("{shards}", str(shards)) for text in (self.finish, self.cancel))
        run = f"Run `sessionlake {finish}`, which finishes it"
        return f"{run}. {cancel}" if cancel else run


FORGET = Operation(
    "forget",
    "the forgetting of a session was interrupted, so tables may still hold it",
    "forget --resume",
    "`sessionlake forget --cancel` cancels it as long as nothing was erased",
    "Restore it from a backup. Without one, remove it, and run `sessionlake forget` with the same session: "
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
    "the recovery of bronze's checkpoint was interrupted, so bronze would resume from the wrong offsets",
    "recover bronze",
    "",
    "Remove it, and run `sessionlake recover bronze`",
    layers=(BRONZE,),
)


def _rebuild(made: str, target: str, *layers: str) -> Operation:
    """Returns the rebuild of a layer or table, which `sessionlake rebuild` calls `target`."""
    return Operation(
        f"rebuild-{target.replace(':', '-')}",
        f"a rebuild of {made} was interrupted while it replaced the tables, which may be of two versions now",
        f"rebuild {target}",
        f"`sessionlake rebuild {target} --cancel` cancels it as long as no table was replaced. If its files are "
        f"damaged, `sessionlake rebuild {target} --start-over` builds everything again from bronze",
        f"Run `sessionlake rebuild {target} --start-over`, which builds it again from bronze",
        layers=layers,
    )


REBUILD_SILVER = _rebuild("silver", "silver", SILVER, GOLD)


def rebuild_of(own: ProcessorSettings) -> Operation:
    """Returns the rebuild of a processor's table."""
    return _rebuild(own.into, own.rebuilt_as, own.layer)


def operations_of(settings: Settings) -> Iterator[Operation]:
    """Yields all kinds of operations that a lake can have."""
    yield from (REBUILD_SILVER, FORGET, RESHARD, RECOVER_BRONZE)
    yield from (rebuild_of(own) for own in settings.processors if not own.key)
