"""Settings of gold: its batches, and the tables that a configuration declares."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from datetime import timedelta
from enum import StrEnum
from itertools import chain, pairwise
from typing import Self

from pydantic import ByteSize, Field, field_validator, model_validator

from sessionlake.protocol.columns import find_repeated_names
from sessionlake.protocol.names import require_allowed_column_names
from sessionlake.settings.references import EnrichedSettings, ReferenceSettings
from sessionlake.settings.section import Duration, Section

BATCH_BYTES = ByteSize(256 << 20)
_NUMBER_KEYS = ("topic", "session_id", "row_id", "metric")
_TEXT_KEYS = ("topic", "session_id", "row_id", "column", "value")


class EventKind(StrEnum):
    """The values that a product aggregates: the numbers that changes set, or the texts."""

    NUMBERS = "numbers"
    TEXTS = "texts"


class OutputMode(StrEnum):
    """How a product's results are published."""

    UPDATE = "update"
    """One table with the current results. A row changes as long as events arrive for it."""
    APPEND = "append"
    """That table, and a second one. A row is appended to the second one once it can no longer change."""


class AggregateKind(StrEnum):
    """The function that computes a result column of a product."""

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
"""Regular expression for the names of tables that a processor with a key can read."""
_RETENTION = Field(None, ge=timedelta(hours=1))
# These functions depend on the order of events, which is defined only within one metric of one row.
_ORDERED_KINDS = {AggregateKind.FIRST, AggregateKind.LAST}
_TIME_KINDS = {AggregateKind.FIRST_TS, AggregateKind.LAST_TS}
_EXACT_KINDS = {
    *(AggregateKind.COUNT, AggregateKind.SUM, AggregateKind.MEAN, AggregateKind.MIN, AggregateKind.MAX),
    *_ORDERED_KINDS,
    *_TIME_KINDS,
}
"""The functions of a decimal column whose results are exact."""
_KINDS_OF = {
    EventKind.NUMBERS: {*AggregateKind} - {AggregateKind.APPROX_DISTINCT},
    EventKind.TEXTS: {
        AggregateKind.COUNT,
        AggregateKind.FIRST_TS,
        AggregateKind.LAST_TS,
        AggregateKind.APPROX_DISTINCT,
    },
}


def describe_missing_for_append(
    keys: Collection[str], bucket: timedelta | None, lateness: timedelta | None, retention: timedelta | None
) -> str:
    """Returns a text that says which settings a product lacks for `output: append`, and why; empty if none is missing.

    The arguments are the settings of the same names.
    """
    missing = [] if bucket is not None else ["a bucket, which says when a row is complete"]
    missing += [] if lateness is not None else ["a lateness, after which no event is added to a bucket"]
    if lateness is not None and retention is not None and retention <= lateness:
        missing.append("a retention that is longer than the lateness, or rows would expire before they are final")
    if not {"topic", "session_id"} <= {*keys}:
        missing.append(
            "topic and session_id among its keys, because the stream time of a session's topic-partition says when a "
            "row is final"
        )
    return f"output append needs {'; and '.join(missing)}" if missing else ""


def _find_unsupported_settings(product: ProductSettings) -> Iterator[str]:
    """Yields an error text with the reason for each setting that a product with a source table cannot have."""
    again = "a result is computed again from all rows of its key and bucket whenever one of them changes"
    if product.lateness is not None:
        yield f"lateness {product.lateness}: with a source, no row is too late, because {again}"
    if product.retention is not None:
        yield f"retention {product.retention}: with a source, results stay as long as its rows, because {again}"
    if product.output is not OutputMode.UPDATE:
        yield f"output {product.output}: with a source, no result is ever final, because {again}"
    if product.feed is not None:
        yield f"feed {product.feed}: a source table has rows of all feeds. Leave out source, or leave out feed"
    if product.source == product.table:
        yield f"source {product.source}: a table cannot be its own source"


def _find_missing_settings(product: ProductSettings) -> Iterator[str]:
    """Yields an error text with the reason for each setting that a product with a source table needs but lacks."""
    kinds = {*product.aggregates.values()}
    if product.python is not None and not product.keys:
        yield "keys: repeat the product's keys here, because commands that maintain tables read the configuration only"
    if product.time is None and (needs := [*sorted(kinds & _TIME_KINDS), *["bucket"] * (product.bucket is not None)]):
        yield f"{needs[0]}: needs `time`, the source's column with the event time"
    if product.value is None and (needs := sorted(kinds - {AggregateKind.COUNT} - _TIME_KINDS)):
        yield f"{needs[0]}: needs `value`, the source's column to aggregate"
    if kinds & _ORDERED_KINDS and product.time is None and not product.order:
        yield f"{min(kinds & _ORDERED_KINDS)}: needs `time` or `order`, which say what rows are first and last"


