"""Reads many messages fast, by Python code that is generated for a feed. `feeds.interpret` reads all unusual messages.

The code is a function with one loop: it decodes a value, tries the rules in order, and appends to `EventLists`. Texts
of the configuration enter the code only through `repr` or as values, so they cannot become code. If a message has
anything unusual, such as a wrong type or a missing part, its events are removed again and the next reader reads it. The
readers of a feed are a function that decodes only what the feed declares; if the feed stores undeclared fields, a
function that decodes all; and `feeds.interpret`. A test compares them on random messages.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from sessionlake.feeds.bulk import convert_times, find_odd_decimals
from sessionlake.feeds.caches import RowIds
from sessionlake.feeds.code import NoCodeError, is_decimal_text, list_columns_of_deletes
from sessionlake.feeds.decode_many import DecoderBatchReader
from sessionlake.feeds.feed import Feed
from sessionlake.feeds.lists import NO_SCOPE, EventLists, list_constants_of_rule
from sessionlake.feeds.payload import PayloadReader
from sessionlake.feeds.reader import MAX_BYTES, KafkaRecords, list_constants_of_messages, read
from sessionlake.feeds.shapes import Shape
from sessionlake.feeds.writer import FeedWriter
from sessionlake.protocol.payload import Payload, PayloadFormat


@dataclass
class CompiledFeed:
    """A feed with the functions that are generated for it.

    Attributes:
        feed: The feed.
        sources: Source texts of the functions; empty if none could be generated and `feeds.reader` reads all messages.
        slow: Number of messages so far that the slow reader `feeds.interpret` had to read.
    """

    feed: Feed
    sources: tuple[str, ...]
    _functions: tuple[Callable[..., None], ...]
    _payload: PayloadReader | None
    _row_ids: Sequence[RowIds] = ()
    slow: int = 0

    @classmethod
    def of(cls, feed: Feed, payload: PayloadReader | None = None) -> CompiledFeed:
        """Generates and compiles the functions for a feed.

        Args:
            feed: The feed.
            payload: Reads Avro and Protobuf; required if `feed.reads_avro_or_protobuf`.
        """
        if feed.decoder is not None:
            many = DecoderBatchReader(feed, feed.decoder, list_constants_of_messages(feed, payload))
            return cls(feed, (), (many,), payload)
        try:
            writers = [_create_writer(feed, payload, rescues=False)]
        except NoCodeError:
            return cls(feed, (), (), payload)
        if any(part.rescue for rule in feed.rules for part in rule.rows):
            writers.append(_create_writer(feed, payload, rescues=True))
        sources = tuple(writer.function() for writer in writers)
        for source, writer in zip(sources, writers, strict=True):
            code = compile(source, f"<feed {feed.name}>", "exec")
            exec(code, writer.names)  # noqa: S102 - users' texts enter only by `repr`
        functions = tuple(writer.names["read_all"] for writer in writers)
        return cls(feed, sources, functions, payload, [one for writer in writers for one in writer.row_ids])

    def read(self, records: KafkaRecords, *, max_bytes: int = MAX_BYTES) -> EventLists:
        """Returns the events and faults of messages: for each message the same as `feeds.reader.read` returns."""
        out = EventLists.of(self.feed)
        unusual, rules = [*range(len(records.value))], list[int]()
        for function in self._functions:
            numbers, unusual = unusual, []
            some = records if len(numbers) == len(records.value) else records.take(numbers)
            _fill_missing_rescued_with_none(out)
            function(numbers, some, max_bytes, out, unusual, rules)
        if self._functions:
            if self.sources:
                out.rows[:] = np.diff(np.array(out.rows, np.int64), prepend=0).tolist()
            _fill_constants(out, self.feed, rules)
            unusual += self._finish_columns(out)
        self.slow += len(unusual)
        for number in unusual:
            record = records.record(number)
            out.add(self.feed, number, read(self.feed, record, max_bytes=max_bytes, payload=self._payload))
        return out

    def _finish_columns(self, out: EventLists) -> list[int]:
        """Converts values that the generated code has added unchanged: texts of times, and of unusual decimals.

        Returns:
            The indices of messages that the slow reader `feeds.interpret` must read. Their events are removed.
        """
        feed, bad = self.feed, set()
        times = [rule.time or feed.time for rule in feed.rules]
        if any(time.path is not None and time.how == "iso" for time in times):
            out.ts[:], wrong = convert_times(out.ts)
            bad |= {out.message[number] for number in wrong}
        compared, bad_rows = list_columns_of_deletes(feed), list[int]()
        for column, cells in zip(feed.columns.values(), out.values, strict=True):
            if not is_decimal_text(column) or (column in feed.key and not self._has_keys_with_odd_decimals()):
                continue
            for row in find_odd_decimals(cells, column):
                try:
                    cells[row] = column.convert(cells[row])
                except ValueError:
                    bad_rows.append(row)
                if column.name in compared:
                    bad_rows.append(row)
        bad |= out.find_messages_of_rows(bad_rows)
        out.remove_messages(bad)
        return sorted(bad)

    def _has_keys_with_odd_decimals(self) -> bool:
        return any(one.has_odd_decimals for one in self._row_ids)


def _create_writer(feed: Feed, payload: PayloadReader | None, *, rescues: bool) -> FeedWriter:
    """Returns a writer for the code that reads a feed, which decodes only those parts of JSON that it uses."""
    message = Shape()
    FeedWriter(feed, payload, message, rescues=rescues).function()  # finds out which parts of a message are read
    kind = message.create_type() if feed.format is PayloadFormat.JSON else Any
    return FeedWriter(feed, payload, message, kind, rescues=rescues)


def _fill_constants(out: EventLists, feed: Feed, rules: list[int]) -> None:
    """Adds the fields that depend only on the rule of an event, or are the same for all events and rows.

    `rules` has the number of the rule of each event.
    """
    constants = {rule.number: list_constants_of_rule(feed, rule) for rule in feed.rules}
    for name in ("kind", "restart", "is_link"):
        found = {number: constants[number][name] for number in set(rules)}
        is_same = len(set(found.values())) == 1
        getattr(out, name).extend([*found.values()][:1] * len(rules) if is_same else map(found.__getitem__, rules))
    out.chain += [None] * (len(out.message) - len(out.chain))
    out.scope += [NO_SCOPE] * (len(out.message) - len(out.scope))
    _fill_missing_rescued_with_none(out)
    out.sent += [None] * (len(out.message) - len(out.sent))
    out.after += [None] * (len(out.message) - len(out.after))
    out.deletes += [False] * (len(out.row_id) - len(out.deletes))
    out.expect += [None] * (len(out.row_id) - len(out.expect))


def _fill_missing_rescued_with_none(out: EventLists) -> None:
    """Adds None to `out.rescued` for rows read by a function that reads no row with undeclared fields."""
    out.rescued += [None] * (len(out.row_id) - len(out.rescued))


_MOST_COMPILED = 64
_compiled: dict[tuple[str, Payload | None], CompiledFeed] = {}


def get_compiled_reader(feed: Feed, payload: Payload | None = None) -> CompiledFeed:
    """Returns the compiled form of a feed. A process compiles each feed once.

    Args:
        feed: The feed.
        payload: The schemas of Avro and Protobuf; required if `feed.reads_avro_or_protobuf`.
    """
    name = feed.fingerprint, payload
    found = _compiled.get(name)
    if found is None or not feed.fingerprint:
        if len(_compiled) >= _MOST_COMPILED:
            _compiled.clear()
        found = _compiled[name] = CompiledFeed.of(feed, None if payload is None else PayloadReader(payload))
    return found
