"""The journal of operations that replace tables or states: what each was asked to do, and which steps are done.

`rebuild`, `recover bronze`, `reshard` and `forget` each write one file, `journal/NAME.json` beside the checkpoints.
They write it before they replace anything and after each step, and remove it at the end. While it exists, the layers
that the operation changes do not start, and the error names the commands that finish or cancel the operation. Every
step can be repeated, so an operation that died repeats the step in which it died.

`recover silver` is a rebuild of silver. `recover gold` needs no file: its new checkpoint keeps gold from starting until
gold's tables are empty. The removal of old rows needs no file either: it stops no layer, and `ops.retained` records it
for readers of the tables, who cannot read this folder.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

import msgspec

from sessionlake.delta.schemas.names import BRONZE
from sessionlake.delta.storage.faults import inject_fault_if_requested
from sessionlake.errors import DataLossError, InterruptedOperationError
from sessionlake.settings.model import Settings
from sessionlake.streaming.checkpoint import write_atomically
from sessionlake.streaming.operation import FORGET, ReplacingOperation, list_operations

T = TypeVar("T")
Step = Callable[[], dict[str, int] | None]
"""The work of a step; returns what to report of it, or None."""
_Reports = dict[str, dict[str, int]]
_BUILD, _REPLACE = "build", "replace"


class _JournalFile(msgspec.Struct):
    """The content of a journal file, which records how far an operation has come that replaces tables or states.

    Attributes:
        operation: The name of the operation.
        step: `build` while the new tables are built beside the live ones, then `replace`.
        inputs: What the operation was asked to do, and what it decided before it replaced anything, as JSON.
        done: Finished steps: for each step's name, the numbers that it reported, by name.
        format: Version of the file's format.
    """

    operation: str
    step: str
    inputs: msgspec.Raw
    done: _Reports = {}
    format: int = 1


@dataclass
class OperationJournal(Generic[T]):
    """The record of an operation that has started to replace tables or states.

    After a crash, it resumes from this record.

    Attributes:
        settings: The settings of the lake.
        operation: The kind of operation.
        inputs: What the operation was asked to do, and what it decided before it replaced anything.
        done: Finished steps: for each step's name, the numbers that it reported, by name.
    """

    settings: Settings
    operation: ReplacingOperation
    inputs: T
    done: _Reports = field(default_factory=dict)

    @classmethod
    def create_journal(cls, settings: Settings, operation: ReplacingOperation, inputs: T) -> OperationJournal[T]:
        """Creates the journal of an operation that is about to replace tables or states, and writes its file."""
        journal = cls(settings, operation, inputs)
        journal.write_journal()
        return journal

    @classmethod
    def read_journal(
        cls, settings: Settings, operation: ReplacingOperation, kind: type[T]
    ) -> OperationJournal[T] | None:
        """Reads the journal of an unfinished operation, also after a crash; None if no tables are being replaced.

        Args:
            settings: The settings of the lake.
            operation: The kind of operation.
            kind: The type of the operation's inputs.

        Raises:
            DataLossError: The journal file cannot be read.
        """
        try:
            stored = _read_journal_file(settings, operation)
            if stored is None or stored.step == _BUILD:
                return None
            return cls(settings, operation, msgspec.json.decode(stored.inputs, type=kind), stored.done)
        except (OSError, msgspec.MsgspecError) as error:
            raise DataLossError(
                f"the journal {operation.find_journal_file(settings)} of an interrupted operation cannot "
                f"be read ({error})",
                why="It says which steps of the operation are left to do",
                fix=operation.damaged,
            ) from None

    def run_step_if_unfinished(self, step: str, work: Step) -> dict[str, int]:
        """Runs a step of the operation, unless the journal says that it is finished, and records it as finished.

        Args:
            step: The name of the step.
            work: Does the work; returns numbers to report, by name, or None.

        Returns:
            The numbers that the step reported, now or when it ran earlier, by name.
        """
        if step not in self.done:
            inject_fault_if_requested(f"before:{self.operation.point}:{step}")
            reported = work()
            inject_fault_if_requested(f"after:{self.operation.point}:{step}")
            self.done[step] = reported or {}
            self.write_journal()
        return self.done[step]

    def write_journal(self) -> None:
        """Writes the journal file with the steps finished so far."""
        _write_journal_file(self.settings, self.operation, _REPLACE, self.inputs, self.done)

    def remove_journal(self) -> None:
        """Removes the journal file, so that the layers can start again."""
        self.operation.find_journal_file(self.settings).unlink(missing_ok=True)


@contextmanager
def record_tables_being_built(settings: Settings, operation: ReplacingOperation, version: int) -> Iterator[None]:
    """Records in the journal file, while the block runs, that a rebuild is building new tables beside the live ones.

    Layers may start meanwhile. Maintenance keeps everything that is committed to bronze after `version`, because the
    rebuilt layer will read it. If another rebuild is already replacing tables, its journal file stays.

    Args:
        settings: The settings of the lake.
        operation: The kind of rebuild.
        version: The version of `bronze.messages` that the rebuild reads.
    """
    discard_building_record(settings, operation)
    if not operation.find_journal_file(settings).exists():
        _write_journal_file(settings, operation, _BUILD, {"version": version}, {})
    try:
        yield
    except BaseException:
        discard_building_record(settings, operation)
        raise


def discard_building_record(settings: Settings, operation: ReplacingOperation) -> None:
    """Removes the journal file of a rebuild that died while it was building new tables, if there is one."""
    try:
        stored = _read_journal_file(settings, operation)
    except (OSError, msgspec.MsgspecError):
        return
    if stored is not None and stored.step == _BUILD:
        operation.find_journal_file(settings).unlink(missing_ok=True)


def read_bronze_version_of_rebuild(settings: Settings, layer: str) -> int | None:
    """Returns the version of `bronze.messages` that an unfinished rebuild of the layer reads; None if there is none.

    Raises:
        DataLossError: The journal file cannot be read.
    """
    for operation in list_operations(settings):
        if operation.layers is not None and operation.layers[0] == layer:
            try:
                stored = _read_journal_file(settings, operation)
                inputs = {} if stored is None else msgspec.json.decode(stored.inputs, type=dict[str, Any])
            except (OSError, msgspec.MsgspecError) as error:
                raise DataLossError(
                    f"the journal {operation.find_journal_file(settings)} of an interrupted operation is "
                    f"damaged ({error})",
                    why="It says which steps of the operation are left to do",
                    fix=operation.damaged,
                ) from None
            if "version" in inputs:
                return int(inputs["version"])
    return None


def refuse_interrupted_operations(
    settings: Settings,
    layer: str | None = None,
    *,
    except_for: Collection[ReplacingOperation] = (),
    from_bronze: bool = False,
) -> None:
    """Checks that no interrupted operation has left the layer partly replaced.

    Args:
        settings: The settings of the lake.
        layer: The layer; None means any layer.
        except_for: Operations to ignore, because the caller finishes them itself.
        from_bronze: True if the caller builds everything again from bronze. Then an unfinished `forget` is ignored once
            it has erased the session's messages in bronze.

    Raises:
        InterruptedOperationError: An operation was interrupted. The error names the commands that finish and cancel it.
    """
    for operation in list_operations(settings):
        of_layer = layer is None or operation.layers is None or layer in operation.layers
        if not of_layer or operation in except_for or not operation.find_journal_file(settings).exists():
            continue
        inputs: dict[str, Any] = {"shards": "N"}
        try:
            stored = _read_journal_file(settings, operation)
            if stored is None or stored.step == _BUILD:
                continue
            if from_bronze and operation is FORGET and BRONZE in stored.done:
                continue
            inputs |= msgspec.json.decode(stored.inputs, type=dict[str, Any])
        except (OSError, msgspec.MsgspecError):
            pass  # the command that finishes the operation reports the damaged file
        raise InterruptedOperationError(operation.interrupted, fix=operation.describe_ways_to_finish(inputs["shards"]))


def _read_journal_file(settings: Settings, operation: ReplacingOperation) -> _JournalFile | None:
    try:
        return msgspec.json.decode(operation.find_journal_file(settings).read_bytes(), type=_JournalFile)
    except FileNotFoundError:
        return None


def _write_journal_file(
    settings: Settings, operation: ReplacingOperation, step: str, inputs: object, done: _Reports
) -> None:
    file = operation.find_journal_file(settings)
    file.parent.mkdir(parents=True, exist_ok=True)
    stored = _JournalFile(operation.name, step, msgspec.Raw(msgspec.json.encode(inputs)), done)
    write_atomically(file, msgspec.json.encode(stored))
