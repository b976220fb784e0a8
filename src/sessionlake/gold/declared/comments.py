"""Comments on the columns of tables that the configuration declares."""

from __future__ import annotations

from collections.abc import Iterator

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
from sessionlake.gold.aggregate.final import BATCH, FinalTable
from sessionlake.gold.aggregate.functions import Aggregate
from sessionlake.gold.aggregate.product import START, Product
from sessionlake.gold.aggregate.sources import Rows
from sessionlake.gold.enrich.reference import FROM, GONE_BY, TAKEN_BY, TO, ReferenceTable
from sessionlake.gold.enrich.table import CHANGE_COLUMNS, EnrichedTable

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
_DECLARED = "Declared column: the value that the message set; null if it set null or did not set it"


def build_product_comments(product: Product) -> dict[str, str]:
    """Returns a comment for each column of a product's table, by column name.

    A product is a declared table of aggregates. Columns with state, which gold needs to merge later events into a row,
    get a comment that says so.
    """
    return _build_key_comments(product) | dict(_build_result_comments(product))


def _build_key_comments(product: Product) -> dict[str, str]:
    bucket = {START: _START} if product.bucket_ms is not None else {}
    if isinstance(product.source, Rows):
        return {name: f"Key: {name} of {product.source.table}" for name in product.keys} | bucket
    return {name: _KEYS.get(name, f"Key: {name} of the event") for name in product.row_keys} | bucket


def _build_result_comments(product: Product) -> Iterator[tuple[str, str]]:
    for name, one in product.aggregates.items():
        comment = one.column_comment
        if name not in product.result_columns:
            comment = f"State: {comment[0].lower()}{comment[1:]}"
        yield name, comment
        if isinstance(one, Aggregate):
            yield from (
                (beside, f"State of {name}: what it is merged by") for beside, _ in one.list_state_columns(name)[1:]
            )


def build_final_comments(final: FinalTable) -> dict[str, str]:
    """Returns a comment for each column of the table with a product's final rows, by column name."""
    return build_product_comments(final.product) | {BATCH: "Number of the gold batch by which the row was final"}


def build_enriched_comments(table: EnrichedTable) -> dict[str, str]:
    """Returns a comment for each column of an enriched table, by column name."""
    comments = {name: _DECLARED for name, _ in table.change_columns[len(CHANGE_COLUMNS) :]} | _CHANGE
    for join in table.joins:
        source = join.reference.table_name
        comments |= {
            name: f"{column} of {source} at event time; null if no row held then" for name, column in join.taken_columns
        }
        comments[join.valid_from_column] = f"{FROM} of the row of {source} that held at event time; null if none did"
    return comments | {BATCH: "Number of the silver batch that wrote the change"}


def build_reference_comments(reference: ReferenceTable) -> dict[str, str]:
    """Returns a comment for each column of a reference table and of gold's copy of it, by column name."""
    return (
        dict.fromkeys(reference.key_names, "Key: what the row is about")
        | {name: "Declared column: what holds of the key in this time" for name, _ in reference.columns}
        | {
            FROM: "Event time from which the row holds, included",
            TO: "Event time until which the row holds, not included; null if it has no end",
            TAKEN_BY: "Number of the correction that brought the row",
            GONE_BY: "Number of the correction that removed it; null if it holds",
        }
    )
