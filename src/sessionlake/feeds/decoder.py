"""The interface of decoder classes: Python code that reads the messages of a feed for which paths are not enough.

```python
from collections.abc import Iterable
from sessionlake.feeds.decoder import Event, Message, Put

class Meters:
    def decode(self, message: Message) -> Iterable[Event]:
        found = message.json()
        rows = [Put((name,), {"value": value}) for name, value in found["values"].items()]
        yield Event(session=found["meter"], rows=rows)
```

The feed names the class: `decoder: "my_module:Meters"`. It declares `columns` and `key`, but no `messages`.

A decoder is created once and without arguments. It must be pure: the same message always gives the same events, without
a clock, files, the network, or anything remembered from another message. It may run in any number of workers.

`feeds.decode` checks everything that a decoder yields. If anything is wrong, the decoder raises an exception, or it
uses more than 10 s of CPU time for a message, the message goes to quarantine with reason `bad_value`.

A class attribute `has_chains = True` allows events with a `chain`. `needs_rows = True` allows events with a `scope` and
rows with `expect`: silver then keeps the rows of sessions in memory. Such a class may have two more methods, which see
the rows that the session has before a change. They must be pure, too. If they raise an exception, use more than 10 s of
CPU time, or return anything that does not fit its column or changes a key, that is a violation `presence`: `complete`
then replaces nothing, and a snapshot removes no rows.

- `complete(values, find) -> Mapping`: values that replace some of those that a message sets in a row. `values` are the
  row's values by column, as the table stores them (a variant as JSON text). A snapshot sets all columns: in the first
  change of a row, those that the event leaves out are None. `find(key)` returns the row with these values in the feed's
  key columns as it is before the change, by column, or None.
- `narrow(scope, find) -> Mapping | None`: the scope with which a snapshot is applied, given the one that the event has.
  `{}` stands for all rows, None for no rows. Values are what JSON would have for the column.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Any, Protocol

import msgspec

from sessionlake.feeds.feed import EventKind
from sessionlake.protocol.jsontext import InvalidJsonError
from sessionlake.protocol.reasons import Reason

Key = tuple[Any, ...] | Mapping[str, Any]
"""A row's values in the feed's key columns: in the order of the feed's `key`, or by column, among others."""


NO_SCOPE: Mapping[str, Any] = MappingProxyType({})
"""The scope of an event that has none."""


class PayloadError(Exception):
    """The value of a message is missing, or is not of the format that a decoder expects.

    Attributes:
        reason: Why the message goes to quarantine, such as NOT_JSON or NOT_PROTOBUF.
    """

    def __init__(self, reason: Reason) -> None:
        super().__init__(reason)
        self.reason = reason


class Message(msgspec.Struct, frozen=True, gc=False):
    """A Kafka message as a decoder receives it.

    Attributes:
        topic: Topic of the message.
        partition: Number of the partition.
        offset: Kafka offset.
        timestamp: Kafka timestamp in ms since 1970; -1 if the producer set none.
        key: Key; None if the message has none.
        value: Value; None for a tombstone.
        headers: Values by name. If a name occurs several times, the last value.
        key_columns: Names of the feed's key columns.
        columns: Names of all columns of the feed.
    """

    topic: str
    partition: int
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: Mapping[str, bytes | None]
    key_columns: tuple[str, ...]
    columns: tuple[str, ...]
    _parse_json: Callable[[bytes], Any]
    _parse_payload: Callable[[bytes], Any]

    def json(self) -> Any:
        """Parses the value as JSON. Numbers with a point or an exponent become exact decimals.

        Raises:
            PayloadError: The value is missing or is not JSON. The message then goes to quarantine with the reason that
                fits.
        """
        value = self.value
        if value is None:
            raise PayloadError(Reason.TOMBSTONE)
        try:
            return self._parse_json(value)
        except InvalidJsonError as error:
            raise PayloadError(error.reason) from None

    def payload(self) -> Any:
        """Parses the value in the feed's `format`, as the paths of other feeds would read it.

        Raises:
            PayloadError: The value is missing or is not of this format. The message then goes to quarantine with the
                reason that fits.
        """
        value = self.value
        if value is None:
            raise PayloadError(Reason.TOMBSTONE)
        try:
            return self._parse_payload(value)
        except InvalidJsonError as error:
            raise PayloadError(error.reason) from None

    def key_text(self) -> str:
        """Returns the key as text, "" if the message has none. Bytes that are not UTF-8 become U+FFFD."""
        return (self.key or b"").decode(errors="replace")


def decode_utf8_or_none(value: bytes | None) -> str | None:
    """Returns a key or header as text; None if there is none, or if it is not UTF-8."""
    try:
        return None if value is None else value.decode()
    except UnicodeDecodeError:
        return None


class Put(msgspec.Struct, frozen=True, gc=False):
    """Inserts a row, or changes some columns of it. A new row has null in the columns that the message does not set.

    A value is what JSON would have for the column, also with the column's `from`. It may be Python's type for it: a
    `Decimal`, an aware `datetime` for a timestamp and a naive one for a timestamp_ntz, a `date`, or bytes.

    Attributes:
        key: The row's key.
        values: Values by column. Key columns may be left out, but must not differ from the key. Values of undeclared
            columns are stored in `_rescued`, or dropped if the feed has `rescue: false`.
        expect: `present` or `absent` if the table must have the row before, or must not have it.
    """

    key: Key
    values: Mapping[str, Any]
    expect: str | None = None


class Delete(msgspec.Struct, frozen=True, gc=False):
    """Deletes the row with this key. Without such a row, nothing happens.

    Attributes:
        key: The row's key.
        expect: `present` or `absent` if the table must have the row before, or must not have it.
    """

    key: Key
    expect: str | None = None


class Event(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The effect of a message on one session. A message has at most one event for each session.

    It covers the interval `(after, seq]` of the session's order. There is a gap if `after` is above the session's last
    seq, and it is a duplicate if `seq` is not above it.

    Attributes:
        session: The session id: a text, or several texts that are joined to a JSON array. None: the feed's `session`.
        kind: `snapshot`, `update`, `heartbeat` or `end`; `ignore` if it only advances a chain.
        ts: Event time in ms since 1970; None for the Kafka timestamp.
        seq: Last seq that the message covers. None: the Kafka offset if the feed has `order: arrival`, which is the
            default; with `order: decoder`, the message has no place in the order.
        after: The seq after which the message follows, usually `seq - 1`. None: it follows any seq.
        is_link: True if there is also a gap if `after` is below the last seq.
        restart: True if the order starts again at this snapshot.
        rows: `Put` and `Delete`, in the order in which they apply.
        scope: For a snapshot: values by column. Only rows with these values are replaced; empty replaces all rows.
        chain: Name of the chain of sessions that share one sequence of seqs; None if the session has its own. Events
            of a message in the same chain must have the same seq.
        sent: The checksum in the message, if the feed has a `check`.
    """

    session: str | tuple[str, ...] | None = None
    kind: EventKind | str = EventKind.UPDATE
    ts: int | None = None
    seq: int | None = None
    after: int | None = None
    is_link: bool = False
    restart: bool = False
    rows: Iterable[Put | Delete] = ()
    scope: Mapping[str, Any] = NO_SCOPE
    chain: str | None = None
    sent: Any = None


class Decoder(Protocol):
    """What a decoder class implements."""

    def decode(self, message: Message) -> Iterable[Event]:
        """Yields the events of a message; none if the message is ignored."""
