"""What gold computes, and the products that a configuration declares."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from datetime import timedelta
from enum import StrEnum
from itertools import chain, pairwise
from typing import Self

from pydantic import ByteSize, Field, field_validator, model_validator

from sessionlake.protocol.columns import repeated_names
from sessionlake.protocol.names import check_columns
from sessionlake.settings.capture import Duration, Section
from sessionlake.settings.references import EnrichedSettings, ReferenceSettings

BATCH_BYTES = ByteSize(256 << 20)
_NUMBER_KEYS = ("topic", "session_id", "row_id", "metric")
_TEXT_KEYS = ("topic", "session_id", "row_id", "column", "value")


class EventKind(StrEnum):
    """What a product counts and adds up: each number that a change set, or each text."""

    NUMBERS = "numbers"
    TEXTS = "texts"


class OutputMode(StrEnum):
    """How a product's results are given out."""

    UPDATE = "update"
    """As a table that is brought up to date: a row changes as long as events come for it."""
    APPEND = "append"
    """As that table, and one more, to which each row is appended once, when it is final."""


class AggregateKind(StrEnum):
    """What a column of a product comes from."""

    COUNT = "count"
    SUM = "sum"
    MIN = "min"
    MAX = "max"
    MEAN = "mean"
    VARIANCE = "variance"
    FIRST = "first"
    LAST = "last"
    FIRST_TS = "first_ts"
    LAST_TS = "last_ts"
    P50 = "p50"
    P90 = "p90"
    P95 = "p95"
    P99 = "p99"
    APPROX_DISTINCT = "approx_distinct"


SOURCE = r"^(silver|gold|reference)\.[a-z][a-z0-9_]{0,127}$"
"""Tables whose rows can be given to whoever has a key."""
_RETENTION = Field(None, ge=timedelta(hours=1))
# An event's place in time is one among those of the same metric of the same row alone.
_IN_ORDER = {AggregateKind.FIRST, AggregateKind.LAST}
_TIMES = {AggregateKind.FIRST_TS, AggregateKind.LAST_TS}
_OF = {
    EventKind.NUMBERS: {*AggregateKind} - {AggregateKind.APPROX_DISTINCT},
    EventKind.TEXTS: {
        AggregateKind.COUNT,
        AggregateKind.FIRST_TS,
        AggregateKind.LAST_TS,
        AggregateKind.APPROX_DISTINCT,
    },
}


def lacking_for_append(
    keys: Collection[str], bucket: timedelta | None, lateness: timedelta | None, retention: timedelta | None
) -> str:
    """What a product lacks whose rows are to be appended when they are final, and why; empty if nothing."""
    lacking = [] if bucket is not None else ["a bucket, at whose end a row is complete"]
    lacking += [] if lateness is not None else ["a lateness, behind which nothing comes for a bucket"]
    if lateness is not None and retention is not None and retention <= lateness:
        lacking.append("a retention that is longer than the lateness: rows would be gone before they are final")
    if not {"topic", "session_id"} <= {*keys}:
        lacking.append(
            "topic and session_id among its keys: a session's messages are all of one topic-partition, whose stream "
            "time says when a row is final; one of several would be when the last of them is"
        )
    return f"output append needs {'; and '.join(lacking)}" if lacking else ""


def _meaningless(one: ProductSettings) -> Iterator[str]:
    """What a product of a table's rows says that has no meaning there, and why."""
    again = "all rows of a key and bucket are gone through once more whenever one of them comes or changes"
    if one.lateness is not None:
        yield f"lateness {one.lateness}: with a source, nothing comes too late: {again}"
    if one.retention is not None:
        yield f"retention {one.retention}: with a source, rows stay as long as those they are made of: {again}"
    if one.output is not OutputMode.UPDATE:
        yield f"output {one.output}: with a source, no row is ever final: {again}"
    if one.source == one.table:
        yield f"source {one.source}: it would be made of itself"


