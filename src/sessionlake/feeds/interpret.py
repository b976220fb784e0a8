"""Reads a message by the rules of a feed, one path at a time. This slow reader defines what a feed means.

The fast reader in `feeds.compiled` must give the same result for every message.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any, cast

from sessionlake.feeds.events import DecodedMessage, MessageRefusal, RowDelete, RowUpsert, SessionEvent
from sessionlake.feeds.feed import (
    EventKind,
    Feed,
    MessageBodyType,
    MessageRule,
    OrderMethod,
    PresentOrAbsent,
    RowMapping,
    RuleCondition,
)
from sessionlake.feeds.message_fields import (
    RefusedMessageError,
    describe_value_for_error,
    read_event_time_ms,
    read_seq_interval,
    read_session_id,
    read_text_at_path,
)
from sessionlake.feeds.numbers import NumberRange, convert_number_text
from sessionlake.feeds.parts import JoinedRowList, join_events_of_parts
from sessionlake.feeds.paths import (
    MISSING,
    FeedPath,
    MessageElement,
    PathConstant,
    PathContext,
    find_elements_at_path,
    find_value_at_path,
)
from sessionlake.feeds.row_ids import create_row_id
from sessionlake.feeds.values import FeedColumn, convert_constant, format_json
from sessionlake.protocol.message import MAX_ID_BYTES
from sessionlake.protocol.reasons import Reason


def read_message_by_rules(feed: Feed, context: PathContext) -> DecodedMessage | MessageRefusal:
    """Reads a message by the rules of a feed.

    Args:
        feed: The feed of the message's topic.
        context: The message with its decoded value.

    Returns:
        The events of the message. If any part of it is faulty, no events but the fault.
    """
    try:
        return _read_message_or_raise(feed, context)
    except RefusedMessageError as refused:
        return refused.refusal


def _read_message_or_raise(feed: Feed, context: PathContext) -> DecodedMessage:
    rules, split = _choose_rules_and_split_path(feed, context)
    if split is None:
        return DecodedMessage((rules[0].number,), tuple(_read_events_by_rule(feed, rules[0], context)))
    return _read_split_message(feed, rules, split, context)


def _choose_rules_and_split_path(feed: Feed, context: PathContext) -> tuple[list[MessageRule], FeedPath | None]:
    """Returns the rules that read the message, and the path of its parts; None if it is not split."""
    candidates = [
        rule
        for rule in feed.rules
        if all(_meets_condition(one, context) for one in rule.when if not one.has_condition_on_message_part)
    ]
    if not candidates:
        is_tombstone = context.value is MISSING
        reason = Reason.TOMBSTONE if is_tombstone else Reason.NO_RULE
        raise RefusedMessageError(reason, "", f"no rule takes {describe_value_for_error(context.value)}")
    split = candidates[0].split
    return [rule for rule in candidates if rule.split == split], split


def _read_split_message(
    feed: Feed, rules: list[MessageRule], split_path: FeedPath, context: PathContext
) -> DecodedMessage:
    """Reads each part of a message by the first rule whose conditions it meets.

    Parts of the same session are joined into one event.
    """
    events: dict[tuple[str, str | None], SessionEvent] = {}
    numbers = set()
    for rule, found in _read_each_message_part(feed, rules, split_path, context):
        numbers.add(rule.number)
        for one in found:
            event = replace(one, rows=cast("Any", JoinedRowList(one.rows)))
            name = event.session, event.chain if event.kind is EventKind.IGNORE else None
            before = events.get(name)
            try:
                joined = event if before is None else join_events_of_parts(before, event, feed.order.modulo)
            except ValueError as error:
                raise RefusedMessageError(Reason.BAD_VALUE, split_path.text, str(error)) from None
            events[name] = joined
    joined_events = tuple(replace(event, rows=tuple(event.rows)) for event in events.values())
    for event in joined_events:
        refuse_repeated_row_keys(feed, event)
    if several := find_chain_with_several_seqs(joined_events):
        raise RefusedMessageError(
            Reason.BAD_VALUE, split_path.text, f"the parts have several numbers of the chain {several}"
        )
    return DecodedMessage(tuple(sorted(numbers)), joined_events)


def _read_each_message_part(
    feed: Feed, rules: list[MessageRule], split_path: FeedPath, context: PathContext
) -> Iterator[tuple[MessageRule, tuple[SessionEvent, ...]]]:
    """Yields the rule of each part, and its event; no event if it is ignored."""
    found = find_elements_at_path(split_path, context)
    if found is None:
        raise RefusedMessageError(Reason.BAD_VALUE, split_path.text, "there is no array")
    for element in found:
        part = _create_element_context(context, element)
        rule = next(
            (
                one
                for one in rules
                if all(_meets_condition(c, part) for c in one.when if c.has_condition_on_message_part)
            ),
            None,
        )
        if rule is None:
            raise RefusedMessageError(
                Reason.NO_RULE, split_path.text, f"no rule takes the part {describe_value_for_error(element.value)}"
            )
        yield rule, tuple(_read_events_by_rule(feed, rule, part))


def find_session_of_each_part(feed: Feed, context: PathContext) -> tuple[FeedPath | None, list[str]]:
    """Returns the path of a message's parts, and the session id of each; "" for an ignored part.

    The path is None if the message is not split.

    Raises:
        RefusedMessageError: The message has a fault.
    """
    rules, split = _choose_rules_and_split_path(feed, context)
    if split is None:
        return None, []
    parts = _read_each_message_part(feed, rules, split, context)
    return split, ["".join(event.session for event in events) for _, events in parts]


def _read_events_by_rule(feed: Feed, rule: MessageRule, context: PathContext) -> Iterator[SessionEvent]:
    """Yields the event of a message or part.

    An ignored one yields nothing, or an event without a session if it advances a chain.
    """
    order = rule.order or feed.order
    if rule.kind is EventKind.IGNORE:
        if order.chain is not None:
            seq, after = read_seq_interval(order, context)
            yield SessionEvent(
                "",
                EventKind.IGNORE,
                0,
                seq,
                after,
                order.kind is OrderMethod.LINK,
                read_text_at_path(order.chain, context),
            )
        return
    seq, after = read_seq_interval(order, context)
    checksum = feed.find_checksum_path(rule)
    sent = MISSING if checksum is None else find_value_at_path(checksum, context)
    event = SessionEvent(
        session=read_session_id(rule.session or feed.session, context),
        kind=rule.kind,
        ts=read_event_time_ms(rule.time or feed.time, context),
        seq=seq,
        after=None if rule.restart else after,
        is_link=order.kind is OrderMethod.LINK and not rule.restart,
        chain=None if order.chain is None else read_text_at_path(order.chain, context),
        restart=rule.restart,
        rows=tuple(row for part in rule.rows for row in _read_rows_by_mapping(feed, part, context)),
        scope={column.name: _require_snapshot_scope_value(column, path, context) for column, path in rule.scope},
        sent=None if sent is MISSING else sent,
    )
    if rule.split is None:
        refuse_repeated_row_keys(feed, event)
    yield event


def refuse_repeated_row_keys(feed: Feed, event: SessionEvent) -> None:
    """Raises RefusedMessageError if the event has the same row key twice, and the feed refuses such messages."""
    keys = [row.key for row in event.rows]
    if feed.refuse_repeats and len(set(keys)) != len(keys):
        repeated = next(key for number, key in enumerate(keys) if key in keys[:number])
        raise RefusedMessageError(Reason.DUPLICATE_ROW_ID, "", f"the key {create_row_id(repeated)} is there twice")


def find_chain_with_several_seqs(events: Iterable[SessionEvent]) -> str | None:
    """Returns the name of a chain in which one message has several seqs, which is a fault; None if there is none."""
    seqs: dict[str, int | None] = {}
    return next(
        (one.chain for one in events if one.chain is not None and seqs.setdefault(one.chain, one.seq) != one.seq), None
    )


def _meets_condition(condition: RuleCondition, context: PathContext) -> bool:
    if condition.path is None:
        return isinstance(condition.wanted, tuple) and _get_message_body_type(context.value) in condition.wanted
    value = find_value_at_path(condition.path, context)
    if isinstance(condition.wanted, PresentOrAbsent):
        return (value is MISSING) == (condition.wanted is PresentOrAbsent.ABSENT)
    if isinstance(condition.wanted, NumberRange):
        return condition.wanted.contains_number(value)
    return any(_equals_configured_value(value, one) for one in condition.wanted)


def _get_message_body_type(value: Any) -> MessageBodyType | None:
    """Returns the outermost type of a decoded value; None for numbers, booleans and null."""
    if value is MISSING:
        return MessageBodyType.TOMBSTONE
    bodies: tuple[tuple[type, MessageBodyType], ...] = (
        (list, MessageBodyType.ARRAY),
        (dict, MessageBodyType.OBJECT),
        (str, MessageBodyType.TEXT),
    )
    return next((body for kind, body in bodies if isinstance(value, kind)), None)


def _equals_configured_value(value: Any, configured: Any) -> bool:
    """Returns True if a message's value equals one of the configuration. `1` equals `1.0`, but not `true`."""
    if isinstance(value, PathConstant):
        value = value.text
    value = convert_number_text(value)
    return isinstance(value, bool) == isinstance(configured, bool) and bool(value == configured)


