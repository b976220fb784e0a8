"""Processors whose output columns have names of every kind. Test configurations use them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from sessionlake.processors import KeyedProcessor, Processor
from sessionlake.processors.api import Message, Record, Timer
from sessionlake.processors.output import HEAD
from support.names import STRANGE, usable

TEXTS = ("group", "a.b", ".hidden", "value")
"""Output columns that are texts and so can be keys."""
TIME = "ts"
NAMES = tuple(usable(dict.fromkeys([*TEXTS, TIME, *STRANGE]), "_batch", *(name for name, _ in HEAD)))
OUTPUT = {name: "string" if name in TEXTS else "timestamp" if name == TIME else "double" for name in NAMES}


@dataclass
class Nothing:
    """An empty state."""


class Writes(Processor[Nothing]):
    """Emits a record for each message, with a value in every column."""

    state = Nothing
    output: ClassVar[Mapping[str, str]] = OUTPUT

    def on_message(self, state: Nothing, message: Message) -> Iterator[Record | Timer]:
        del state
        values: dict[str, Any] = {name: float(message.offset + place) for place, name in enumerate(NAMES)}
        yield values | {name: f"{name} {message.offset % 2}" for name in TEXTS} | {TIME: message.ts}


@dataclass
class Rows:
    """Number of a key's rows, and the sum of a column."""

    rows: int = 0
    sum: float = 0.0


class Adds(KeyedProcessor[Rows]):
    """Emits one record per key, with columns of every name."""

    state = Rows
    output: ClassVar[Mapping[str, str]] = {name: sql for name, sql in OUTPUT.items() if name not in TEXTS}

    def on_row(self, state: Rows, row: Mapping[str, Any]) -> Iterable[Record]:
        state.rows += 1
        state.sum += row["shard"]
        assert row["group"].startswith("group ")
        assert row.keys() >= {*NAMES}
        return ()

    def on_end(self, state: Rows) -> Iterable[Record]:
        yield {name: state.sum for name in self.output if name != TIME}
