"""Decoder classes for tests of feeds: one that works, and many that do what no decoder may."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import count
from typing import Any

from sessionlake.feeds.decoder import Delete, Event, Message, Put


class Meters:
    """Reads `{"meter", "at", "n", "values": {name: value or null}, "type"}`; null deletes the row."""

    def decode(self, message: Message) -> Iterable[Event]:
        found = message.json()
        rows: list[Put | Delete] = [
            Delete((name,)) if value is None else Put((name,), {"value": value})
            for name, value in found["values"].items()
        ]
        kind = found.get("type", "update")
        yield Event(session=found["meter"], kind=kind, ts=found["at"], seq=found["n"], after=found["n"] - 1, rows=rows)


class Both:
    """Makes a snapshot of the same two sessions of any message."""

    def decode(self, _: Message) -> Iterable[Event]:
        return [Event(session=name, kind="snapshot", rows=[Put((1,), {})]) for name in ("secret", "plain")]


class Channels:
    """Reads `{"line", "n", "meter", "values", "type"}`; all meters of a line share its numbers.

    A message without a meter only advances its line.
    """

    has_chains = True

    def decode(self, message: Message) -> Iterable[Event]:
        found = message.json()
        line, number = found["line"], found["n"]
        if "meter" not in found:
            yield Event(kind="ignore", chain=line, seq=number, after=number - 1)
            return
        rows = [Put((name,), {"value": value}) for name, value in found["values"].items()]
        kind = found["type"]
        yield Event(session=found["meter"], kind=kind, chain=line, seq=number, after=number - 1, rows=rows)


class Given:
    """Returns what the class attribute has, whatever the message is."""

    needs_rows = True
    result: Any = ()

    def decode(self, message: Message) -> Any:
        del message
        return self.result() if callable(self.result) else self.result


class Sums(Meters):
    """Reads the messages of `Meters`. A value is added to that of its row."""

    needs_rows = True

    def complete(self, values: Any, find: Any) -> dict[str, Any]:
        before = find(values) or {"value": 0.0}
        return {"value": before["value"] + values.get("value", 0)}


class ByOffset:
    """Returns an entry of the class attribute, by the offset of the message."""

    needs_rows = True
    results: Sequence[Any] = ()

    def decode(self, message: Message) -> Any:
        return self.results[message.offset]


class Endless:
    """Does not come to an end with the messages at some offsets, and never with a row to complete."""

    needs_rows = True
    offsets: Sequence[int] = ()

    def decode(self, message: Message) -> Iterable[Event]:
        if message.offset in self.offsets:
            yield from never_yields()
        yield Event(session="s", rows=[Put((str(message.offset),), {"value": 1})])

    def complete(self, values: Any, find: Any) -> dict[str, Any]:
        del values, find
        next(never_yields())
        return {}

    def narrow(self, scope: Any, find: Any) -> dict[str, Any]:
        del scope, find
        re.fullmatch("(a+)+b", "a" * 60)
        return {}


class NeedsArguments:
    def __init__(self, needed: int) -> None:
        self.needed = needed


class NoDecode:
    pass


class WithoutTextError(Exception):
    def __str__(self) -> str:
        raise ValueError


def endless_events() -> Iterator[Event]:
    return (Event(session=str(number)) for number in count())


def endless_rows() -> Iterator[Event]:
    yield Event(session="s", rows=(Put((str(number),), {"value": 1}) for number in count()))


def never_yields() -> Iterator[Event]:
    while True:
        with suppress(Exception):  # a careless class, which ignores all errors
            "".join(str(number) for number in range(100))


def fails_at_last() -> Iterator[Event]:
    yield Event(session="s", rows=[Put(("a",), {"value": 1})])
    raise WithoutTextError


def endless_error() -> Iterator[Event]:
    yield Event(session="s")
    raise KeyError("x" * 10_000)


class Careless:
    """Reads `{"s", "type", "scope", "rows": [{"id", ...}]}`; its further methods often fail."""

    needs_rows = True

    def decode(self, message: Message) -> Iterable[Event]:
        found = message.json()
        rows: list[Put | Delete] = [
            Delete((row["id"],)) if row.get("gone") else Put((row["id"],), row) for row in found["rows"]
        ]
        yield Event(session=found["s"], kind=found["type"], scope=found.get("scope", {}), rows=rows)

    def complete(self, values: Any, find: Any) -> Any:
        failing: dict[Any, Any] = {4: {"id": "other"}, 6: None, 7: {"v": 2**31}, 8: {"v": "x"}, 9: {"nowhere": 1}}
        if values.get("v") == 5:
            raise KeyError
        if values.get("v") in failing:
            return failing[values["v"]]
        before = (find(values) or {}).get("seen") or 0
        return {"seen": before + len(values)} if "seen" in values else {}

    def narrow(self, scope: Any, find: Any) -> Any:
        del find
        if scope["device"] == "raises":
            raise KeyError
        found: dict[str, Any] = {"all": {}, "none": None, "unknown": {"nowhere": 1}, "unfit": {"v": "x"}, "no dict": 1}
        found["text"] = {"cost": "1.5"}
        return found.get(scope["device"], scope)
