"""The settings of feeds: how messages of other forms are read. One entry of `capture.feeds` is one feed."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection
from pathlib import Path as FilePath
from typing import Any, Literal, Self

from pydantic import Field, model_validator

from sessionlake.feeds.feed import (
    DecoderClassSetting,
    EventKind,
    EventTimeSetting,
    Feed,
    KafkaKeyFormat,
    MessageOrderSetting,
    OrderMethod,
)
from sessionlake.feeds.paths import FeedPath, PathAlternative, PathStart
from sessionlake.feeds.values import FeedColumn, parse_feed_column
from sessionlake.protocol.columns import BUILT_IN_COLUMNS
from sessionlake.protocol.names import require_allowed_column_names
from sessionlake.protocol.payload import PayloadFormat
from sessionlake.settings.feed_checks import convert_checksum_settings, convert_keep_settings
from sessionlake.settings.feed_code import DecoderLoader
from sessionlake.settings.feed_parts import (
    ChecksumSettings,
    EventTimeSettings,
    FeedColumnSettings,
    MessageRuleSettings,
    PathTexts,
    RowLimitSettings,
    Scalar,
    SeqOrderSettings,
    SessionStartSettings,
)
from sessionlake.settings.feed_presets import apply_preset_to_feed_settings
from sessionlake.settings.feed_rules import (
    RuleDefaultsOfFeed,
    convert_float_to_decimal,
    convert_message_rule,
    convert_order_settings,
    require_known_column,
)
from sessionlake.settings.section import Duration, Integrity, OnViolation, Regex, SettingsSection

CHANGES_SUFFIX = "_changes"
"""The end of the name of a feed's view of changes."""
_WITHOUT_HOLD = {
    Integrity.NONE: "applies every message as it comes, so that a session needs no snapshot",
    Integrity.ONCE: "applies messages in their place, so that a session needs no snapshot",
    Integrity.WINDOW: "already holds messages back, by event time",
}
"""The integrity classes under which `hold` cannot be used, each with the reason."""
_INSTEAD = ", or take it under another name, as in row: {order_topic: .topic}"