class ProductSettings(Section):
    """A declared table of gold, with one row per key and bucket of event time."""

    name: str = Field(pattern=r"^[a-z][a-z0-9_]{0,62}$")
    """Names the table: `gold.<name>`."""
    python: str | None = Field(None, pattern=r"^[\w.]+:\w+$")
    """A `sessionlake.gold.Product` as `module:NAME`, instead of the settings below."""
    feed: str | None = None
    """Name of a feed: only changes of topics that it reads are aggregated. None: all topics."""
    source: str | None = Field(None, pattern=SOURCE)
    """The table whose rows it aggregates. None: the values that silver's changes set."""
    time: str | None = None
    """With a source: its column with the event time, a timestamp, or a bigint in milliseconds."""
    value: str | None = None
    """With a source: its column to aggregate. Rows where it is null are ignored. Results of decimals are exact.

    Without a source: a decimal column of a feed. Only its values are aggregated, and the results are exact.
    """
    order: tuple[str, ...] = ()
    """With a source: its columns that order rows of the same time, for `first` and `last`."""
    of: EventKind = EventKind.NUMBERS
    """The values to aggregate: the numbers that changes set, or the texts."""
    keys: tuple[str, ...] = ()
    """Of `topic, session_id, row_id` and `metric` (for texts: `column` and `value`). With a source: its columns."""
    bucket: Duration | None = Field(None, ge=timedelta(seconds=1))
    """Length of the buckets of event time. None: one bucket for all time."""
    lateness: Duration | None = Field(None, ge=timedelta(0))
    """How long after its bucket's end, in stream time, an event is still added. None: forever."""
    retention: Duration | None = _RETENTION
    """How long after its bucket's end, in stream time of its topic, a row is kept. None: forever."""
    output: OutputMode = OutputMode.UPDATE
    """`append`: also `gold.<name>_final`, to which each row is appended once it is final."""
    aggregates: dict[str, AggregateKind] = Field(default_factory=dict)
    """The result columns, and what each is computed as."""

    @field_validator("output", mode="before")
    @classmethod
    def _refuse_complete_output(cls, value: object) -> object:
        if value == "complete":
            raise ValueError(
                "there is no output `complete`; write update or append. With update, each version of the table is a "
                "complete result: read the latest version, or an older one with VERSION AS OF"
            )
        return value

    @field_validator("aggregates")
    @classmethod
    def _require_usable_names(cls, value: dict[str, AggregateKind]) -> dict[str, AggregateKind]:
        require_allowed_column_names(value, (), "the table")
        return value

    @model_validator(mode="after")
    def _require_needed_settings(self) -> Self:
        given = self.model_fields_set - {"name", "python", "output", "source"}
        given -= {"keys"} if self.source is not None else set()
        if self.python is not None and given:
            raise ValueError(f"the product in Python says everything else itself: leave out {', '.join(sorted(given))}")
        if self.python is None and not (self.keys and self.aggregates):
            raise ValueError("set keys and aggregates, or name a product in Python with `python: module:NAME`")
        return self

    @model_validator(mode="after")
    def _require_settings_that_fit_source(self) -> Self:
        if self.source is None:
            if unused := sorted(self.model_fields_set & {"time", "order"}):
                raise ValueError(f"{unused[0]}: only a product with a `source` can have this key; leave it out")
            return self
        for wrong in chain(_find_unsupported_settings(self), _find_missing_settings(self)):
            raise ValueError(wrong)
        require_allowed_column_names((*self.keys, *self.aggregates), self._added_columns, self.table)
        return self

    @property
    def _added_columns(self) -> tuple[str, ...]:
        """Names of the columns that the product's tables have in addition to its keys and aggregates."""
        partition = ("partition",) if self.output is OutputMode.APPEND else ()
        return ("_batch", *partition) if self.bucket is None else ("_batch", *partition, "window_start")

    @model_validator(mode="after")
    def _require_consistent_settings(self) -> Self:
        if self.source is None:
            self._require_settings_that_fit_changes()
        if missing := sorted({*self.aggregates.values()} - _KINDS_OF[self.of]):
            raise ValueError(
                f"{self.of} cannot be aggregated as {', '.join(missing)}; use some of "
                f"{', '.join(sorted(_KINDS_OF[self.of]))}"
            )
        return self

    def _require_settings_that_fit_changes(self) -> None:
        known = _NUMBER_KEYS if self.of is EventKind.NUMBERS else _TEXT_KEYS
        if unknown := [key for key in self.keys if key not in known]:
            raise ValueError(f"keys: use some of {', '.join(known)} with of: {self.of}; found {', '.join(unknown)}")
        if self.value is not None and self.of is not EventKind.NUMBERS:
            raise ValueError(f"value: {self.value}: without a `source`, it names a column of numbers; leave out `of`")
        if self.value is not None and (others := sorted({*self.aggregates.values()} - _EXACT_KINDS)):
            raise ValueError(
                f"values of the decimal column {self.value} cannot be aggregated exactly as {', '.join(others)}; use "
                f"some of {', '.join(sorted(_EXACT_KINDS))}. Or leave out `value` to aggregate all columns as doubles"
            )
        require_allowed_column_names((*self.keys, *self.aggregates), self._added_columns, self.table)
        if "partition" in self.aggregates and {"topic", "session_id"} <= {*self.keys}:
            raise ValueError(
                "a table with the keys topic and session_id has a column `partition`; give yours another name"
            )
        if {*self.aggregates.values()} & _ORDERED_KINDS and {*self.keys} != {*_NUMBER_KEYS}:
            raise ValueError(
                f"first and last need the points of one series, so the keys must be {', '.join(_NUMBER_KEYS)}"
            )
        if self.retention is not None and (self.bucket is None or "topic" not in self.keys):
            raise ValueError(
                "`retention` counts from a bucket in the topic's stream time: it needs `bucket` and the key topic"
            )

    @model_validator(mode="after")
    def _require_settings_for_append(self) -> Self:
        if self.output is not OutputMode.APPEND or self.python is not None or self.source is not None:
            return self
        if lacks := describe_missing_for_append(self.keys, self.bucket, self.lateness, self.retention):
            raise ValueError(lacks)
        return self

    @property
    def table(self) -> str:
        """The table's name with schema, `gold.<name>`."""
        return f"gold.{self.name}"

    @property
    def tables(self) -> tuple[str, ...]:
        """The names with schema of the product's tables: one, or two with `output: append`."""
        return (self.table, f"{self.table}_final") if self.output is OutputMode.APPEND else (self.table,)