def _lacking(one: ProductSettings) -> Iterator[str]:
    """What a product of a table's rows needs besides, and what for."""
    kinds = {*one.aggregates.values()}
    if one.python is not None and not one.keys:
        yield "keys: who looks after tables goes by the configuration alone: say them here, too"
    if one.time is None and (needs := [*sorted(kinds & _TIMES), *["bucket"] * (one.bucket is not None)]):
        yield f"{needs[0]}: needs `time`, the column of the source that has the event time"
    if one.value is None and (needs := sorted(kinds - {AggregateKind.COUNT} - _TIMES)):
        yield f"{needs[0]}: needs `value`, the column of the source that it is of"
    if kinds & _IN_ORDER and one.time is None and not one.order:
        yield f"{min(kinds & _IN_ORDER)}: needs `time` or `order`, by which rows are the first and the last"


class ProductSettings(Section):
    """One table of gold that is declared: a row for each key, and each bucket of event time."""

    name: str = Field(pattern=r"^[a-z][a-z0-9_]{0,62}$")
    """Names the table: `gold.<name>`."""
    python: str | None = Field(None, pattern=r"^[\w.]+:\w+$")
    """A `sessionlake.gold.Product` as `module:NAME`, in the place of all that follows."""
    source: str | None = Field(None, pattern=SOURCE)
    """The table whose rows it aggregates; unless set, what silver's changes set."""
    time: str | None = None
    """With a source: its column that has the event time, a timestamp, or a bigint in milliseconds."""
    value: str | None = None
    """With a source: its column that is aggregated. A row without a value in it counts nowhere."""
    order: tuple[str, ...] = ()
    """With a source: its columns that order rows of one time, for `first` and `last`."""
    of: EventKind = EventKind.NUMBERS
    """The columns whose changes are aggregated."""
    keys: tuple[str, ...] = ()
    """Of `topic, session_id, row_id` and `metric` (of texts: `column` and `value`); with a source, columns of it."""
    bucket: Duration | None = Field(None, ge=timedelta(seconds=1))
    """Length of the buckets of event time; unless set, all time is one."""
    lateness: Duration | None = Field(None, ge=timedelta(0))
    """How long after its bucket's end, in stream time, an event may come; unless set, for ever."""
    retention: Duration | None = _RETENTION
    """How long after its bucket's end, in stream time of its topic, a row stays; unless set, for good."""
    output: OutputMode = OutputMode.UPDATE
    """`append`: beside the table, `gold.<name>_final`, to which each row is appended once, when it is final."""
    aggregates: dict[str, AggregateKind] = Field(default_factory=dict)
    """The columns and what they come from."""

    @field_validator("output", mode="before")
    @classmethod
    def _is_no_complete(cls, value: object) -> object:
        if value == "complete":
            raise ValueError(
                "there is update, and append. A table that is kept by update holds the complete result at each of its "
                "versions: read the table, or one of them by VERSION AS OF"
            )
        return value

    @field_validator("aggregates")
    @classmethod
    def _named(cls, value: dict[str, AggregateKind]) -> dict[str, AggregateKind]:
        check_columns(value, (), "the table")
        return value

    @model_validator(mode="after")
    def _is_whole(self) -> Self:
        given = self.model_fields_set - {"name", "python", "output", "source"}
        given -= {"keys"} if self.source is not None else set()
        if self.python is not None and given:
            raise ValueError(f"the product in Python says all of it: leave out {', '.join(sorted(given))}")
        if self.python is None and not (self.keys and self.aggregates):
            raise ValueError("keys and aggregates are missing; or name a product in Python: python: module:NAME")
        return self

    @model_validator(mode="after")
    def _fits_its_source(self) -> Self:
        if self.source is None:
            if idle := sorted(self.model_fields_set & {"time", "value", "order"}):
                raise ValueError(f"{idle[0]}: is for products that name a `source`")
            return self
        for wrong in chain(_meaningless(self), _lacking(self)):
            raise ValueError(wrong)
        check_columns((*self.keys, *self.aggregates), self._published, self.table)
        return self

    @property
    def _published(self) -> tuple[str, ...]:
        """The columns that its tables have beside its keys and aggregates."""
        partition = ("partition",) if self.output is OutputMode.APPEND else ()
        return ("_batch", *partition) if self.bucket is None else ("_batch", *partition, "window_start")

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.source is None:
            self._fits_changes()
        if lacking := sorted({*self.aggregates.values()} - _OF[self.of]):
            raise ValueError(
                f"{self.of} have no {', '.join(lacking)}; of them there are {', '.join(sorted(_OF[self.of]))}"
            )
        return self

    def _fits_changes(self) -> None:
        known = _NUMBER_KEYS if self.of is EventKind.NUMBERS else _TEXT_KEYS
        if strange := [key for key in self.keys if key not in known]:
            raise ValueError(f"keys of {self.of} are {', '.join(known)}; found {', '.join(strange)}")
        check_columns((*self.keys, *self.aggregates), self._published, self.table)
        if "partition" in self.aggregates and {"topic", "session_id"} <= {*self.keys}:
            raise ValueError("with topic and session_id, the table has a column partition: give yours another name")
        if {*self.aggregates.values()} & _IN_ORDER and {*self.keys} != {*_NUMBER_KEYS}:
            raise ValueError(f"first and last are those of one series: with them, keys are {', '.join(_NUMBER_KEYS)}")
        if self.retention is not None and (self.bucket is None or "topic" not in self.keys):
            raise ValueError("what is kept for a time has a bucket, and topic among its keys, whose stream time counts")

    @model_validator(mode="after")
    def _can_be_final(self) -> Self:
        if self.output is not OutputMode.APPEND or self.python is not None or self.source is not None:
            return self
        if lacks := lacking_for_append(self.keys, self.bucket, self.lateness, self.retention):
            raise ValueError(lacks)
        return self

    @property
    def table(self) -> str:
        """Its two-level name."""
        return f"gold.{self.name}"

    @property
    def tables(self) -> tuple[str, ...]:
        """The two-level names of all its tables."""
        return (self.table, f"{self.table}_final") if self.output is OutputMode.APPEND else (self.table,)


