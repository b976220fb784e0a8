"""Reads a message by the rules of a feed, one path at a time. This slow reader defines what a feed means.

The fast reader in `feeds.compiled` must give the same result for every message.
"""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any, cast

from sessionlake.feeds.events import Decoded, Delete, Event, Put, Refusal
from sessionlake.feeds.feed import Body, Condition, Feed, Kind, Order, Ordering, Presence, Rows, Rule, Time
from sessionlake.feeds.numbers import Bounds, number_of
from sessionlake.feeds.parts import RowList, join_parts
from sessionlake.feeds.paths import MISSING, Constant, Element, Path, Place, find, find_elements
from sessionlake.feeds.row_ids import create_row_id
from sessionlake.feeds.times import convert_to_milliseconds
from sessionlake.feeds.values import FeedColumn, convert_constant, format_json
from sessionlake.protocol.message import INT64_MAX, INT64_MIN, MAX_ID_BYTES, MAX_KEY_BYTES
from sessionlake.protocol.reasons import Reason

_INTEGER = re.compile(r"-?\d{1,19}")
_SHOWN = 60
"""Number of characters of a faulty value that the text of a refusal shows."""


class RefusedError(Exception):
    """The message goes to quarantine. The readers of a feed catch the error and return its `refusal`."""

    def __init__(self, reason: Reason, path: str, why: str) -> None:
        super().__init__(why)
        self.refusal = Refusal(reason, path, why)


def interpret(feed: Feed, place: Place) -> Decoded | Refusal:
    """Reads a message by the rules of a feed.

    Args:
        feed: The feed of the message's topic.
        place: The message with its decoded value.

    Returns:
        The events of the message. If any part of it is faulty, no events but the fault.
    """
    try:
        return _read_message(feed, place)
    except RefusedError as refused:
        return refused.refusal


def _read_message(feed: Feed, place: Place) -> Decoded:
    rules, split = _choose_rules(feed, place)
    if split is None:
        return Decoded((rules[0].number,), tuple(_read_events(feed, rules[0], place)))
    return _read_parts(feed, rules, split, place)


def _choose_rules(feed: Feed, place: Place) -> tuple[list[Rule], Path | None]:
    """Returns the rules that read the message, and the path of its parts; None if it is not split."""
    candidates = [
        rule for rule in feed.rules if all(_meets_condition(one, place) for one in rule.when if not one.tests_part)
    ]
    if not candidates:
        is_tombstone = place.value is MISSING
        reason = Reason.TOMBSTONE if is_tombstone else Reason.NO_RULE
        raise RefusedError(reason, "", f"no rule takes {describe_value(place.value)}")
    split = candidates[0].split
    return [rule for rule in candidates if rule.split == split], split


def _read_parts(feed: Feed, rules: list[Rule], split: Path, place: Place) -> Decoded:
    """Reads each part of a message by the first rule whose conditions it meets.

    Parts of the same session are joined into one event.
    """
    events: dict[tuple[str, str | None], Event] = {}
    numbers = set()
    for rule, found in _read_each_part(feed, rules, split, place):
        numbers.add(rule.number)
        for one in found:
            event = replace(one, rows=cast("Any", RowList(one.rows)))
            name = event.session, event.chain if event.kind is Kind.IGNORE else None
            before = events.get(name)
            try:
                joined = event if before is None else join_parts(before, event, feed.order.modulo)
            except ValueError as error:
                raise RefusedError(Reason.BAD_VALUE, split.text, str(error)) from None
            events[name] = joined
    joined_events = tuple(replace(event, rows=tuple(event.rows)) for event in events.values())
    for event in joined_events:
        refuse_repeats(feed, event)
    if several := find_chain_of_several_seqs(joined_events):
        raise RefusedError(Reason.BAD_VALUE, split.text, f"the parts have several numbers of the chain {several}")
    return Decoded(tuple(sorted(numbers)), joined_events)


def _read_each_part(
    feed: Feed, rules: list[Rule], split: Path, place: Place
) -> Iterator[tuple[Rule, tuple[Event, ...]]]:
    """Yields the rule of each part, and its event; no event if it is ignored."""
    found = find_elements(split, place)
    if found is None:
        raise RefusedError(Reason.BAD_VALUE, split.text, "there is no array")
    for element in found:
        part = _create_place_of_element(place, element)
        rule = next((one for one in rules if all(_meets_condition(c, part) for c in one.when if c.tests_part)), None)
        if rule is None:
            raise RefusedError(Reason.NO_RULE, split.text, f"no rule takes the part {describe_value(element.value)}")
        yield rule, tuple(_read_events(feed, rule, part))