class AverageSettings(Section):
    """A table of averages over the last points of each series, with one row per point."""

    name: str = Field(pattern=r"^[a-z][a-z0-9_]{0,62}$")
    """Names the table: `gold.<name>`."""
    keys: tuple[str, ...] | None = None
    """`topic` and `metric`, and `session_id` or `row_id` or both. The two standard tables have fixed keys."""
    feed: str | None = None
    """Name of a feed: only points of topics that it reads are averaged. None: all topics."""
    points: int | None = Field(None, ge=1, le=1024)
    """Most points per average. Default: `rolling_points`."""
    watermark: Duration = Field(timedelta(0), ge=timedelta(0))
    """How far the watermark of a series is behind its newest point, in event time."""
    early: bool = True
    """Whether averages are published before the watermark has passed their points."""
    least_points: int = Field(1, ge=1)
    """Least points per average: averages over fewer points are not published."""

    @model_validator(mode="after")
    def _require_consistent_settings(self) -> Self:
        standard = STANDARD_AVERAGES.get(self.name)
        if standard is None and self.keys is None:
            raise ValueError("keys need topic and metric, and session_id or row_id or both")
        if self.keys is None:
            return self
        if standard is not None and {*self.keys} != {*standard}:
            raise ValueError(f"the keys of the standard table {self.name} must be {', '.join(standard)}")
        if unknown := sorted({*self.keys} - {*_NUMBER_KEYS}):
            raise ValueError(f"keys of averages: use some of {', '.join(_NUMBER_KEYS)}; found {', '.join(unknown)}")
        if len({*self.keys}) < len(self.keys) or not {"topic", "metric"} <= {*self.keys}:
            raise ValueError("keys must name topic and metric, and each key only once")
        return self

    @property
    def table(self) -> str:
        """The table's name with schema, `gold.<name>`."""
        return f"gold.{self.name}"


STANDARD_AVERAGES = {"rolling_average": _NUMBER_KEYS, "sensor_average": ("topic", "row_id", "metric")}
"""The tables of averages that every lake has, and their keys."""


