"""What gold computes, and the products that a configuration declares."""

from __future__ import annotations

import re
from datetime import timedelta
from enum import StrEnum
from typing import Self

from pydantic import ByteSize, Field, field_validator, model_validator

from sessionlake.capture import Duration, Section

BATCH_BYTES = ByteSize(256 << 20)
_NUMBER_KEYS = ("topic", "session_id", "row_id", "metric")
_TEXT_KEYS = ("topic", "session_id", "row_id", "column", "value")


class EventKind(StrEnum):
    """What a product counts and adds up: each number that a change set, or each text."""

    NUMBERS = "numbers"
    TEXTS = "texts"


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


_COLUMN = re.compile(r"[a-z][a-z0-9_]{0,62}")
# An event's place in time is one among those of the same metric of the same row alone.
_IN_ORDER = {AggregateKind.FIRST, AggregateKind.LAST}
_OF = {
    EventKind.NUMBERS: {*AggregateKind} - {AggregateKind.APPROX_DISTINCT},
    EventKind.TEXTS: {
        AggregateKind.COUNT,
        AggregateKind.FIRST_TS,
        AggregateKind.LAST_TS,
        AggregateKind.APPROX_DISTINCT,
    },
}


class ProductSettings(Section):
    """One table of gold that is declared: a row for each key, and each bucket of event time."""

    name: str = Field(pattern=r"^[a-z][a-z0-9_]{0,62}$")
    of: EventKind = EventKind.NUMBERS
    keys: tuple[str, ...] = Field(min_length=1)
    """Of `topic, session_id, row_id` and `metric` (of texts: `column` and `value`)."""
    bucket: Duration | None = Field(None, ge=timedelta(seconds=1))
    """Length of the buckets of event time; unless set, all time is one."""
    aggregates: dict[str, AggregateKind] = Field(min_length=1)
    """The columns and what they come from."""

    @field_validator("aggregates")
    @classmethod
    def _named(cls, value: dict[str, AggregateKind]) -> dict[str, AggregateKind]:
        for name in value:
            if not _COLUMN.fullmatch(name):
                raise ValueError(f"{name!r} is no name of a column: lower-case letters, digits and _, a letter first")
        return value

    @model_validator(mode="after")
    def _fits(self) -> Self:
        known = _NUMBER_KEYS if self.of is EventKind.NUMBERS else _TEXT_KEYS
        if strange := [key for key in self.keys if key not in known]:
            raise ValueError(f"keys of {self.of} are {', '.join(known)}; found {', '.join(strange)}")
        if len({*self.keys}) < len(self.keys) or {*self.keys, "window_start"} & {*self.aggregates}:
            raise ValueError("a column is named twice")
        if {*self.aggregates.values()} & _IN_ORDER and {*self.keys} != {*_NUMBER_KEYS}:
            raise ValueError(f"first and last are those of one series: with them, keys are {', '.join(_NUMBER_KEYS)}")
        if lacking := sorted({*self.aggregates.values()} - _OF[self.of]):
            raise ValueError(
                f"{self.of} have no {', '.join(lacking)}; of them there are {', '.join(sorted(_OF[self.of]))}"
            )
        return self

    @property
    def table(self) -> str:
        """Its two-level name."""
        return f"gold.{self.name}"


class GoldSettings(Section):
    """Session changes to analytics."""

    trigger: Duration = timedelta(seconds=20)
    """A batch costs some CPU seconds whatever its size: at a quicker pace, gold would leave silver none."""
    max_bytes_per_trigger: ByteSize = Field(BATCH_BYTES, gt=0)
    """Of files of `session_changes`, as they are stored: about what a batch takes in, and one file at least."""
    rolling_points: int = Field(8, ge=1, le=1024)
    shards: int = Field(64, gt=0, le=65_536)
    products: tuple[ProductSettings, ...] = ()
    """Tables of your own."""

    @field_validator("products")
    @classmethod
    def _apart(cls, value: tuple[ProductSettings, ...]) -> tuple[ProductSettings, ...]:
        names = [product.name for product in value]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise ValueError(f"two products have the name {', '.join(twice)}")
        return value
