"""The settings `capture.feeds`, which describe how messages in a form of the user's own are read.

This module checks them and converts them to a `Feed`. The package `feeds` reads messages with it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from decimal import Decimal
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, PrivateAttr, model_validator

from sessionlake.feeds.feed import (
    Body,
    Check,
    Condition,
    Feed,
    Keep,
    Kind,
    Order,
    Ordering,
    Presence,
    Rows,
    Rule,
    Time,
)
from sessionlake.feeds.paths import Constant, Each, Path, PathError, parse_path
from sessionlake.feeds.values import FeedColumn, feed_column, typed_constant
from sessionlake.protocol.columns import BUILT_IN_COLUMNS
from sessionlake.protocol.names import check_columns
from sessionlake.settings.section import Regex, Section

_UNITS = {"s": "epoch_s", "ms": "epoch_ms", "us": "epoch_us", "ns": "epoch_ns"}
_INSTEAD = ", or take it under another name, as in row: {order_topic: .topic}"
Scalar = str | bool | int | float | None


def _path(value: object) -> Path:
    if not isinstance(value, str):
        raise PathError(f"a path is a text, found {value!r}")
    return parse_path(value)


def _paths(value: object) -> tuple[Path, ...]:
    return tuple(_path(one) for one in (value if isinstance(value, list | tuple) else [value]))


PathText = Annotated[Any, BeforeValidator(_path)]
"""A path to a value in a message, written as text."""
PathTexts = Annotated[Any, BeforeValidator(_paths)]
"""One or several paths to values in a message, written as a text or a list of texts."""


class ColumnSettings(Section):
    """A column whose JSON values need a hint to be read, such as numbers that are written as texts.

    `type` is the Spark SQL type, and `from` says how the value is written.
    """

    type: str
    from_: str | None = Field(None, alias="from")


class TimeSettings(Section):
    """Where a message has its event time, and how it is written. A number counts milliseconds by default.

    `else: kafka.timestamp` uses the Kafka timestamp for messages without a value at `path`.
    """

    path: PathText
    unit: Literal["s", "ms", "us", "ns"] = "ms"
    from_: Literal["text", "iso"] | None = Field(None, alias="from")
    else_: Literal["kafka.timestamp"] | None = Field(None, alias="else")

    def made(self) -> Time:
        """Converts the settings to the form that the package `feeds` uses."""
        how = "iso" if self.from_ == "iso" else _UNITS[self.unit]
        return Time(self.path, how, from_text=self.from_ == "text", or_kafka=self.else_ is not None)


class OrderSettings(Section):
    """Where a message has its seq, the number that orders a session's messages.

    Without further keys, the seq must rise by one with each message. At most one of these keys changes that:

    - `after`: path to the seq of the previous message
    - `first`: path to the first seq, if a message covers several
    - `rising`: the seq rises by any amount
    - `modulo`: the seq starts again at 0 after `modulo - 1`

    `chain` is the path to the name of the counter, if it is not the session's.
    """

    seq: PathText
    after: PathText | None = None
    first: PathText | None = None
    rising: bool = False
    chain: PathText | None = None
    modulo: int | None = Field(None, ge=4)

    @model_validator(mode="after")
    def _one_form(self) -> Self:
        given = [name for name in ("after", "first", "rising", "modulo") if getattr(self, name)]
        if len(given) > 1:
            raise ValueError(f"an order has one of after, first, rising and modulo, found {' and '.join(given)}")
        return self

    def made(self) -> Order:
        """Converts the settings to the form that the package `feeds` uses."""
        forms = {Ordering.LINK: self.after, Ordering.RANGE: self.first, Ordering.RISING: self.rising or None}
        kind = next((kind for kind, given in forms.items() if given), Ordering.STEP)
        return Order(kind, self.seq, self.after or self.first, self.chain, self.modulo)


class SplitSettings(Section):
    """A path to the elements of a message that are each read like a message."""

    each: PathText


class RowsSettings(Section):
    """Where a message has rows, and how they are read.

    `each` is the path to several rows, `at` the path to one; without both, the message itself is the row. `row` has a
    path for each column. `delete` has the values of columns that mark a deleted row, or true if all rows are deleted.
    `absent` says whether a column that a row lacks keeps its value or becomes null.
    """

    each: PathText | None = None
    at: PathText | None = None
    row: dict[str, PathText] | Literal["all", "key"]
    delete: Literal[True] | dict[str, Scalar] | None = None
    absent: Literal["keep", "null"] | None = None
    expect: Presence | None = None

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        if self.each is not None and self.at is not None:
            raise ValueError("rows have each or at, not both")
        if self.each is not None and not self.each.gives_elements:
            raise ValueError(f"each: {self.each.text!r} gives one value: end it with [*], or write at")
        if self.at is not None and self.at.gives_elements:
            raise ValueError(f"at: {self.at.text!r} gives several values: write each")
        return self


class RuleSettings(Section):
    """How one kind of message is read: `when` selects the messages, and `is` says what they are."""

    when: dict[str, Scalar | list[Scalar]] = Field(default_factory=dict)
    is_: Kind = Field(alias="is")
    restart: bool = False
    session: PathTexts | None = None
    time: TimeSettings | None = None
    order: OrderSettings | Literal["arrival"] | None = None
    split: SplitSettings | None = None
    scope: dict[str, PathText] = Field(default_factory=dict)
    rows: tuple[RowsSettings, ...] = ()


class KeepSettings(Section):
    """Limits a session's table to the best rows of each group. A message that adds more rows deletes the others.

    `per` has the columns that form a group. `best` is the column that orders its rows, ascending except in groups with
    a value in `descending`. `rows` is the number of rows that stay in each group.
    """

    per: tuple[str, ...] = ()
    best: str
    descending: tuple[str, ...] = ()
    rows: int = Field(ge=1, le=100_000)


class CheckSettings(Section):
    """The path to a checksum in messages, and the function `with` that compares it with a session's rows."""

    checksum: PathText
    with_: str = Field(alias="with")
    rows: int = Field(10, ge=1, le=100_000)