class AverageSettings(Section):
    """One table of averages over the last points of series: a row for each point."""

    name: str = Field(pattern=r"^[a-z][a-z0-9_]{0,62}$")
    """Names the table: `gold.<name>`."""
    keys: tuple[str, ...] | None = None
    """`topic` and `metric`, and `session_id` or `row_id` or both; those of the two standard tables are given."""
    points: int | None = Field(None, ge=1, le=1024)
    """How many points an average is over, at most; by default `rolling_points`."""
    watermark: Duration = Field(timedelta(0), ge=timedelta(0))
    """How far the watermark of a series stays behind its newest point, in event time."""
    early: bool = True
    """Whether averages are published before the watermark has passed their points."""
    least_points: int = Field(1, ge=1)
    """No average of fewer points is published."""

    @model_validator(mode="after")
    def _fits(self) -> Self:
        standard = STANDARD_AVERAGES.get(self.name)
        if standard is None and self.keys is None:
            raise ValueError("keys are missing: topic and metric, and session_id or row_id or both")
        if self.keys is None:
            return self
        if standard is not None and {*self.keys} != {*standard}:
            raise ValueError(f"the keys of {self.name} are {', '.join(standard)}")
        if strange := sorted({*self.keys} - {*_NUMBER_KEYS}):
            raise ValueError(f"averages are kept by {', '.join(_NUMBER_KEYS)}; found {', '.join(strange)}")
        if len({*self.keys}) < len(self.keys) or not {"topic", "metric"} <= {*self.keys}:
            raise ValueError("keys name topic and metric, each once")
        return self

    @property
    def table(self) -> str:
        """Its two-level name."""
        return f"gold.{self.name}"


STANDARD_AVERAGES = {"rolling_average": _NUMBER_KEYS, "sensor_average": ("topic", "row_id", "metric")}
"""The tables of averages that every lake has, and their keys."""


