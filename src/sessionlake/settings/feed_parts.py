"""The settings inside a feed: columns, times, orders, rules and rows. `settings.feeds` has the feed itself."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, PlainSerializer, model_validator

from sessionlake.feeds.checksums import Crc32Checksum
from sessionlake.feeds.feed import (
    EventKind,
    EventTimeSetting,
    MessageOrderSetting,
    OrderMethod,
    PresentOrAbsent,
)
from sessionlake.feeds.path_parsing import InvalidPathError, parse_feed_path
from sessionlake.feeds.paths import FeedPath
from sessionlake.settings.section import SettingsSection

_UNITS = {"s": "epoch_s", "ms": "epoch_ms", "us": "epoch_us", "ns": "epoch_ns"}
OTHERS = "*"
"""The key of `row` that stands for all columns that `row` does not name."""
Scalar = str | bool | int | float | None


def _parse_value_path(value: object) -> FeedPath:
    if not isinstance(value, str):
        raise InvalidPathError(f"a path is a text, found {value!r}")
    return parse_feed_path(value)


def _parse_value_paths(value: object) -> tuple[FeedPath, ...]:
    return tuple(_parse_value_path(one) for one in (value if isinstance(value, list | tuple) else [value]))


PathText = Annotated[Any, BeforeValidator(_parse_value_path), PlainSerializer(lambda path: path and path.text)]
"""A path to a value in a message, written as text."""
PathTexts = Annotated[
    Any, BeforeValidator(_parse_value_paths), PlainSerializer(lambda paths: paths and [path.text for path in paths])
]
"""One or several paths to values in a message, written as a text or a list of texts."""


def _format_group_value_as_text(value: object) -> object:
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value) if isinstance(value, int | float) else value


GroupText = Annotated[str, BeforeValidator(_format_group_value_as_text)]
"""The value of a column that forms groups. It may be written as a text, a number, true or false."""


class FeedColumnSettings(SettingsSection):
    """A column whose JSON values need a hint to be read, such as numbers that are written as texts.

    `type` is the Spark SQL type, and `from` says how the value is written.
    """

    type: str
    """The Spark SQL type."""
    from_: str | None = Field(None, alias="from")
    """How values are written: `text`, `base64`, `iso`, `digits`, `days`, or `epoch_` and a unit: s, ms, us or ns."""


class EventTimeSettings(SettingsSection):
    """Where a message has its event time, and how it is written. A number counts milliseconds by default.

    `else: kafka.timestamp` uses the Kafka timestamp for messages without a value at `path`.
    """

    path: PathText
    """Path to the event time."""
    unit: Literal["s", "ms", "us", "ns"] = "ms"
    """Unit of a number since 1970."""
    from_: Literal["text", "iso"] | None = Field(None, alias="from")
    """`iso` for an ISO 8601 text, `text` for a number that is written as text."""
    else_: Literal["kafka.timestamp"] | None = Field(None, alias="else")
    """The time of messages that have none at the path. Default: they go to quarantine."""

    def convert_to_event_time_setting(self) -> EventTimeSetting:
        """Returns the settings as an `EventTimeSetting`, the form that the package `sessionlake.feeds` uses."""
        how = "iso" if self.from_ == "iso" else _UNITS[self.unit]
        return EventTimeSetting(self.path, how, from_text=self.from_ == "text", or_kafka=self.else_ is not None)


class SeqOrderSettings(SettingsSection):
    """Where a message has its seq, the number that orders a session's messages.

    Without further keys, the seq must rise by one with each message. At most one of these keys changes that:

    - `after`: path to the seq of the previous message
    - `first`: path to the first seq, if a message covers several
    - `rising`: the seq rises by any amount
    - `modulo`: the seq starts again at 0 after `modulo - 1`

    `chain` is the path to the name of a counter that several sessions share, such as the one of a connection.
    """

    seq: PathText | None = None
    """Path to the seq. Required, unless a decoder class gives the seq."""
    after: PathText | None = None
    """Path to the seq of the previous message."""
    first: PathText | None = None
    """Path to the first seq of a message that covers several."""
    rising: bool = False
    """True if the seq may rise by any amount."""
    chain: PathText | None = None
    """Path to the name of the counter, if several sessions share it."""
    modulo: int | None = Field(None, ge=4)
    """The number at which the counter starts again at 0."""

    @property
    def rises_by_one(self) -> bool:
        """True if the seq rises by one with each message of a session."""
        return not (self.after or self.first or self.rising or self.chain or self.modulo)

    @model_validator(mode="after")
    def _require_one_kind_of_order(self) -> Self:
        given = [name for name in ("after", "first", "rising", "modulo") if getattr(self, name)]
        if len(given) > 1:
            raise ValueError(
                f"`order` needs exactly one of the keys after, first, rising and modulo; found {' and '.join(given)}"
            )
        if self.seq is None and self.model_fields_set != {"modulo"}:
            raise ValueError("`order` needs a `seq`. Only `modulo` can stand alone, if a decoder class gives the seq")
        return self

    def convert_to_feed_order(self) -> MessageOrderSetting:
        """Returns the settings as a `MessageOrderSetting`, the form that the package `sessionlake.feeds` uses."""
        if self.seq is None:
            return MessageOrderSetting(OrderMethod.DECODER, modulo=self.modulo)
        forms = {OrderMethod.LINK: self.after, OrderMethod.RANGE: self.first, OrderMethod.RISING: self.rising or None}
        kind = next((kind for kind, given in forms.items() if given), OrderMethod.STEP)
        return MessageOrderSetting(kind, self.seq, self.after or self.first, self.chain, self.modulo)


class MessageSplitSettings(SettingsSection):
    """A path to the elements of a message. Each element is read as if it were a message."""

    each: PathText
    """Path to the parts."""


class MessageRowsSettings(SettingsSection):
    """Where a message has rows, and how they are read.

    `each` is the path to several rows, `at` the path to one; without both, the message itself is the row. `row` has a
    path for each column. `delete` has the values of columns that mark a deleted row, or true if all rows are deleted.
    `absent` says whether a column that a row lacks keeps its value or becomes null.
    """

    each: PathText | None = None
    """Path to several rows."""
    at: PathText | None = None
    """Path to one row."""
    row: dict[str, PathText] | Literal["all", "key"]
    """A path for each column; `all`: every column by its own name; `key`: the key columns by their own names.

    Beside paths, `"*": all` reads all other columns by their own names.
    """
    delete: Literal[True] | dict[str, Scalar] | None = None
    """True if the rows are deleted; or values of columns that mark a deleted row."""
    absent: Literal["keep", "null"] | None = None
    """What happens to a column that a row lacks. Default: `null` in snapshots, `keep` in updates."""
    expect: PresentOrAbsent | None = None
    """Whether the table must have the row before the change."""

    @model_validator(mode="after")
    def _require_valid_row_paths(self) -> Self:
        if self.each is not None and self.at is not None:
            raise ValueError(
                "rows are found with either `each` (a path to several rows) or `at` (a path to one row), not with both"
            )
        if self.each is not None and not self.each.gives_several_elements:
            raise ValueError(
                f"each: the path {self.each.text!r} leads to one value, but `each` needs several; end it "
                "with [*], or write `at` instead of `each`"
            )
        if self.at is not None and self.at.gives_several_elements:
            raise ValueError(
                f"at: the path {self.at.text!r} leads to several values, but `at` needs one; write `each` "
                "instead of `at`"
            )
        if isinstance(self.row, dict) and OTHERS in self.row and self.row[OTHERS].text != "all":
            raise ValueError(
                f'row: "*" takes all fields of a row, so its value can only be `all`; found {self.row[OTHERS].text!r}'
            )
        return self


class NumberRangeSettings(SettingsSection):
    """A range of numbers that a condition allows, without the ends themselves: `{above: 0}` is any positive number."""

    above: int | float | None = None
    """Numbers must be greater than this one."""
    below: int | float | None = None
    """Numbers must be less than this one."""

    @model_validator(mode="after")
    def _require_above_or_below(self) -> Self:
        if self.above is None and self.below is None:
            raise ValueError("a range of numbers needs `above`, `below` or both")
        return self


class MessageRuleSettings(SettingsSection):
    """How one kind of message is read: `when` selects the messages, and `is` says what they are."""

    when: dict[str, Scalar | list[Scalar] | NumberRangeSettings] = Field(default_factory=dict)
    """Conditions: a path with a value, a list of values, `present` or `absent`; or `body` with a type.

    `{above: 0}` or `{below: 0}` allow numbers above or below one, such as signed quantities.
    """
    is_: EventKind = Field(alias="is")
    """What the message is."""
    restart: bool = False
    """True if the order starts again at this snapshot, whatever its last seq was."""
    session: PathTexts | None = None
    """Overrides `session` of the feed."""
    time: EventTimeSettings | None = None
    """Overrides `time` of the feed."""
    order: SeqOrderSettings | Literal["arrival", "none"] | None = None
    """Overrides `order` of the feed. `none`: the message has no place in the order, so it is never a duplicate."""
    split: MessageSplitSettings | None = None
    """Reads the message part by part, as if each part were a message."""
    checksum: PathText | None = None
    """Overrides `check.checksum` of the feed, if checksums come in separate messages or in another place."""
    scope: dict[str, PathText] = Field(default_factory=dict)
    """Values of columns: a snapshot replaces only the rows that have them."""
    rows: tuple[MessageRowsSettings, ...] = ()
    """Where the rows are in the message."""


class SessionStartSettings(SettingsSection):
    """A session starts with a snapshot, and holds back the messages before it, to apply those that follow it.

    `hold` is the number of messages that a session holds back. One more sends the oldest one to quarantine.
    """

    snapshot: Literal[True]
    """Always true: a session starts with a snapshot."""
    hold: int = Field(ge=1, le=10_000)
    """Most messages that a session without a snapshot holds back."""


class RowLimitSettings(SettingsSection):
    """Limits a session's table to the best rows of each group. A message that adds more rows deletes the others.

    `per` has the columns that form a group. `best` is the column that orders its rows, ascending except in groups with
    a value in `descending`. `rows` is the number of rows that stay in each group.
    """

    per: tuple[str, ...] = ()
    """Columns whose values form a group."""
    best: str
    """Column by which the rows of a group are sorted, ascending."""
    descending: tuple[GroupText, ...] = ()
    """Values of the columns `per` whose groups are sorted in descending order."""
    rows: int = Field(ge=1, le=100_000)
    """Number of rows that stay in each group."""


class ChecksumSeparatorSettings(SettingsSection):
    """The texts between values, rows and groups in the text of which a checksum is computed."""

    values: str = ""
    """Text between the values of a row."""
    rows: str = ""
    """Text between rows."""
    groups: str | None = None
    """Text between groups, also if a group has no rows. Default: as between rows."""


class Crc32Settings(SettingsSection):
    """The text of which a checksum is the CRC32: values of each group's best rows, joined in order.

    It needs `keep`, which says what the best rows are. Signed and unsigned checksums are both understood.
    """

    groups: tuple[GroupText, ...] = Field(min_length=1)
    """The groups in order, by their value in the column `keep.per`, as in `[bid, ask]`."""
    columns: tuple[str, ...] = Field(min_length=1)
    """The columns of a row in order: strings that keep the digits as they were sent, or whole numbers."""
    interleaved: bool = False
    """True if groups take turns: the best row of each group, then the second of each. False: group after group."""
    separator: str | ChecksumSeparatorSettings = ""
    """The text between values, rows and groups; or `{values, rows, groups}`, if they differ."""
    digits_only: bool = False
    """True leaves out points, and the zeros before the first other digit: `0.0510` becomes `510`."""

    @model_validator(mode="after")
    def _refuse_unused_separator(self) -> Self:
        if (
            self.interleaved
            and isinstance(self.separator, ChecksumSeparatorSettings)
            and self.separator.groups is not None
        ):
            raise ValueError(
                "separator.groups has no effect if interleaved is true, because the rows of the groups "
                "then alternate; leave out one of the two"
            )
        return self

    def convert_to_feed_crc32(self, groups: tuple[Any, ...]) -> Crc32Checksum:
        """Returns the settings as a `Crc32Checksum`, the form that the package `sessionlake.feeds` uses.

        Args:
            groups: The values of the setting `groups`, converted to the type of the column that forms groups.
        """
        between = self.separator
        if isinstance(between, str):
            between = ChecksumSeparatorSettings(values=between, rows=between)
        return Crc32Checksum(
            groups, self.columns, self.interleaved, between.values, between.rows, between.groups, self.digits_only
        )


class ChecksumSettings(SettingsSection):
    """The path to a checksum in messages, and how it is compared with a session's rows.

    Exactly one of these is set: `crc32` describes the text of a CRC32; `with` names a function (`module:function`) that
    compares any other checksum.
    """

    checksum: PathText | None = None
    """Path to the checksum. A message without one is not checked. Leave it out if a decoder class gives it."""
    crc32: Crc32Settings | None = None
    """The text of which the checksum is the CRC32."""
    with_: str | None = Field(None, alias="with")
    """The function `module:function` that compares it with the rows."""
    rows: int = Field(10, ge=1, le=100_000)
    """Number of best rows of each group that are compared. At most `keep.rows`, which also limits the default."""

    @model_validator(mode="after")
    def _require_crc32_or_function(self) -> Self:
        if (self.crc32 is None) == (self.with_ is None):
            raise ValueError(
                "a check needs exactly one of `crc32` (the text over which a CRC32 is computed) and `with` (a function)"
            )
        return self