class FeedSettings(Section):
    """How the messages of some topics are read. `messages` has one rule for each kind of message."""

    name: str = Field(pattern=r"^[a-z][a-z0-9_]*$", max_length=100)
    topics: Regex
    columns: dict[str, str | ColumnSettings]
    key: list[str] = Field(min_length=1)
    session: PathTexts
    time: TimeSettings | None = None
    order: OrderSettings | Literal["arrival"] = "arrival"
    messages: list[RuleSettings] = Field(min_length=1)
    unavailable: tuple[Scalar, ...] = ()
    rescue: bool | None = None
    repeats: Literal["in_order", "refuse"] = "in_order"
    keep: KeepSettings | None = None
    check: CheckSettings | None = None
    _made: Feed = PrivateAttr()

    @model_validator(mode="after")
    def _usable(self) -> Self:
        self._made = _feed(self)
        return self

    def made(self) -> Feed:
        """Returns the settings in the form that the package `feeds` uses."""
        return self._made


def _feed(settings: FeedSettings) -> Feed:
    """Converts feed settings to a `Feed`.

    Raises:
        ValueError: a setting cannot be used; the text names its key.
    """
    check_columns(dict.fromkeys(settings.columns, ""), BUILT_IN_COLUMNS, "silver", _INSTEAD)
    columns = {name: _column(name, given) for name, given in settings.columns.items()}
    key = tuple(_known(name, columns, "key") for name in settings.key)
    for column in key:
        if column.sql.startswith(("array", "variant", "float", "double")):
            raise ValueError(f"key: column {column.name!r} is {column.sql}, which identifies no row")
    check = settings.check
    return Feed(
        name=settings.name,
        topics=re.compile(settings.topics),
        columns=columns,
        key=key,
        session=settings.session,
        time=settings.time.made() if settings.time else Time(),
        order=_order(settings.order) or Order(Ordering.ARRIVAL),
        rules=tuple(_rule(number, rule, settings, columns, key) for number, rule in enumerate(settings.messages, 1)),
        unavailable=tuple(map(_exact, settings.unavailable)),
        refuse_repeats=settings.repeats == "refuse",
        keep=_keep(settings.keep, columns),
        check=None if check is None else Check(check.checksum, check.with_, check.rows),
        needs_digits=any(column.how == "digits" for column in columns.values()),
    )


def _column(name: str, given: str | ColumnSettings) -> FeedColumn:
    return feed_column(name, given) if isinstance(given, str) else feed_column(name, given.type, given.from_)


def _known(name: str, columns: Mapping[str, FeedColumn], where: str) -> FeedColumn:
    if name not in columns:
        raise ValueError(f"{where}: there is no column {name!r}; declared are {', '.join(columns)}")
    return columns[name]


def _order(order: OrderSettings | str | None) -> Order | None:
    if order is None or isinstance(order, str):
        return None if order is None else Order(Ordering.ARRIVAL)
    return order.made()


def _keep(keep: KeepSettings | None, columns: Mapping[str, FeedColumn]) -> Keep | None:
    if keep is None:
        return None
    per = tuple(_known(name, columns, "keep.per").name for name in keep.per)
    return Keep(per, _known(keep.best, columns, "keep.best").name, tuple(keep.descending), keep.rows)