class TierSettings(Section):
    """How long rows of the standard tiers stay after their bucket's end, in stream time of their topic."""

    metrics_1m: Duration | None = _RETENTION
    """How long rows of `gold.metrics_1m` stay; unless set, for good."""
    metrics_1h: Duration | None = _RETENTION
    """How long rows of `gold.metrics_1h` stay; unless set, for good."""
    metrics_1d: Duration | None = _RETENTION
    """How long rows of `gold.metrics_1d` stay; unless set, for good."""

    @model_validator(mode="after")
    def _coarser_is_longer(self) -> Self:
        spans = [(name, getattr(self, name) or timedelta.max) for name in type(self).model_fields]
        for (finer, short), (coarser, long) in pairwise(spans):
            if long < short:
                raise ValueError(f"{coarser} is kept shorter than {finer}, of which ranges are put together with it")
        return self

    @property
    def shortest(self) -> timedelta | None:
        """How long all of them are there; None: for good."""
        return min((span for name in type(self).model_fields if (span := getattr(self, name))), default=None)


class GoldSettings(Section):
    """Session changes to analytics."""

    trigger: Duration = timedelta(seconds=3)
    """A batch costs some CPU seconds whatever its size: at a quicker pace, gold would leave silver none."""
    max_bytes_per_trigger: ByteSize = Field(ByteSize(64 << 20), gt=0)
    """Of files of `session_changes`, as they are stored: about what a batch takes in, and one file at least.

    In memory, and as rows of gold's tables, that is twenty times as much.
    """
    rolling_points: int = Field(8, ge=1, le=1024)
    """How many points an average is over, at most, unless `averages` says another number."""
    averages: tuple[AverageSettings, ...] = ()
    """Tables of averages of your own, and what is other in the standard ones."""
    shards: int = Field(64, gt=0, le=65_536)
    """In how many parts averages are computed at once."""
    products: tuple[ProductSettings, ...] = ()
    """Tables of your own."""
    retention: TierSettings = TierSettings()
    """How long `metrics_1m`, `metrics_1h` and `metrics_1d` are kept; unless set, for good."""
    references: tuple[ReferenceSettings, ...] = ()
    """Slowly changing tables, `reference.<name>`, that others write."""
    enriched: tuple[EnrichedSettings, ...] = ()
    """Tables of changes joined with them."""
    change_feed: tuple[str, ...] = ()
    """The tables, without `gold.`, whose changes are written down besides, so that they can be published."""

    @model_validator(mode="after")
    def _apart(self) -> Self:
        tables = [*self.declared, *self.of_tables, *(one.applied_table for one in self.references)]
        if repeated := repeated_names(table.removeprefix("gold.") for table in tables):
            raise ValueError(f"two products have the name {', '.join(repeated)}")
        return self

    @model_validator(mode="after")
    def _feeds_are_of_tables(self) -> Self:
        own = (table.removeprefix("gold.") for table in (*self.declared, *self.of_tables))
        known = dict.fromkeys((*STANDARD_AVERAGES, *TierSettings.model_fields, "distinct_values", *own))
        if strange := [name for name in self.change_feed if name not in known]:
            raise ValueError(f"change_feed: gold keeps up no {', '.join(strange)}; there are {', '.join(known)}")
        return self

    @property
    def declared(self) -> tuple[str, ...]:
        """The tables that are declared, for gold to keep up; standard ones among them if they are."""
        averages, enriched = ((one.table for one in many) for many in (self.averages, self.enriched))
        kept_up = (one for one in self.products if one.source is None)
        return (*averages, *(table for one in kept_up for table in one.tables), *enriched)

    @property
    def of_tables(self) -> tuple[str, ...]:
        """The products that name a source: they are run as processors with a key, and not kept up by gold."""
        return tuple(one.table for one in self.products if one.source is not None)

    @property
    def own_tables(self) -> tuple[str, ...]:
        """The tables of gold that are added to those of every lake."""
        standard = {f"gold.{name}" for name in STANDARD_AVERAGES}
        own = (table for table in self.declared if table not in standard)
        return (*own, *(one.applied_table for one in self.references))

    @property
    def reference_tables(self) -> tuple[str, ...]:
        """The tables that others write."""
        return tuple(one.table for one in self.references)