class FeedSettings(SettingsSection):
    """How the messages of some topics are read. `messages` has one rule for each kind of message."""

    name: str = Field(pattern=r"^[a-z][a-z0-9_]*$", max_length=100)
    """Name of the feed, and of its views: `silver.<name>` and `silver.<name>_changes`."""
    uses: str | None = None
    """A preset whose keys apply where the feed has none: `debezium`, `maxwell`, `canal`, `upsert`, `sparkplug`,
    `aws_shadow`, `gtfs_realtime`, `opcua` or `sessionlake`."""
    topics: Regex
    """Regular expression that must match the topic's whole name. The first feed that matches reads the topic."""
    format: PayloadFormat = PayloadFormat.JSON
    """How values of messages are encoded. `capture.payload` has the schemas of Avro and Protobuf."""
    key_format: KafkaKeyFormat = KafkaKeyFormat.TEXT
    """How Kafka keys are encoded, which paths read at `kafka.key`. `avro` needs schema ids in the keys."""
    columns: dict[str, str | FeedColumnSettings]
    """The columns of a row and their Spark SQL types; `{type, from}` where the values need a hint to be read."""
    key: list[str] = Field(min_length=1)
    """The columns that identify a row."""
    session: PathTexts = ()
    """Path to the session id, or paths to the texts that form it. Required, unless a decoder class gives it."""
    time: EventTimeSettings | None = None
    """Where the event time is. Default: the Kafka timestamp."""
    order: SeqOrderSettings | Literal["arrival", "decoder"] = "arrival"
    """Where the seq is. With `arrival` it is the Kafka offset, and no message can be missing.

    `decoder`: the decoder class gives it.
    """
    messages: list[MessageRuleSettings] = Field(default_factory=list)
    """A rule for each kind of message. The first rule whose conditions are met reads a message."""
    decoder: str | None = Field(None, pattern=r"^[\w.]+:\w+$")
    """Instead of `messages`: a class `module:Class` that reads messages, as `sessionlake.feeds.decoder` says."""
    unavailable: tuple[Scalar, ...] = ()
    """Values by which the producer says that it did not send a column."""
    rescue: bool | None = None
    """True stores undeclared fields of rows in `_rescued`. Default: true for `row: all` and for decoder classes."""
    repeats: Literal["in_order", "refuse"] = "in_order"
    """What happens if a message has the same key twice: the changes apply in order, or the message is quarantined."""
    keep: RowLimitSettings | None = None
    """Limit for the rows of a session's table."""
    check: ChecksumSettings | None = None
    """Checksum in messages with which tables are compared."""
    starts_with: Literal["snapshot", "anything"] | SessionStartSettings = "snapshot"
    """What a session may begin with. `anything` allows updates before the first snapshot.

    `{snapshot: true, hold: N}` holds up to N messages back until a snapshot arrives, and applies those that follow it.
    """
    integrity: Integrity | None = None
    """Overrides `capture.integrity` and `capture.by_topic`."""
    on_violation: OnViolation | None = None
    """Overrides `capture.on_violation` and `capture.by_topic`."""
    lateness: Duration | None = None
    """Overrides `capture.lateness` and `capture.by_topic`."""
    gap_timeout: Duration | None = None
    """Overrides `capture.gap_timeout`."""
    session_timeout: Duration | Literal["never"] | None = None
    """Overrides `capture.session_timeout`. `never`: sessions do not expire."""

    @model_validator(mode="before")
    @classmethod
    def _merge_with_preset(cls, value: Any) -> Any:
        return apply_preset_to_feed_settings(value)

    @model_validator(mode="after")
    def _require_valid_feed(self) -> Self:
        self.convert_to_feed()
        return self

    @property
    def holds_rows(self) -> bool:
        """True if the rows of sessions must be in memory while messages are judged."""
        return self.convert_to_feed().needs_rows_in_memory

    @property
    def seq_modulo(self) -> int | None:
        """The number at which the producer's seq starts again at 0; None if the seq never starts again."""
        return None if isinstance(self.order, str) else self.order.modulo

    @property
    def has_links_to_previous_seq(self) -> bool:
        """True if messages name the seq of the previous message, so that the next seq cannot be predicted."""
        return any(
            not isinstance(order, str) and order.after is not None for order in self.list_order_settings_of_rules()
        )

    @property
    def max_messages_held_for_snapshot(self) -> int:
        """Most messages that a session holds back until a snapshot arrives; 0 if it holds none back."""
        return self.starts_with.hold if isinstance(self.starts_with, SessionStartSettings) else 0

    @property
    def has_chains(self) -> bool:
        """True if several sessions share the counter that gives their seqs."""
        return self.convert_to_feed().has_sessions_sharing_seqs

    def refuse_unsupported_integrity_classes(self, classes: Collection[Integrity]) -> None:
        """Raises ValueError if one of these integrity classes cannot judge messages of this feed; the text says why."""
        if self.max_messages_held_for_snapshot:
            self._validate_hold_settings(classes)
        orders = self.list_order_settings_of_rules()
        is_counting = all(not isinstance(order, str) and order.rises_by_one for order in orders)
        for found in sorted({*classes} & {Integrity.ONCE, Integrity.WINDOW}):
            if self.holds_rows:
                raise ValueError(
                    f"feed {self.name!r}: with integrity {found}, messages are applied in another order than "
                    "they arrive, so keep, check, expect, scope and a decoder class that needs rows cannot "
                    "be used; set integrity of this feed to none, order or strict"
                )
            if not is_counting:
                raise ValueError(
                    f"feed {self.name!r}: with integrity {found}, every seq is remembered, so the feed needs "
                    "an order whose seq rises by one (order: {seq: PATH}); write such an order, or set "
                    "integrity of this feed to none, order or strict"
                )

    def _validate_hold_settings(self, classes: Collection[Integrity]) -> None:
        """Raises ValueError if `starts_with.hold` cannot work with these integrity classes or with the feed's order."""
        where, instead = f"feed {self.name!r}: starts_with.hold", "or write starts_with: snapshot"
        for found, why in _WITHOUT_HOLD.items():
            if found in classes:
                raise ValueError(
                    f"{where}: integrity {found} {why}; set integrity of this feed to order or strict, {instead}"
                )
        if any(rule.is_ is EventKind.SNAPSHOT and rule.order == "none" for rule in self.messages):
            raise ValueError(
                f"{where}: with order: none, a snapshot has no seq, so held messages cannot be compared "
                f"with it; give it an `order`, {instead}"
            )
        for order in self.list_order_settings_of_rules():
            if order == "arrival":
                raise ValueError(
                    f"{where}: with order: arrival, the seq is the Kafka offset, so every held message is "
                    f"older than the snapshot; write order: {{seq: PATH}}, {instead}"
                )
            if self.has_chains or (not isinstance(order, str) and order.modulo):
                key = "chain" if self.has_chains else "modulo"
                raise ValueError(
                    f"{where}: with order.{key}, a held message's seq does not show whether it follows the snapshot; "
                    f"remove order.{key}, {instead}"
                )

    def list_order_settings_of_rules(self) -> set[SeqOrderSettings | str]:
        """Returns the distinct `order` settings of all rules, except rules that ignore messages."""
        rules = [rule for rule in self.messages if rule.is_ is not EventKind.IGNORE]
        return {rule.order or self.order for rule in rules} or {self.order}

    @property
    def view_names(self) -> tuple[str, str]:
        """Names of the feed's two views: of present rows, and of changes."""
        return f"silver.{self.name}", f"silver.{self.name}{CHANGES_SUFFIX}"

    def convert_to_feed(self) -> Feed:
        """Returns the settings as a `Feed`, the form that the package `sessionlake.feeds` uses."""
        return _convert_feed_settings(self)


