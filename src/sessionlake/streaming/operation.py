"""The kinds of operations that replace tables or states, with the texts about an interrupted one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from sessionlake.delta.schemas.names import BRONZE, ERASURES, GOLD, SILVER
from sessionlake.settings.model import ProcessorSettings, Settings

FOLDER = "journal"


@dataclass(frozen=True)
class ReplacingOperation:
    """A kind of operation that replaces tables or states, such as a rebuild, and what to say if it was interrupted.

    Attributes:
        name: The name of the operation and of its journal file.
        interrupted: Text: what was interrupted, and what may be wrong until the operation is finished.
        finish: The command that finishes the operation. `{shards}` in it is replaced by the new number of shards.
        cancel: How to cancel the operation or start over, as a sentence; empty if neither is possible.
        damaged: Text: what to do if the journal file cannot be read.
        layers: The layers that must not start while the operation is unfinished; None means all.
        point: The prefix in the names of the fault points (places where tests stop the process) of its steps.
    """

    name: str
    interrupted: str
    finish: str
    cancel: str
    damaged: str
    layers: tuple[str, ...] | None = None
    point: str = "publish"

    def find_journal_file(self, settings: Settings) -> Path:
        """Returns the path of the operation's journal file, which exists while the operation is in progress."""
        return Path(settings.checkpoint_path(FOLDER)) / f"{self.name}.json"

    def describe_ways_to_finish(self, shards: object) -> str:
        """Returns a text that says how to finish or cancel the interrupted operation.

        Args:
            shards: The new number of shards, for `reshard`; other operations ignore it.
        """
        finish, cancel = (text.replace("{shards}", str(shards)) for text in (self.finish, self.cancel))
        run = f"Run `sessionlake {finish}`, which finishes it"
        return f"{run}. {cancel}" if cancel else run


FORGET = ReplacingOperation(
    "forget",
    "the forgetting of a session was interrupted, so tables may still hold it",
    "forget --resume",
    "`sessionlake forget --cancel` cancels it as long as nothing was erased",
    "Restore it from a backup. Without one, remove it, and run `sessionlake forget` with the same session: "
    f"its receipt in {ERASURES} has no `done_at`",
    point="forget",
)
RESHARD = ReplacingOperation(
    "reshard",
    "a resharding was interrupted, so layers may have different numbers of shards",
    "reshard {shards}",
    "`sessionlake reshard {shards} --cancel` leaves the other layers as they are",
    "Remove it: layers whose shards are not those of the configuration then name the command that moves them",
    point="reshard",
)
RECOVER_BRONZE = ReplacingOperation(
    "recover-bronze",
    "the recovery of bronze's checkpoint was interrupted, so bronze would resume from the wrong offsets",
    "recover bronze",
    "",
    "Remove it, and run `sessionlake recover bronze`",
    layers=(BRONZE,),
)


def _create_rebuild_operation(rebuilt_object: str, target: str, *layers: str) -> ReplacingOperation:
    """Returns the kind of operation that rebuilds a layer or table.

    Args:
        rebuilt_object: What is rebuilt, for the texts.
        target: The argument of `sessionlake rebuild`.
        layers: The layers that must not start while the rebuild is unfinished.
    """
    return ReplacingOperation(
        f"rebuild-{target.replace(':', '-')}",
        f"a rebuild of {rebuilt_object} was interrupted while it replaced the tables, which may be of two versions now",
        f"rebuild {target}",
        f"`sessionlake rebuild {target} --cancel` cancels it as long as no table was replaced. If its files are "
        f"damaged, `sessionlake rebuild {target} --start-over` builds everything again from bronze",
        f"Run `sessionlake rebuild {target} --start-over`, which builds it again from bronze",
        layers=layers,
    )


REBUILD_SILVER = _create_rebuild_operation("silver", "silver", SILVER, GOLD)


def create_processor_rebuild_operation(processor: ProcessorSettings) -> ReplacingOperation:
    """Returns the kind of operation that rebuilds a processor's table."""
    return _create_rebuild_operation(processor.output_table, processor.rebuild_argument, processor.layer)


def list_operations(settings: Settings) -> Iterator[ReplacingOperation]:
    """Yields each operation that may replace state in a lake with these settings, such as `forget`, running or not."""
    yield from (REBUILD_SILVER, FORGET, RESHARD, RECOVER_BRONZE)
    yield from (create_processor_rebuild_operation(own) for own in settings.processors if not own.key)