def _create_element_context(context: PathContext, element: MessageElement) -> PathContext:
    return replace(context, element=element.value, parent=element.parent)


def _read_rows_by_mapping(feed: Feed, row_mapping: RowMapping, context: PathContext) -> Iterator[RowUpsert | RowDelete]:
    """Yields the changes of rows that one entry of a rule's `rows` reads from a message."""
    for element in _find_row_elements(row_mapping, context):
        at = _create_element_context(context, element)
        raw = [(column, path.text, find_value_at_path(path, at)) for column, path in row_mapping.values]
        if row_mapping.by_name:
            if not isinstance(element.value, dict):
                where = row_mapping.source.text if row_mapping.source else ""
                raise RefusedMessageError(
                    Reason.BAD_VALUE, where, f"{describe_value_for_error(element.value)} has no fields"
                )
            raw += [
                (column, f".{column.name}", element.value.get(column.name, MISSING)) for column in row_mapping.by_name
            ]
        values: dict[str, Any] = {}
        for column, where, value in raw:
            if value is MISSING or _means_not_sent(feed, value):
                if row_mapping.absent_is_null:
                    values[column.name] = None
            else:
                values[column.name] = _convert_column_value(column, where, value)
        key = tuple(_require_key_column_value(column, raw, values) for column in feed.key)
        row_id = create_row_id(key)
        if not 1 <= len(row_id.encode()) <= MAX_ID_BYTES:
            why = f"the key has {len(row_id.encode())} bytes, 1 to {MAX_ID_BYTES} may be"
            raise RefusedMessageError(Reason.BAD_ROW_ID, "", why)
        if _is_row_deleted(row_mapping, values):
            yield RowDelete(key, row_id, row_mapping.expect)
        else:
            yield RowUpsert(
                key, row_id, values, _format_undeclared_fields(feed, row_mapping, element.value), row_mapping.expect
            )