def _convert_feed_settings(settings: FeedSettings) -> Feed:
    """Returns feed settings as a `Feed`.

    Raises:
        ValueError: a setting cannot be used; the text names its key.
    """
    require_allowed_column_names(dict.fromkeys(settings.columns, ""), BUILT_IN_COLUMNS, "silver", _INSTEAD)
    columns = {name: _convert_column_settings(name, given) for name, given in settings.columns.items()}
    key = tuple(require_known_column(name, columns, "key") for name in settings.key)
    for column in key:
        if column.sql.startswith(("array", "variant", "float", "double")):
            raise ValueError(
                f"key: column {column.name!r} is of type {column.sql}, whose values cannot identify a "
                "row; name a column of another type"
            )
    _require_rules_or_decoder(settings)
    _require_consistent_chains(settings)
    _require_same_modulo(settings)
    text = settings.model_dump_json()
    checksum = settings.check.checksum if settings.check else None
    defaults = RuleDefaultsOfFeed(settings.session, settings.time, settings.order, settings.rescue, checksum)
    return Feed(
        name=settings.name,
        topics=re.compile(settings.topics),
        columns=columns,
        key=key,
        session=settings.session,
        time=settings.time.convert_to_event_time_setting() if settings.time else EventTimeSetting(),
        order=convert_order_settings(settings.order) or MessageOrderSetting(OrderMethod.ARRIVAL),
        rules=tuple(
            convert_message_rule(number, rule, defaults, columns, key)
            for number, rule in enumerate(settings.messages, 1)
        ),
        unavailable=tuple(map(convert_float_to_decimal, settings.unavailable)),
        format=settings.format,
        key_format=settings.key_format,
        refuse_repeats=settings.repeats == "refuse",
        keep=convert_keep_settings(settings.keep, columns, settings.messages),
        check=convert_checksum_settings(settings.check, settings.keep, columns, settings.messages, settings.name),
        hold=settings.max_messages_held_for_snapshot,
        fingerprint=hashlib.sha256(text.encode()).hexdigest()[:16],
        reads_kafka_headers="kafka.headers" in text or settings.decoder is not None,
        decoder=_build_decoder_use(settings),
        needs_digits=any(column.how == "digits" for column in columns.values()),
    )


