"""The journal of operations that replace tables or states: what each was asked to do, and which steps are done.

`rebuild`, `recover bronze`, `reshard` and `forget` write one file each, `journal/NAME.json` beside the checkpoints:
before they replace anything, and after each step. The file is removed at the end. While it exists, the layers that the
operation changes do not start, and the error names the commands that finish it and cancel it. Every step can be
repeated, so an operation that died repeats the step that it died in.

`recover silver` is a rebuild of silver. `recover gold` needs no file: its new checkpoint keeps gold from starting until
gold's tables are empty. The removal of old rows needs none either: it stops no layer, and `ops.retained` records it for
readers of the tables, who have no access to this folder.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

import msgspec

from sessionlake.delta.schemas.names import BRONZE
from sessionlake.delta.storage.faults import fault_point
from sessionlake.errors import InterruptedOperationError, LossError
from sessionlake.settings.model import Settings
from sessionlake.streaming.checkpoint import write_atomically
from sessionlake.streaming.operation import FORGET, Operation, operations_of

T = TypeVar("T")
Step = Callable[[], dict[str, int] | None]
"""The work of a step; returns what to report of it, or None."""
_Reports = dict[str, dict[str, int]]
_BUILD, _REPLACE = "build", "replace"


class _Stored(msgspec.Struct):
    """The content of the file.

    Attributes:
        operation: The name of the operation.
        step: `build` while the new tables are built beside the live ones, then `replace`.
        inputs: what the operation was asked to do, and what it decided before it replaced anything.
        done: the finished steps, each with what it reported.
    """

    operation: str
    step: str
    inputs: msgspec.Raw
    done: _Reports = {}
    format: int = 1


@dataclass
class Journal(Generic[T]):
    """An operation that has started to replace tables or states.

    Attributes:
        inputs: what it was asked to do, and what it decided before it replaced anything.
        done: the finished steps, each with what it reported.
    """

    settings: Settings
    operation: Operation
    inputs: T
    done: _Reports = field(default_factory=dict)

    @classmethod
    def begin(cls, settings: Settings, operation: Operation, inputs: T) -> Journal[T]:
        """Starts an operation that replaces tables or states from now on, and writes its file."""
        journal = cls(settings, operation, inputs)
        journal.write()
        return journal

    @classmethod
    def read(cls, settings: Settings, operation: Operation, kind: type[T]) -> Journal[T] | None:
        """Reads the operation that is in progress, or was when its process died; None if it has replaced nothing.

        Args:
            settings: The settings of the lake.
            operation: The kind of operation.
            kind: The type of its inputs.

        Raises:
            LossError: The file cannot be read.
        """
        try:
            stored = _stored(settings, operation)
            if stored is None or stored.step == _BUILD:
                return None
            return cls(settings, operation, msgspec.json.decode(stored.inputs, type=kind), stored.done)
        except (OSError, msgspec.MsgspecError) as error:
            raise LossError(
                f"{operation.file(settings)} cannot be read ({error})",
                why="It says what is left to do of an interrupted operation",
                fix=operation.damaged,
            ) from None

    def run_step(self, step: str, work: Step) -> dict[str, int]:
        """Runs a step, unless it was finished before the process died; returns what it reported."""
        if step not in self.done:
            fault_point(f"before:{self.operation.point}:{step}")
            reported = work()
            fault_point(f"after:{self.operation.point}:{step}")
            self.done[step] = reported or {}
            self.write()
        return self.done[step]

    def write(self) -> None:
        """Writes the file."""
        _write(self.settings, self.operation, _REPLACE, self.inputs, self.done)

    def end(self) -> None:
        """Removes the file: the layers can start again."""
        self.operation.file(self.settings).unlink(missing_ok=True)


@contextmanager
def record_building(settings: Settings, operation: Operation, version: int) -> Iterator[None]:
    """Records that a rebuild builds new tables beside the live ones, from a version of bronze.

    Layers can start meanwhile. Maintenance keeps what was committed to bronze after that version, because a layer that
    has no checkpoint, or loses it, still needs it. If another rebuild already replaces tables, its record stays.
    """
    discard_building(settings, operation)
    if not operation.file(settings).exists():
        _write(settings, operation, _BUILD, {"version": version}, {})
    try:
        yield
    except BaseException:
        discard_building(settings, operation)
        raise


def discard_building(settings: Settings, operation: Operation) -> None:
    """Removes the record of a rebuild that died while it was building new tables, if there is one."""
    try:
        stored = _stored(settings, operation)
    except (OSError, msgspec.MsgspecError):
        return
    if stored is not None and stored.step == _BUILD:
        operation.file(settings).unlink(missing_ok=True)


def building_version(settings: Settings, layer: str) -> int | None:
    """Returns the version of bronze that the layer's rebuild is made from; None if no rebuild is in progress.

    Raises:
        LossError: The file cannot be read.
    """
    for operation in operations_of(settings):
        if operation.layers is not None and operation.layers[0] == layer:
            try:
                stored = _stored(settings, operation)
                inputs = {} if stored is None else msgspec.json.decode(stored.inputs, type=dict[str, Any])
            except (OSError, msgspec.MsgspecError) as error:
                raise LossError(f"{operation.file(settings)} is damaged ({error})", fix=operation.damaged) from None
            if "version" in inputs:
                return int(inputs["version"])
    return None


def require_uninterrupted(
    settings: Settings, layer: str | None = None, *, except_for: Collection[Operation] = (), from_bronze: bool = False
) -> None:
    """Returns if no interrupted operation has left a layer half changed.

    Args:
        settings: The settings of the lake.
        layer: The layer; None means any of them.
        except_for: Operations that the caller finishes itself.
        from_bronze: True if the caller makes everything again from bronze. Then a session may be half forgotten, once
            its messages in bronze are erased.

    Raises:
        InterruptedOperationError: An operation was interrupted. The error names the commands that finish and cancel it.
    """
    for operation in operations_of(settings):
        of_layer = layer is None or operation.layers is None or layer in operation.layers
        if not of_layer or operation in except_for or not operation.file(settings).exists():
            continue
        inputs: dict[str, Any] = {"shards": "N"}
        try:
            stored = _stored(settings, operation)
            if stored is None or stored.step == _BUILD:
                continue
            if from_bronze and operation is FORGET and BRONZE in stored.done:
                continue
            inputs |= msgspec.json.decode(stored.inputs, type=dict[str, Any])
        except (OSError, msgspec.MsgspecError):
            pass  # the command that finishes the operation reports the damaged file
        raise InterruptedOperationError(operation.interrupted, fix=operation.how_to_finish(inputs["shards"]))


def _stored(settings: Settings, operation: Operation) -> _Stored | None:
    try:
        return msgspec.json.decode(operation.file(settings).read_bytes(), type=_Stored)
    except FileNotFoundError:
        return None


def _write(settings: Settings, operation: Operation, step: str, inputs: object, done: _Reports) -> None:
    file = operation.file(settings)
    file.parent.mkdir(parents=True, exist_ok=True)
    stored = _Stored(operation.name, step, msgspec.Raw(msgspec.json.encode(inputs)), done)
    write_atomically(file, msgspec.json.encode(stored))