def find_sessions_of_parts(feed: Feed, place: Place) -> tuple[Path | None, list[str]]:
    """Returns the path of a message's parts, and the session id of each; "" for an ignored part.

    The path is None if the message is not split.

    Raises:
        RefusedError: The message has a fault.
    """
    rules, split = _choose_rules(feed, place)
    if split is None:
        return None, []
    parts = _read_each_part(feed, rules, split, place)
    return split, ["".join(event.session for event in events) for _, events in parts]


def _read_events(feed: Feed, rule: Rule, place: Place) -> Iterator[Event]:
    """Yields the event of a message or part.

    An ignored one yields nothing, or an event without a session if it advances a chain.
    """
    order = rule.order or feed.order
    if rule.kind is Kind.IGNORE:
        if order.chain is not None:
            seq, after = _read_interval(order, place)
            yield Event("", Kind.IGNORE, 0, seq, after, order.kind is Ordering.LINK, _read_text(order.chain, place))
        return
    seq, after = _read_interval(order, place)
    checksum = feed.checksum_path(rule)
    sent = MISSING if checksum is None else find(checksum, place)
    event = Event(
        session=read_session(rule.session or feed.session, place),
        kind=rule.kind,
        ts=_read_time(rule.time or feed.time, place),
        seq=seq,
        after=None if rule.restart else after,
        is_link=order.kind is Ordering.LINK and not rule.restart,
        chain=None if order.chain is None else _read_text(order.chain, place),
        restart=rule.restart,
        rows=tuple(row for part in rule.rows for row in _read_rows(feed, part, place)),
        scope={column.name: _require_scope_value(column, path, place) for column, path in rule.scope},
        sent=None if sent is MISSING else sent,
    )
    if rule.split is None:
        refuse_repeats(feed, event)
    yield event


def refuse_repeats(feed: Feed, event: Event) -> None:
    """Raises RefusedError if the event has the same row key twice, and the feed refuses such messages."""
    keys = [row.key for row in event.rows]
    if feed.refuse_repeats and len(set(keys)) != len(keys):
        repeated = next(key for number, key in enumerate(keys) if key in keys[:number])
        raise RefusedError(Reason.DUPLICATE_ROW_ID, "", f"the key {create_row_id(repeated)} is there twice")


def find_chain_of_several_seqs(events: Iterable[Event]) -> str | None:
    """Returns the name of a chain in which one message has several seqs, which is a fault; None if there is none."""
    seqs: dict[str, int | None] = {}
    return next(
        (one.chain for one in events if one.chain is not None and seqs.setdefault(one.chain, one.seq) != one.seq), None
    )


def _meets_condition(condition: Condition, place: Place) -> bool:
    if condition.path is None:
        return isinstance(condition.wanted, tuple) and _get_body_type(place.value) in condition.wanted
    value = find(condition.path, place)
    if isinstance(condition.wanted, Presence):
        return (value is MISSING) == (condition.wanted is Presence.ABSENT)
    if isinstance(condition.wanted, Bounds):
        return condition.wanted.include(value)
    return any(_equals_wanted(value, one) for one in condition.wanted)


def _get_body_type(value: Any) -> Body | None:
    """Returns the outermost type of a decoded value; None for numbers, booleans and null."""
    if value is MISSING:
        return Body.TOMBSTONE
    bodies: tuple[tuple[type, Body], ...] = ((list, Body.ARRAY), (dict, Body.OBJECT), (str, Body.TEXT))
    return next((body for kind, body in bodies if isinstance(value, kind)), None)


def _equals_wanted(value: Any, wanted: Any) -> bool:
    """Returns True if a message's value equals one of the configuration. `1` equals `1.0`, but not `true`."""
    if isinstance(value, Constant):
        value = value.text
    value = number_of(value)
    return isinstance(value, bool) == isinstance(wanted, bool) and bool(value == wanted)


def _create_place_of_element(place: Place, element: Element) -> Place:
    return replace(place, element=element.value, parent=element.parent)


