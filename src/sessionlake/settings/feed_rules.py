"""Converts the rules of a feed to the form that the package `feeds` uses, and refuses contradictory settings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from sessionlake.feeds.feed import (
    EventKind,
    MessageBodyType,
    MessageOrderSetting,
    MessageRule,
    OrderMethod,
    PresentOrAbsent,
    RowMapping,
    RuleCondition,
)
from sessionlake.feeds.numbers import NumberRange
from sessionlake.feeds.path_parsing import parse_feed_path
from sessionlake.feeds.paths import EachElementStep, FeedPath, PathConstant
from sessionlake.feeds.values import FeedColumn, convert_constant
from sessionlake.settings.feed_parts import (
    OTHERS,
    EventTimeSettings,
    MessageRowsSettings,
    MessageRuleSettings,
    NumberRangeSettings,
    Scalar,
    SeqOrderSettings,
)


@dataclass(frozen=True)
class RuleDefaultsOfFeed:
    """Settings of a feed that apply to its rules unless a rule has its own.

    Attributes:
        session: Paths of the texts that form the session id.
        time: Where the event time is; None if it is the Kafka timestamp.
        order: Where the seq is.
        rescue: True if undeclared fields are stored, False if not; None if only `row: all` stores them.
        checksum: Path of the checksum; None if the feed has none.
    """

    session: tuple[FeedPath, ...]
    time: EventTimeSettings | None
    order: SeqOrderSettings | str
    rescue: bool | None
    checksum: FeedPath | None


def convert_message_rule(
    number: int,
    rule: MessageRuleSettings,
    feed: RuleDefaultsOfFeed,
    columns: Mapping[str, FeedColumn],
    key: tuple[FeedColumn, ...],
) -> MessageRule:
    """Returns a rule of a feed as a `MessageRule`, the form that the package `sessionlake.feeds` uses.

    Args:
        number: Number of the rule in its feed, from 1.
        rule: The settings of the rule.
        feed: Settings of the feed for rules without their own.
        columns: The feed's columns by name.
        key: The feed's key columns.

    Raises:
        ValueError: Settings of the rule contradict each other. The text names the rule and the key.
    """
    where = f"messages: rule {number}"
    if rule.rows and rule.is_ not in {EventKind.SNAPSHOT, EventKind.UPDATE}:
        raise ValueError(f"{where}: a rule with `is: {rule.is_}` reads no rows; leave out its rows")
    if (rule.restart or rule.scope) and rule.is_ is not EventKind.SNAPSHOT:
        raise ValueError(
            f"{where}: only a rule with `is: snapshot` can have `restart` and `scope`, and this one "
            f"has `is: {rule.is_}`"
        )
    if rule.split is not None and not rule.split.each.gives_several_elements:
        raise ValueError(
            f"{where}: split: the path {rule.split.each.text!r} leads to one value, but `split` needs "
            "several; end it with [*]"
        )
    if rule.split is None:
        _refuse_element_paths_without_split(rule, feed, where)
    return MessageRule(
        number=number,
        kind=rule.is_,
        when=tuple(map(_convert_message_condition, rule.when.items())),
        restart=rule.restart,
        session=rule.session,
        time=rule.time.convert_to_event_time_setting() if rule.time else None,
        order=convert_order_settings(rule.order),
        split=rule.split.each if rule.split else None,
        checksum=rule.checksum,
        scope=_build_snapshot_scope(rule, columns, where),
        rows=tuple(_convert_message_rows(part, rule, feed, columns, key, where) for part in rule.rows),
    )


def _build_snapshot_scope(
    rule: MessageRuleSettings, columns: Mapping[str, FeedColumn], where: str
) -> tuple[tuple[FeedColumn, FeedPath], ...]:
    """Returns the columns of a rule's scope, with the paths of their values."""
    scope = [(require_known_column(name, columns, f"{where}: scope"), path) for name, path in rule.scope.items()]
    try:
        return tuple((column, _require_usable_column_path(path, column)) for column, path in scope)
    except ValueError as error:
        raise ValueError(f"{where}: scope: {error}") from None


def _refuse_element_paths_without_split(rule: MessageRuleSettings, feed: RuleDefaultsOfFeed, where: str) -> None:
    """Raises ValueError if a rule without `split` has a path that begins at an element, or gives several values."""
    _refuse_multi_value_paths(
        [one.path for one in map(_convert_message_condition, rule.when.items()) if one.path], f"{where}: when"
    )
    if rule.is_ is EventKind.IGNORE:
        return
    time, order = rule.time or feed.time, rule.order or feed.order
    _refuse_multi_value_paths(rule.session or feed.session, f"{where}: session")
    _refuse_multi_value_paths([time.path] if time else [], f"{where}: time")
    if isinstance(order, SeqOrderSettings):
        if order.seq is None:
            raise ValueError(f"{where}: `order` has no `seq`; write the path to the sequence number")
        _refuse_multi_value_paths(filter(None, (order.seq, order.after, order.first, order.chain)), f"{where}: order")
    _refuse_multi_value_paths(rule.scope.values(), f"{where}: scope")
    _refuse_multi_value_paths([rule.checksum] if rule.checksum else [], f"{where}: checksum")
    if rule.rows and rule.checksum is None:
        _refuse_multi_value_paths([feed.checksum] if feed.checksum else [], f"{where}: check.checksum")


