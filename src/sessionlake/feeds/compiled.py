"""Reads many messages fast, by Python code that is generated for a feed. The interpreter reads all unusual messages.

The code is a function with one loop: it decodes a value, tries the rules in order, and appends to `EventLists`. Texts
of the configuration enter the code only through `repr` or as values, so they cannot become code. If a message has
anything unusual, such as a wrong type or a missing part, its events are removed again and `feeds.interpret` reads it. A
test compares both readers on random messages.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from sessionlake.feeds.code import NoCodeError
from sessionlake.feeds.decode_many import ManyReader
from sessionlake.feeds.events import Decoded, Refusal
from sessionlake.feeds.feed import Feed, Rule
from sessionlake.feeds.lists import EventLists
from sessionlake.feeds.payload import PayloadReader
from sessionlake.feeds.reader import MAX_BYTES, KafkaRecord, make_message, read
from sessionlake.feeds.writer import FeedWriter
from sessionlake.protocol.payload import Payload


@dataclass
class Compiled:
    """A feed with the function that is generated for it.

    Attributes:
        feed: The feed.
        source: Source text of the function; None if none could be generated and `feeds.reader` reads all messages.
        slow: Number of messages that the interpreter has read so far.
    """

    feed: Feed
    source: str | None
    _function: Callable[..., None] | None
    _payload: PayloadReader | None
    slow: int = 0

    @classmethod
    def of(cls, feed: Feed, payload: PayloadReader | None = None) -> Compiled:
        """Generates and compiles the function for a feed.

        Args:
            feed: The feed.
            payload: Reads Avro and Protobuf; required if `feed.needs_payload`.
        """
        if feed.decoder is not None:
            many = ManyReader(feed, feed.decoder, lambda record: make_message(feed, record, payload))
            return cls(feed, None, many, payload)
        try:
            writer = FeedWriter(feed, payload)
            source = writer.function()
        except NoCodeError:
            return cls(feed, None, None, payload)
        names = writer.names
        exec(compile(source, f"<feed {feed.name}>", "exec"), names)  # noqa: S102 - users' texts enter only by `repr`
        return cls(feed, source, names["read_all"], payload)

    def read(self, records: Sequence[KafkaRecord], *, max_bytes: int = MAX_BYTES) -> EventLists:
        """Reads messages. The result for each message is the same as that of `reader.read`."""
        out = EventLists.of(self.feed)
        unusual = [*range(len(records))] if self._function is None else []
        if self._function is not None:
            rules: list[Rule] = []
            self._function(records, max_bytes, out, unusual, rules)
            _fill_constants(out, rules)
        self.slow += len(unusual)
        for number in unusual:
            out.add(self.feed, number, self._read_slowly(records[number], max_bytes))
        return out

    def _read_slowly(self, record: KafkaRecord, max_bytes: int) -> Decoded | Refusal:
        return read(self.feed, record, max_bytes=max_bytes, payload=self._payload)


def _fill_constants(out: EventLists, rules: list[Rule]) -> None:
    """Adds the fields that depend only on the rule of an event, or are the same for all events and rows."""
    out.kind += [rule.kind.value for rule in rules]
    out.restart += [rule.restart for rule in rules]
    out.chain += [None] * (len(out.message) - len(out.chain))
    out.scope += [_NO_SCOPE] * (len(out.message) - len(out.scope))
    out.rescued += [None] * (len(out.row_id) - len(out.rescued))
    out.sent += [None] * (len(out.message) - len(out.sent))
    out.after += [None] * (len(out.message) - len(out.after))
    out.deletes += [False] * (len(out.row_id) - len(out.deletes))
    out.expect += [None] * (len(out.row_id) - len(out.expect))


_NO_SCOPE: dict[str, Any] = {}
_MOST_COMPILED = 64
_compiled: dict[tuple[str, Payload | None], Compiled] = {}


def compiled_reader(feed: Feed, payload: Payload | None = None) -> Compiled:
    """Returns the compiled form of a feed. A process compiles each feed once.

    Args:
        feed: The feed.
        payload: The schemas of Avro and Protobuf; required if `feed.needs_payload`.
    """
    name = feed.fingerprint, payload
    found = _compiled.get(name)
    if found is None or not feed.fingerprint:
        if len(_compiled) >= _MOST_COMPILED:
            _compiled.clear()
        found = _compiled[name] = Compiled.of(feed, None if payload is None else PayloadReader(payload))
    return found