def _read_rows(feed: Feed, row_rule: Rows, place: Place) -> Iterator[Put | Delete]:
    """Yields the changes of rows that one entry of a rule's `rows` reads from a message."""
    for element in _find_sources(row_rule, place):
        at = _create_place_of_element(place, element)
        raw = [(column, path.text, find(path, at)) for column, path in row_rule.values]
        if row_rule.by_name:
            if not isinstance(element.value, dict):
                where = row_rule.source.text if row_rule.source else ""
                raise RefusedError(Reason.BAD_VALUE, where, f"{describe_value(element.value)} has no fields")
            raw += [(column, f".{column.name}", element.value.get(column.name, MISSING)) for column in row_rule.by_name]
        values: dict[str, Any] = {}
        for column, where, value in raw:
            if value is MISSING or _is_unavailable(feed, value):
                if row_rule.absent_is_null:
                    values[column.name] = None
            else:
                values[column.name] = _convert_value(column, where, value)
        key = tuple(_require_key_value(column, raw, values) for column in feed.key)
        row_id = create_row_id(key)
        if not 1 <= len(row_id.encode()) <= MAX_ID_BYTES:
            why = f"the key has {len(row_id.encode())} bytes, 1 to {MAX_ID_BYTES} may be"
            raise RefusedError(Reason.BAD_ROW_ID, "", why)
        if _is_deleted(row_rule, values):
            yield Delete(key, row_id, row_rule.expect)
        else:
            yield Put(key, row_id, values, _rescue_undeclared(feed, row_rule, element.value), row_rule.expect)


def _is_unavailable(feed: Feed, value: Any) -> bool:
    """Returns True for a value that means "not sent", and for an array that has only such a value.

    A constant of the configuration never means that, because the producer does not send it.
    """
    if isinstance(value, Constant):
        return False
    only = value[0] if isinstance(value, list) and len(value) == 1 else value
    return any(_equals_wanted(only, one) for one in feed.unavailable)


def _find_sources(row_rule: Rows, place: Place) -> list[Element]:
    """Returns the elements of the message from which rows are read, each with its parent."""
    if row_rule.source is None:
        return [Element(place.value if place.element is MISSING else place.element, place.parent)]
    if not row_rule.each:
        value = find(row_rule.source, place)
        if value is MISSING or value is None:
            raise RefusedError(Reason.BAD_PATH, row_rule.source.text, "there is no row")
        return [Element(value, place.value)]
    found = find_elements(row_rule.source, place)
    if found is None:
        raise RefusedError(Reason.BAD_VALUE, row_rule.source.text, "there is no array")
    return found


def _require_key_value(column: FeedColumn, raw: list[tuple[FeedColumn, str, Any]], values: dict[str, Any]) -> Any:
    value = values.get(column.name)
    if value is None:
        where = next((where for one, where, _ in raw if one is column), "")
        raise RefusedError(Reason.BAD_PATH, where, f"the key's column {column.name} is missing or null")
    return value


def _convert_value(column: FeedColumn, where: str, value: Any) -> Any:
    """Converts a value to the column's type. None is kept. `where` is its path, for the error."""
    if value is None:
        return None
    try:
        return convert_constant(value, column) if isinstance(value, Constant) else column.convert(value)
    except (ValueError, RecursionError) as error:
        why = f"column {column.name} is {column.sql}, found {describe_value(value)}: {error}"
        raise RefusedError(Reason.BAD_VALUE, where, why) from None


def _require_scope_value(column: FeedColumn, path: Path, place: Place) -> Any:
    """Returns the value of a scope's column. Raises RefusedError if it is missing or does not fit."""
    value = find(path, place)
    if value is MISSING:
        raise RefusedError(Reason.BAD_PATH, path.text, f"the scope's column {column.name} is missing")
    return _convert_value(column, path.text, value)


def _is_deleted(row_rule: Rows, values: dict[str, Any]) -> bool:
    """Returns True if the values of a row say that it is deleted."""
    if isinstance(row_rule.delete, bool):
        return row_rule.delete
    return all(column.name in values and values[column.name] == value for column, value in row_rule.delete)


