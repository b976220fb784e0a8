"""Comments of columns that a configuration declares: of products, averages, enriched tables and reference tables."""

from __future__ import annotations

from collections.abc import Iterator
from functools import singledispatch

from sessionlake.delta.schemas.columns import (
    METRIC,
    OFFSET,
    ORDINAL,
    ROW_ID,
    SESSION_ID,
    TOPIC,
    TS,
)
from sessionlake.delta.schemas.columns import (
    PARTITION as PARTITION_COLUMN,
)
from sessionlake.delta.schemas.definition import Column, described
from sessionlake.delta.schemas.gold import AVERAGE_COMMENTS
from sessionlake.gold.aggregate.final import BATCH, FinalTable
from sessionlake.gold.aggregate.functions import Aggregate, Count, Derived, Endmost, Extreme, Mean, Sum, Variance
from sessionlake.gold.aggregate.product import START, Product
from sessionlake.gold.aggregate.sketches import Buckets, Distinct, Quantile, Registers
from sessionlake.gold.aggregate.sources import Rows
from sessionlake.gold.enrich.reference import FROM, GONE_BY, TAKEN_BY, TO, Reference, taken_columns
from sessionlake.gold.enrich.table import OF_CHANGE, Enriched
from sessionlake.gold.fold.series import RollingAverage

_KEYS = {column.name: column.comment for column in (TOPIC, SESSION_ID, ROW_ID, METRIC, PARTITION_COLUMN)}
_KEYS |= {
    "column": "Name of the declared column that the text was set in",
    "value": "The text that was set",
}
_START = "Event time at which the bucket begins (UTC)"
_CHANGE = {column.name: column.comment for column in (TOPIC, SESSION_ID, PARTITION_COLUMN, OFFSET, ORDINAL, TS)} | {
    "row_id": "Id of the row; null if change is clear",
    "change": "clear (all rows of the session go), upsert or delete (one row)",
    "position": "Order of application in the session (session_changes._position)",
}
_OWN = "Declared column: the value that the message set; null if it set null or did not set it"


def product_columns(product: Product) -> tuple[Column, ...]:
    """The columns of a product's table."""
    return described(product.columns, product_comments(product))


def product_comments(product: Product) -> dict[str, str]:
    """What the columns of a product mean, those that only keep it included.

    A column whose name begins with an underscore is state: what late rows are merged by.
    """
    return _key_comments(product) | dict(_results(product))


def _key_comments(product: Product) -> dict[str, str]:
    bucket = {START: _START} if product.bucket_ms is not None else {}
    if isinstance(product.source, Rows):
        return {name: f"Key: {name} of {product.source.table}" for name in product.keys} | bucket
    return {name: _KEYS.get(name, f"Key: {name} of the event") for name in product.row_keys} | bucket


def _results(product: Product) -> Iterator[tuple[str, str]]:
    for name, one in product.aggregates.items():
        said = meaning(one)
        if name not in product.results:
            said = f"State: {said[0].lower()}{said[1:]}"
        yield name, said
        if isinstance(one, Aggregate):
            yield from ((beside, f"State of {name}: what it is merged by") for beside, _ in one.columns(name)[1:])


@singledispatch
def meaning(one: Aggregate | Derived) -> str:
    """What the result of an aggregate is; of one in Python, its class is named."""
    return f"Computed by the aggregate {type(one).__name__}"


@meaning.register
def _(one: Count) -> str:
    del one
    return "Number of values"


@meaning.register
def _(one: Sum) -> str:
    return f"Sum of the squares of {one.of}" if one.squared else f"Sum of {one.of}"


@meaning.register
def _(one: Extreme) -> str:
    end = "Highest" if one.greatest else "Lowest"
    return f"{end} event time, ms since the epoch" if one.of == "ts" else f"{end} {one.of}"


@meaning.register
def _(one: Endmost) -> str:
    return f"{'Last' if one.last else 'First'} {one.of} in event time"


@meaning.register
def _(one: Mean) -> str:
    return f"Mean of {one.value}"


@meaning.register
def _(one: Variance) -> str:
    return f"Sample variance of {one.value}; null if there is one, or squares are beyond the range of doubles"


@meaning.register
def _(one: Quantile) -> str:
    return f"Quantile {one.share:g} of {one.value}, within 0.8 %"


@meaning.register
def _(one: Distinct) -> str:
    return f"Number of different {one.value}s, with a standard error of 0.8 %"


@meaning.register
def _(one: Buckets) -> str:
    return f"Number of {one.of}s in each bucket of numbers, for quantiles"


@meaning.register
def _(one: Registers) -> str:
    return f"Registers of HyperLogLog, of {one.of}s"


def final_columns(final: FinalTable) -> tuple[Column, ...]:
    """The columns of the table of a product's final rows."""
    batch = "Number of the gold batch by which the row was final"
    return described(final.columns, product_comments(final.product) | {BATCH: batch})


def average_columns(series: RollingAverage) -> tuple[Column, ...]:
    """The columns of a table of averages."""
    return described(series.columns, AVERAGE_COMMENTS)


def enriched_columns(table: Enriched) -> tuple[Column, ...]:
    """The columns of an enriched table."""
    comments = {name: _OWN for name, _ in table.own[len(OF_CHANGE) :]} | _CHANGE
    for join in table.joins:
        source = join.reference.table
        comments |= {
            name: f"{column} of {source} at event time; null if no row held then" for name, column in join.take
        }
        comments[join.version] = f"{FROM} of the row of {source} that held at event time; null if none did"
    return described(table.columns, comments | {BATCH: "Number of the silver batch that wrote the change"})


def reference_columns(reference: Reference) -> tuple[Column, ...]:
    """The columns of a reference table."""
    return described(reference.all_columns, _reference_comments(reference))


def taken_reference_columns(reference: Reference) -> tuple[Column, ...]:
    """The columns of the table that holds what gold has read of a reference table."""
    numbers = {
        TAKEN_BY: "Number of the correction that brought the row",
        GONE_BY: "Number of the correction that removed it; null if it holds",
    }
    return described(taken_columns(reference), _reference_comments(reference) | numbers)


def _reference_comments(reference: Reference) -> dict[str, str]:
    return (
        dict.fromkeys(reference.key_names, "Key: what the row is about")
        | {name: "Declared column: what holds of the key in this time" for name, _ in reference.columns}
        | {
            FROM: "Event time from which the row holds, included",
            TO: "Event time until which the row holds, not included; null if it has no end",
        }
    )