def _rule(
    number: int,
    rule: RuleSettings,
    settings: FeedSettings,
    columns: Mapping[str, FeedColumn],
    key: tuple[FeedColumn, ...],
) -> Rule:
    where = f"messages: rule {number}"
    if rule.rows and rule.is_ not in {Kind.SNAPSHOT, Kind.UPDATE}:
        raise ValueError(f"{where}: a message that is {rule.is_} has no rows")
    if (rule.restart or rule.scope) and rule.is_ is not Kind.SNAPSHOT:
        raise ValueError(f"{where}: restart and scope are of a snapshot, this rule is {rule.is_}")
    if rule.split is not None and not rule.split.each.gives_elements:
        raise ValueError(f"{where}: split: {rule.split.each.text!r} gives one value: end it with [*]")
    if rule.split is None and rule.is_ is not Kind.IGNORE:
        time, order = rule.time or settings.time, rule.order or settings.order
        _refuse_elements(rule.session or settings.session, f"{where}: session")
        _refuse_elements([time.path] if time else [], f"{where}: time")
        if isinstance(order, OrderSettings):
            _refuse_elements(filter(None, (order.seq, order.after, order.first, order.chain)), f"{where}: order")
    if rule.split is None:
        _refuse_elements([one.path for one in map(_when, rule.when.items()) if one.path], f"{where}: when")
    return Rule(
        number=number,
        kind=rule.is_,
        when=tuple(map(_when, rule.when.items())),
        restart=rule.restart,
        session=rule.session,
        time=rule.time.made() if rule.time else None,
        order=_order(rule.order),
        split=rule.split.each if rule.split else None,
        scope=tuple((_known(name, columns, f"{where}: scope"), path) for name, path in rule.scope.items()),
        rows=tuple(_rows(part, rule, settings, columns, key, where) for part in rule.rows),
    )


def _when(item: tuple[str, Any]) -> Condition:
    name, wanted = item
    values = tuple(map(_exact, wanted if isinstance(wanted, list) else [wanted]))
    if name == "body":
        return Condition(None, tuple(Body(value) for value in values))
    if wanted in {Presence.PRESENT.value, Presence.ABSENT.value} if isinstance(wanted, str) else False:
        return Condition(parse_path(name), Presence(wanted))
    return Condition(parse_path(name), values)


def _exact(value: Scalar) -> Any:
    """Returns a configured value in the type that values of messages have. A float becomes a decimal."""
    return Decimal(repr(value)) if isinstance(value, float) else value


def _rows(
    part: RowsSettings,
    rule: RuleSettings,
    settings: FeedSettings,
    columns: Mapping[str, FeedColumn],
    key: tuple[FeedColumn, ...],
    where: str,
) -> Rows:
    where = f"{where}: rows"
    by_name: tuple[FeedColumn, ...] = ()
    values: tuple[tuple[FeedColumn, Path], ...] = ()
    if isinstance(part.row, dict):
        values = tuple((_known(name, columns, where), _typed(path, columns[name])) for name, path in part.row.items())
        lacking = [column.name for column in key if column.name not in part.row]
        if lacking:
            raise ValueError(f"{where}: row lacks the key's column {', '.join(lacking)}")
    else:
        by_name = tuple(columns.values()) if part.row == "all" else key
    delete: bool | tuple[tuple[FeedColumn, Any], ...] = part.delete is True
    if isinstance(part.delete, dict):
        given = {column.name for column, _ in values} | {column.name for column in by_name}
        if lacking := sorted(part.delete.keys() - given):
            raise ValueError(f"{where}: delete looks at {', '.join(lacking)}, which row does not take")
        delete = tuple((columns[name], _deleting(value, columns[name])) for name, value in part.delete.items())
    absent = part.absent or ("null" if rule.is_ is Kind.SNAPSHOT else "keep")
    rescue = part.row == "all" if settings.rescue is None else settings.rescue
    return Rows(
        source=part.each or part.at,
        each=part.each is not None,
        values=values,
        by_name=by_name,
        rescue=rescue and part.row == "all",
        delete=delete,
        absent_is_null=absent == "null",
        expect=part.expect,
    )


def _typed(path: Path, column: FeedColumn) -> Path:
    for one in path.alternatives:
        if isinstance(one, Constant):
            typed_constant(one, column)
        elif one.entries or any(isinstance(step, Each) for step in one.steps):
            raise ValueError(f"column {column.name!r}: {path.text!r} gives several values")
    return path


def _deleting(value: Scalar, column: FeedColumn) -> Any:
    """Returns a value that marks a deleted row, in the type of its column."""
    if value is None:
        return None
    text = ("true" if value else "false") if isinstance(value, bool) else str(value)
    return typed_constant(Constant(text), column)


def _refuse_elements(paths: Any, where: str) -> None:
    for path in paths:
        if path.needs_element:
            raise ValueError(f"{where}: {path.text!r} begins at an element, but there is no split")
        if path.gives_elements:
            raise ValueError(f"{where}: {path.text!r} gives several values")