def _means_not_sent(feed: Feed, value: Any) -> bool:
    """Returns True for a value that means "not sent", and for an array that has only such a value.

    A constant of the configuration never means that, because the producer does not send it.
    """
    if isinstance(value, PathConstant):
        return False
    only = value[0] if isinstance(value, list) and len(value) == 1 else value
    return any(_equals_configured_value(only, one) for one in feed.unavailable)


def _find_row_elements(row_mapping: RowMapping, context: PathContext) -> list[MessageElement]:
    """Returns the elements of the message from which rows are read, each with its parent."""
    if row_mapping.source is None:
        return [MessageElement(context.value if context.element is MISSING else context.element, context.parent)]
    if not row_mapping.each:
        value = find_value_at_path(row_mapping.source, context)
        if value is MISSING or value is None:
            raise RefusedMessageError(Reason.BAD_PATH, row_mapping.source.text, "there is no row")
        return [MessageElement(value, context.value)]
    found = find_elements_at_path(row_mapping.source, context)
    if found is None:
        raise RefusedMessageError(Reason.BAD_VALUE, row_mapping.source.text, "there is no array")
    return found


def _require_key_column_value(
    column: FeedColumn, raw: list[tuple[FeedColumn, str, Any]], values: dict[str, Any]
) -> Any:
    value = values.get(column.name)
    if value is None:
        where = next((where for one, where, _ in raw if one is column), "")
        raise RefusedMessageError(Reason.BAD_PATH, where, f"the key's column {column.name} is missing or null")
    return value


def _convert_column_value(column: FeedColumn, where: str, value: Any) -> Any:
    """Converts a value to the column's type. None is kept. `where` is its path, for the error."""
    if value is None:
        return None
    try:
        return convert_constant(value, column) if isinstance(value, PathConstant) else column.convert(value)
    except (ValueError, RecursionError) as error:
        why = f"column {column.name} is {column.sql}, found {describe_value_for_error(value)}: {error}"
        raise RefusedMessageError(Reason.BAD_VALUE, where, why) from None


def _require_snapshot_scope_value(column: FeedColumn, path: FeedPath, context: PathContext) -> Any:
    """Returns the value of a scope's column. Raises RefusedMessageError if it is missing or does not fit."""
    value = find_value_at_path(path, context)
    if value is MISSING:
        raise RefusedMessageError(Reason.BAD_PATH, path.text, f"the scope's column {column.name} is missing")
    return _convert_column_value(column, path.text, value)


def _is_row_deleted(row_mapping: RowMapping, values: dict[str, Any]) -> bool:
    """Returns True if the values of a row say that it is deleted."""
    if isinstance(row_mapping.delete, bool):
        return row_mapping.delete
    return all(column.name in values and values[column.name] == value for column, value in row_mapping.delete)


def _format_undeclared_fields(feed: Feed, row_mapping: RowMapping, element: Any) -> str | None:
    """Returns the undeclared fields of an element as JSON text; None if there are none, or they are not stored."""
    if not row_mapping.rescue or not isinstance(element, dict):
        return None
    extra = {name: value for name, value in element.items() if name not in feed.columns}
    return format_json(extra, sort_names=True) if extra else None