def _convert_message_condition(path_and_values: tuple[str, Any]) -> RuleCondition:
    name, wanted = path_and_values
    if isinstance(wanted, NumberRangeSettings):
        if name == "body":
            raise ValueError(
                "when: `body` can only be compared with a type of values, such as object, so it has no "
                "range of numbers; name the path to a number"
            )
        ends = (convert_float_to_decimal(wanted.above), convert_float_to_decimal(wanted.below))
        return RuleCondition(parse_feed_path(name), NumberRange(*ends))
    values = tuple(map(convert_float_to_decimal, wanted if isinstance(wanted, list) else [wanted]))
    if name == "body":
        return RuleCondition(None, tuple(MessageBodyType(value) for value in values))
    if wanted in {PresentOrAbsent.PRESENT.value, PresentOrAbsent.ABSENT.value} if isinstance(wanted, str) else False:
        return RuleCondition(parse_feed_path(name), PresentOrAbsent(wanted))
    return RuleCondition(parse_feed_path(name), values)


def convert_float_to_decimal(value: Scalar) -> Any:
    """Returns a configured value in the type that values of messages have: a float becomes a Decimal, others stay."""
    return Decimal(repr(value)) if isinstance(value, float) else value


def _convert_message_rows(
    rows_settings: MessageRowsSettings,
    rule: MessageRuleSettings,
    feed: RuleDefaultsOfFeed,
    columns: Mapping[str, FeedColumn],
    key: tuple[FeedColumn, ...],
    where: str,
) -> RowMapping:
    where = f"{where}: rows"
    by_name: tuple[FeedColumn, ...] = ()
    values: tuple[tuple[FeedColumn, FeedPath], ...] = ()
    takes_all = rows_settings.row == "all"
    if isinstance(rows_settings.row, dict):
        takes_all = OTHERS in rows_settings.row
        values = tuple(
            (require_known_column(name, columns, where), _require_usable_column_path(path, columns[name]))
            for name, path in rows_settings.row.items()
            if name != OTHERS
        )
        by_name = tuple(column for name, column in columns.items() if takes_all and name not in rows_settings.row)
        lacking = [column.name for column in key if column.name not in rows_settings.row and not takes_all]
        if lacking:
            raise ValueError(
                f"{where}: `row` does not set {', '.join(lacking)}, which is part of the key; add it to `row`"
            )
    else:
        by_name = tuple(columns.values()) if takes_all else key
    delete: bool | tuple[tuple[FeedColumn, Any], ...] = rows_settings.delete is True
    if isinstance(rows_settings.delete, dict):
        given = {column.name for column, _ in values} | {column.name for column in by_name}
        if lacking := sorted(rows_settings.delete.keys() - given):
            raise ValueError(f"{where}: `delete` uses {', '.join(lacking)}, which `row` does not set; add it to `row`")
        delete = tuple(
            (columns[name], _convert_deleting_value(value, columns[name]))
            for name, value in rows_settings.delete.items()
        )
    absent = rows_settings.absent or ("null" if rule.is_ is EventKind.SNAPSHOT else "keep")
    return RowMapping(
        source=rows_settings.each or rows_settings.at,
        each=rows_settings.each is not None,
        values=values,
        by_name=by_name,
        rescue=takes_all and feed.rescue is not False,
        delete=delete,
        absent_is_null=absent == "null",
        expect=rows_settings.expect,
    )


def _require_usable_column_path(path: FeedPath, column: FeedColumn) -> FeedPath:
    """Returns the path of a column unchanged, after checking it.

    Raises:
        ValueError: The path gives several values, or has a constant that is no value of the column's type.
    """
    for one in path.alternatives:
        if isinstance(one, PathConstant):
            convert_constant(one, column)
        elif one.entries or any(isinstance(step, EachElementStep) for step in one.steps):
            raise ValueError(
                f"column {column.name!r}: the path {path.text!r} leads to several values, but one is "
                "needed; choose one of them, as in [0]"
            )
    return path


def _convert_deleting_value(value: Scalar, column: FeedColumn) -> Any:
    """Converts a value of the setting `delete`, which marks deleted rows, to the type of its column.

    Raises:
        ValueError: The value does not fit the type. The text names the column.
    """
    if value is None:
        return None
    text = ("true" if value else "false") if isinstance(value, bool) else str(value)
    return convert_constant(PathConstant(text), column)


def _refuse_multi_value_paths(paths: Any, where: str) -> None:
    for path in paths:
        if path.starts_at_element:
            raise ValueError(
                f"{where}: the path {path.text!r} begins with a dot, which is only possible after `split`; write the "
                "whole path from the message to the value, as in data.sum instead of .sum"
            )
        if path.gives_several_elements:
            raise ValueError(
                f"{where}: the path {path.text!r} leads to several values, but one is needed; choose one "
                "of them, as in [0]"
            )


def require_known_column(name: str, columns: Mapping[str, FeedColumn], where: str) -> FeedColumn:
    """Returns the declared column with this name.

    Args:
        name: The name of the column.
        columns: The feed's columns by name.
        where: The key of the setting that names the column, for the error.

    Raises:
        ValueError: No such column is declared.
    """
    if name not in columns:
        raise ValueError(f"{where}: the feed declares no column {name!r}; its columns are {', '.join(columns)}")
    return columns[name]


def convert_order_settings(order: SeqOrderSettings | str | None) -> MessageOrderSetting | None:
    """Returns the setting `order` as a `MessageOrderSetting`; None if it is not set: the order of the feed applies."""
    if order is None or isinstance(order, str):
        return None if order is None else MessageOrderSetting(OrderMethod(order))
    return order.convert_to_feed_order()