class TierSettings(Section):
    """How long rows of `metrics_1m`, `metrics_1h` and `metrics_1d` are kept after the end of their minute, hour or day.

    The time is counted in stream time of the row's topic.
    """

    metrics_1m: Duration | None = _RETENTION
    """How long rows of `gold.metrics_1m` are kept. None: forever."""
    metrics_1h: Duration | None = _RETENTION
    """How long rows of `gold.metrics_1h` are kept. None: forever."""
    metrics_1d: Duration | None = _RETENTION
    """How long rows of `gold.metrics_1d` are kept. None: forever."""

    @model_validator(mode="after")
    def _require_coarser_kept_longer(self) -> Self:
        spans = [(name, getattr(self, name) or timedelta.max) for name in type(self).model_fields]
        for (finer, short), (coarser, long) in pairwise(spans):
            if long < short:
                raise ValueError(
                    f"keep {coarser} at least as long as {finer}, because queries over a range combine both"
                )
        return self

    @property
    def shortest_retention(self) -> timedelta | None:
        """The shortest retention of `metrics_1m`, `metrics_1h` and `metrics_1d`; None if all rows are kept forever."""
        return min((span for name in type(self).model_fields if (span := getattr(self, name))), default=None)


class GoldSettings(Section):
    """Settings of gold, the layer that computes tables of analytics from the changes of sessions."""

    trigger: Duration = timedelta(seconds=3)
    """Least time between the starts of two batches. Each batch needs some CPU seconds, which silver cannot use then."""
    max_bytes_per_trigger: ByteSize = Field(ByteSize(64 << 20), gt=0)
    """Most bytes of `session_changes` files per batch; at least one file is read.

    In memory, and as rows of gold's tables, the data needs about twenty times as many bytes.
    """
    rolling_points: int = Field(8, ge=1, le=1024)
    """Most points per average, unless `averages` sets another number."""
    averages: tuple[AverageSettings, ...] = ()
    """Further tables of averages, and overrides for the standard ones."""
    shards: int = Field(64, gt=0, le=65_536)
    """Number of parts in which averages are computed in parallel."""
    products: tuple[ProductSettings, ...] = ()
    """Further tables of aggregates."""
    retention: TierSettings = TierSettings()
    """How long `metrics_1m`, `metrics_1h` and `metrics_1d` are kept. Default: forever."""
    references: tuple[ReferenceSettings, ...] = ()
    """Slowly changing tables, `reference.<name>`, that others write."""
    enriched: tuple[EnrichedSettings, ...] = ()
    """Tables of changes joined with reference tables."""
    change_feed: tuple[str, ...] = ()
    """Tables, without `gold.`, that record their changes so that they can be published."""

    @model_validator(mode="after")
    def _require_distinct_names(self) -> Self:
        tables = [*self.declared_tables, *self.processor_tables, *(one.applied_table_name for one in self.references)]
        if repeated := find_repeated_names(table.removeprefix("gold.") for table in tables):
            raise ValueError(f"two tables of gold have the name {', '.join(repeated)}; rename one")
        return self

    @model_validator(mode="after")
    def _require_existing_change_feeds(self) -> Self:
        own = (table.removeprefix("gold.") for table in (*self.declared_tables, *self.processor_tables))
        known = dict.fromkeys((*STANDARD_AVERAGES, *TierSettings.model_fields, "distinct_values", *own))
        if unknown := [name for name in self.change_feed if name not in known]:
            raise ValueError(f"change_feed: gold has no table {', '.join(unknown)}; its tables are {', '.join(known)}")
        return self

    @property
    def declared_tables(self) -> tuple[str, ...]:
        """Names with schema of the declared tables of averages, enriched tables, and products without a source."""
        averages, enriched = ((one.table for one in many) for many in (self.averages, self.enriched))
        kept_up = (one for one in self.products if one.source is None)
        return (*averages, *(table for one in kept_up for table in one.tables), *enriched)

    @property
    def processor_tables(self) -> tuple[str, ...]:
        """Names with schema of the tables of products with a source, which processors with a key maintain."""
        return tuple(one.table for one in self.products if one.source is not None)

    @property
    def added_tables(self) -> tuple[str, ...]:
        """Names with schema of gold's tables that exist only because of this configuration; none with a source."""
        standard = {f"gold.{name}" for name in STANDARD_AVERAGES}
        own = (table for table in self.declared_tables if table not in standard)
        return (*own, *(one.applied_table_name for one in self.references))

    @property
    def reference_tables(self) -> tuple[str, ...]:
        """Names with schema of the reference tables."""
        return tuple(one.table for one in self.references)