def _require_consistent_chains(settings: FeedSettings) -> None:
    """Raises ValueError if some rules have an order with `chain` and others an order without."""
    orders = [*settings.list_order_settings_of_rules()]
    chained = [not isinstance(order, str) and order.chain is not None for order in orders]
    if any(chained) and not all(one or order == "none" for one, order in zip(chained, orders, strict=True)):
        raise ValueError(
            "order: some rules have a `chain` and others do not, so the seqs of their messages "
            "cannot be compared; give every rule a chain, or none"
        )


def _require_same_modulo(settings: FeedSettings) -> None:
    """Raises ValueError if the order of a rule has another `modulo` than the feed, whose value is used for all."""
    for number, rule in enumerate(settings.messages, 1):
        has_chain = isinstance(rule.order, SeqOrderSettings) and rule.order.chain is not None
        if rule.order in {None, "none"} or (rule.is_ is EventKind.IGNORE and not has_chain):
            continue
        own = rule.order.modulo if isinstance(rule.order, SeqOrderSettings) else None
        if own != settings.seq_modulo:
            raise ValueError(
                f"messages: rule {number}: order.modulo is {own or 'missing'}, but order.modulo of the "
                f"feed is {settings.seq_modulo or 'missing'}, and all messages of a session are counted "
                "together; write the same modulo in both, or leave it out in both"
            )


def _require_rules_or_decoder(settings: FeedSettings) -> None:
    """Raises ValueError if the feed has neither rules nor a decoder class, or settings that do not work with them."""
    if settings.decoder is None:
        if not settings.messages:
            raise ValueError("a feed needs `messages` (its rules), a `decoder` (a class), or `uses` (a preset)")
        if not settings.session:
            raise ValueError(
                "session: the feed does not say which session a message belongs to; write the path to the session id"
            )
        of_rules = [number for number, rule in enumerate(settings.messages, 1) if rule.checksum is not None]
        if settings.check is not None and settings.check.checksum is None and not of_rules:
            raise ValueError(
                "check: the feed has a check, but no path to the checksum; write `checksum` in `check` or in the rules"
            )
        if settings.check is None and of_rules:
            raise ValueError(
                f"messages: rule {of_rules[0]}: `checksum` has no effect, because the feed has no `check` "
                "that compares it; add a check, or leave `checksum` out"
            )
        if settings.order == "decoder":
            raise ValueError(
                "order: `decoder` is only possible in a feed with a decoder class; write {seq: PATH}, or arrival"
            )
        return
    wrong = [name for name in ("messages", "time", "unavailable") if getattr(settings, name)]
    if wrong:
        raise ValueError(
            f"{wrong[0]}: the feed has a decoder class, which reads the messages itself; leave out "
            f"{wrong[0]} or `decoder`"
        )
    if isinstance(settings.order, SeqOrderSettings) and settings.order.seq is not None:
        raise ValueError(
            "order: the decoder class gives the seq, so `order` can only be arrival, decoder or {modulo: NUMBER}"
        )
    if paths := [path.text for path in settings.session if not _reads_only_kafka_record(path)]:
        raise ValueError(
            f"session: the path {paths[0]!r} leads into the message, which only the decoder class "
            "reads; use a path such as kafka.topic or kafka.key"
        )


def _reads_only_kafka_record(path: FeedPath) -> bool:
    """Returns True if every alternative of the path is a constant or a field of the Kafka record."""
    inside = {PathStart.MESSAGE, PathStart.ELEMENT, PathStart.PARENT}
    return not any(isinstance(one, PathAlternative) and one.start in inside for one in path.alternatives)


def _build_decoder_use(settings: FeedSettings) -> DecoderClassSetting | None:
    if settings.decoder is None:
        return None
    named = DecoderLoader(settings.name, settings.decoder, str(FilePath.cwd()))
    return DecoderClassSetting(named, rescue=settings.rescue is not False)


def _convert_column_settings(name: str, settings: str | FeedColumnSettings) -> FeedColumn:
    return (
        parse_feed_column(name, settings)
        if isinstance(settings, str)
        else parse_feed_column(name, settings.type, settings.from_)
    )
