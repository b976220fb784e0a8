"""Reads many messages fast, by Python code that is generated for a feed. `feeds.interpret` reads all unusual messages.

The code is a function with one loop: it decodes a value, tries the rules in order, and appends to `ColumnarEvents`.
Texts of the configuration enter the code only through `repr` or as values, so they cannot become code. If a message has
anything unusual, such as a wrong type or a missing part, its events are removed again and the next reader reads it. The
readers of a feed are a function that decodes only what the feed declares; if the feed stores undeclared fields, a
function that decodes all; and `feeds.interpret`. A test compares them on random messages.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from sessionlake.feeds.bulk import convert_times_and_find_invalid, find_unusual_decimal_texts
from sessionlake.feeds.caches import RowIdCache
from sessionlake.feeds.code import (
    CodeGenerationNotPossibleError,
    is_decimal_sent_as_text,
    list_columns_that_mark_deletes,
)
from sessionlake.feeds.decode_many import DecoderBatchReader
from sessionlake.feeds.feed import Feed
from sessionlake.feeds.lists import NO_SCOPE, ColumnarEvents, list_event_fields_fixed_by_rule
from sessionlake.feeds.payload import PayloadReader
from sessionlake.feeds.reader import MAX_BYTES, KafkaRecordColumns, list_arguments_same_for_all_messages, read_record
from sessionlake.feeds.shapes import JsonShape
from sessionlake.feeds.writer import FeedCodeWriter
from sessionlake.protocol.payload import PayloadFormat, PayloadFormatAndSchemas


@dataclass
class CompiledFeedReader:
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
    _row_ids: Sequence[RowIdCache] = ()
    slow: int = 0

    @classmethod
    def compile_feed(cls, feed: Feed, payload: PayloadReader | None = None) -> CompiledFeedReader:
        """Generates and compiles the functions for a feed.

        Args:
            feed: The feed.
            payload: Reads Avro and Protobuf; required if `feed.reads_avro_or_protobuf`.
        """
        if feed.decoder is not None:
            many = DecoderBatchReader(feed, feed.decoder, list_arguments_same_for_all_messages(feed, payload))
            return cls(feed, (), (many,), payload)
        try:
            writers = [_create_code_writer(feed, payload, stores_undeclared=False)]
        except CodeGenerationNotPossibleError:
            return cls(feed, (), (), payload)
        if any(part.rescue for rule in feed.rules for part in rule.rows):
            writers.append(_create_code_writer(feed, payload, stores_undeclared=True))
        sources = tuple(writer.generate_function_code() for writer in writers)
        for source, writer in zip(sources, writers, strict=True):
            code = compile(source, f"<feed {feed.name}>", "exec")
            exec(code, writer.names)  # noqa: S102 - users' texts enter only by `repr`
        functions = tuple(writer.names["read_all"] for writer in writers)
        return cls(feed, sources, functions, payload, [one for writer in writers for one in writer.row_ids])

    def read_records(self, records: KafkaRecordColumns, *, max_bytes: int = MAX_BYTES) -> ColumnarEvents:
        """Returns the events and faults of messages: for each message the same as `feeds.reader.read` returns."""
        out = ColumnarEvents.create_empty(self.feed)
        unusual, rules = [*range(len(records.value))], list[int]()
        for function in self._functions:
            numbers, unusual = unusual, []
            some = records if len(numbers) == len(records.value) else records.select_records(numbers)
            _fill_missing_rescued_with_none(out)
            function(numbers, some, max_bytes, out, unusual, rules)
        if self._functions:
            if self.sources:
                out.rows[:] = np.diff(np.array(out.rows, np.int64), prepend=0).tolist()
            _fill_fields_fixed_by_rule(out, self.feed, rules)
            unusual += self._convert_remaining_texts(out)
        self.slow += len(unusual)
        for number in unusual:
            record = records.get_record(number)
            out.add_message_result(
                self.feed, number, read_record(self.feed, record, max_bytes=max_bytes, payload=self._payload)
            )
        return out

    def _convert_remaining_texts(self, events: ColumnarEvents) -> list[int]:
        """Converts values that the generated code has added unchanged: texts of times, and of unusual decimals.

        Returns:
            The indices of messages that the slow reader `feeds.interpret` must read. Their events are removed.
        """
        feed, bad = self.feed, set()
        times = [rule.time or feed.time for rule in feed.rules]
        if any(time.path is not None and time.how == "iso" for time in times):
            events.ts[:], wrong = convert_times_and_find_invalid(events.ts)
            bad |= {events.message[number] for number in wrong}
        compared, bad_rows = list_columns_that_mark_deletes(feed), list[int]()
        for column, cells in zip(feed.columns.values(), events.values, strict=True):
            if not is_decimal_sent_as_text(column) or (
                column in feed.key and not self._has_keys_with_unusual_decimals()
            ):
                continue
            for row in find_unusual_decimal_texts(cells, column):
                try:
                    cells[row] = column.convert(cells[row])
                except ValueError:
                    bad_rows.append(row)
                if column.name in compared:
                    bad_rows.append(row)
        bad |= events.find_message_indices_of_rows(bad_rows)
        events.remove_events_of_messages(bad)
        return sorted(bad)

    def _has_keys_with_unusual_decimals(self) -> bool:
        return any(one.has_unusual_decimals for one in self._row_ids)


def _create_code_writer(feed: Feed, payload: PayloadReader | None, *, stores_undeclared: bool) -> FeedCodeWriter:
    """Returns a writer for the code that reads a feed, which decodes only those parts of JSON that it uses."""
    message = JsonShape()
    FeedCodeWriter(
        feed, payload, message, stores_undeclared=stores_undeclared
    ).generate_function_code()  # finds out which parts of a message are read
    kind = message.create_msgspec_type() if feed.format is PayloadFormat.JSON else Any
    return FeedCodeWriter(feed, payload, message, kind, stores_undeclared=stores_undeclared)


def _fill_fields_fixed_by_rule(events: ColumnarEvents, feed: Feed, rule_numbers: list[int]) -> None:
    """Adds the fields that depend only on the rule of an event, or are the same for all events and rows.

    `rule_numbers` has the number of the rule of each event.
    """
    constants = {rule.number: list_event_fields_fixed_by_rule(feed, rule) for rule in feed.rules}
    for name in ("kind", "restart", "is_link"):
        found = {number: constants[number][name] for number in set(rule_numbers)}
        is_same = len(set(found.values())) == 1
        getattr(events, name).extend(
            [*found.values()][:1] * len(rule_numbers) if is_same else map(found.__getitem__, rule_numbers)
        )
    events.chain += [None] * (len(events.message) - len(events.chain))
    events.scope += [NO_SCOPE] * (len(events.message) - len(events.scope))
    _fill_missing_rescued_with_none(events)
    events.sent += [None] * (len(events.message) - len(events.sent))
    events.after += [None] * (len(events.message) - len(events.after))
    events.deletes += [False] * (len(events.row_id) - len(events.deletes))
    events.expect += [None] * (len(events.row_id) - len(events.expect))


def _fill_missing_rescued_with_none(events: ColumnarEvents) -> None:
    """Adds None to `events.rescued` for rows read by a function that reads no row with undeclared fields."""
    events.rescued += [None] * (len(events.row_id) - len(events.rescued))


_MOST_COMPILED = 64
_compiled: dict[tuple[str, PayloadFormatAndSchemas | None], CompiledFeedReader] = {}


def get_compiled_feed_reader(feed: Feed, payload: PayloadFormatAndSchemas | None = None) -> CompiledFeedReader:
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
        found = _compiled[name] = CompiledFeedReader.compile_feed(
            feed, None if payload is None else PayloadReader(payload)
        )
    return found