def _rescue_undeclared(feed: Feed, row_rule: Rows, element: Any) -> str | None:
    """Returns the undeclared fields of an element as JSON text; None if there are none, or they are not stored."""
    if not row_rule.rescue or not isinstance(element, dict):
        return None
    extra = {name: value for name, value in element.items() if name not in feed.columns}
    return format_json(extra, sort_names=True) if extra else None


def format_session_id(texts: Sequence[str]) -> str | None:
    """Returns the session id made of one or several texts; None if it is too long or has control characters.

    One text is the id itself. Several texts give a JSON array.
    """
    session = texts[0] if len(texts) == 1 else json.dumps(texts, ensure_ascii=False, separators=(",", ":"))
    fits = 1 <= len(session.encode()) <= MAX_KEY_BYTES and not any(unicodedata.category(c) == "Cc" for c in session)
    return session if fits else None


def read_session(paths: tuple[Path, ...], place: Place) -> str:
    """Returns the session id made of the texts at some paths. Raises RefusedError if there is no valid one."""
    texts = [_read_text(path, place) for path in paths]
    session = format_session_id(texts)
    if session is None:
        why = f"a session's id has 1 to {MAX_KEY_BYTES} bytes and no control characters, found {describe_value(texts)}"
        raise RefusedError(Reason.BAD_VALUE, ", ".join(path.text for path in paths), why)
    return session


def _read_text(path: Path, place: Place) -> str:
    """Returns the value at a path as text. Only texts, whole numbers, true and false are accepted."""
    value = find(path, place)
    if value is MISSING or value is None:
        raise RefusedError(Reason.BAD_PATH, path.text, "it is missing or null")
    if isinstance(value, Constant):
        return value.text
    if isinstance(value, str):
        return str(value)
    if isinstance(value, bool | int):
        return format_json(value)
    raise RefusedError(Reason.BAD_VALUE, path.text, f"{describe_value(value)} is no text or whole number")


def _read_time(time: Time, place: Place) -> int:
    """Returns the event time in ms since 1970, rounded down."""
    if time.path is None:
        return place.timestamp
    value = find(time.path, place)
    if value is MISSING or value is None:
        if time.or_kafka:
            return place.timestamp
        raise RefusedError(Reason.BAD_PATH, time.path.text, "the time is missing or null")
    try:
        found = convert_to_milliseconds(value, time.how, from_text=time.from_text)
    except (ValueError, OverflowError) as error:
        raise RefusedError(Reason.BAD_VALUE, time.path.text, f"the time is {describe_value(value)}: {error}") from None
    if not INT64_MIN <= found <= INT64_MAX:
        raise RefusedError(Reason.BAD_VALUE, time.path.text, f"the time {describe_value(value)} is beyond 64 bits")
    return found


def _read_interval(order: Order, place: Place) -> tuple[int | None, int | None]:
    """Returns seq and after. The seq is None if the message has none, and after if it may follow any seq."""
    if order.kind is Ordering.NONE:
        return None, None
    if order.kind is Ordering.ARRIVAL or order.seq is None:
        return place.offset, None
    seq = _read_number(order.seq, place)
    if seq < 0:
        raise RefusedError(Reason.BAD_VALUE, order.seq.text, f"{seq} is no seq, which is 0 or more")
    match order.kind:
        case Ordering.STEP:
            return seq, seq - 1
        case Ordering.LINK if order.other is not None:
            return seq, _read_number(order.other, place)
        case Ordering.RANGE if order.other is not None:
            return seq, _read_number(order.other, place) - 1
        case _:
            return seq, None


def _read_number(path: Path, place: Place) -> int:
    """Returns the signed 64-bit integer at a path, which may be written as a text."""
    value = number_of(find(path, place))
    if value is MISSING or value is None:
        raise RefusedError(Reason.BAD_PATH, path.text, "the order's number is missing or null")
    if isinstance(value, str) and _INTEGER.fullmatch(value):
        value = int(value)
    if type(value) is not int or not INT64_MIN < value <= INT64_MAX:
        raise RefusedError(Reason.BAD_VALUE, path.text, f"{describe_value(value)} is no whole number of 64 bits")
    return value


def describe_value(value: Any) -> str:
    """Returns a value as it is shown in an error, cut to 60 characters."""
    if value is MISSING:
        return "a tombstone"
    text = value.text if isinstance(value, Constant) else format_json(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"
