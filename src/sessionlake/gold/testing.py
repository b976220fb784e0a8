"""Checks a product in a unit test: batches merged one by one must give the same rows as all changes at once.

    changes = [Change(0, row_id="r", price=1.5), Change(60_000, row_id="r", price=2.5, status="on")]
    rows = check(BY_METRIC, changes)
    assert rows[0]["points"] == 2

The changes are split into batches in many ways, in the given order and in others. Spark is not needed. The `sql` of an
aggregate is not checked here; `sessionlake verify gold` does that.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from math import isclose, isnan
from typing import Any

import pyarrow as pa

from sessionlake.gold.aggregate.late import APPLIED
from sessionlake.gold.aggregate.product import Product
from sessionlake.gold.aggregate.sources import (
    PARTITION,
    DeclaredColumns,
    build_number_column_name,
    build_text_column_name,
)
from sessionlake.protocol.types import Row

_NEAR = 1e-9


class Change:
    """A change of one row of a session's table: the values that one update set.

    Args:
        ts: Event time, in ms.
        applied: Stream time at which the change was applied, in ms; by default its event time.
        values: The set values (numbers and texts), by name of the declared column.
    """

    def __init__(
        self,
        ts: int,
        *,
        applied: int | None = None,
        row_id: str = "r",
        session_id: str = "s",
        topic: str = "capture.test",
        **values: float | str,
    ) -> None:
        self.place: dict[str, str | int] = {"topic": topic, "session_id": session_id, "row_id": row_id, "ts": ts}
        self.place |= {PARTITION: 0, APPLIED: ts if applied is None else applied}
        self.values = values


def check(product: Product, changes: Sequence[Change], *, ways: int = 50, seed: int = 0) -> list[Row]:
    """Computes a product's rows from changes, and checks that the split of the changes into batches does not matter.

    Args:
        changes: The changes, in the order of their application.
        ways: How many random ways to split the changes into batches.
        seed: Seed of the random numbers.

    Returns:
        The rows, as dicts of values by column.

    Raises:
        AssertionError: A row differs for one way of splitting. The text names the row and the batches.
    """
    declared, chance = _infer_declared_columns(changes), random.Random(seed)  # noqa: S311 - not for secrets
    rows = [_create_change_row(declared, change, place) for place, change in enumerate(changes)]
    expected = _index_rows_by_key(product, product.aggregate_changes(_create_change_table(declared, rows), declared))
    for _ in range(ways):
        order = chance.sample(rows, len(rows)) if chance.random() < 1 / 2 else rows
        batches = list(_split_into_batches(order, chance))
        held = product.arrow_schema().empty_table()
        for batch in batches:
            held = _merge_batch(
                product, held, product.aggregate_changes(_create_change_table(declared, batch), declared)
            )
        _require_same_results(product, expected, _index_rows_by_key(product, held), batches)
    return list(expected.values())


def _infer_declared_columns(changes: Iterable[Change]) -> DeclaredColumns:
    numbers: dict[str, None] = {}
    texts: dict[str, None] = {}
    for change in changes:
        for name, value in change.values.items():
            (texts if isinstance(value, str) else numbers)[name] = None
    return DeclaredColumns(tuple(numbers), tuple(texts))


def _create_change_row(declared: DeclaredColumns, change: Change, position: int) -> Row:
    values = {build_number_column_name(i): change.values.get(name) for i, name in enumerate(declared.numbers)}
    texts = {build_text_column_name(i): change.values.get(name) for i, name in enumerate(declared.texts)}
    return change.place | {"position": position, "ordinal": 0} | values | texts


def _create_change_table(declared: DeclaredColumns, change_rows: Sequence[Row]) -> pa.Table:
    names = [(name, pa.string()) for name in ("topic", "session_id", "row_id")]
    names += [(PARTITION, pa.int32())]
    names += [("ts", pa.int64()), (APPLIED, pa.int64()), ("position", pa.int64()), ("ordinal", pa.int32())]
    names += [(build_number_column_name(i), pa.float64()) for i in range(len(declared.numbers))]
    names += [(build_text_column_name(i), pa.string()) for i in range(len(declared.texts))]
    return pa.Table.from_pylist(list(change_rows), pa.schema(names))


def _split_into_batches(rows: Sequence[Row], random_numbers: random.Random) -> Iterable[Sequence[Row]]:
    cuts = sorted(random_numbers.sample(range(1, len(rows)), random_numbers.randint(0, len(rows) - 1))) if rows else []
    for first, end in zip([0, *cuts], [*cuts, len(rows)], strict=True):
        yield rows[first:end]


def _merge_batch(product: Product, stored_rows: pa.Table, batch_rows: pa.Table) -> pa.Table:
    """Merges the rows that one batch adds into the rows that the table stores. Returns the table's new rows."""
    merged = _index_rows_by_key(product, product.merge_rows(batch_rows, stored_rows))
    return pa.Table.from_pylist([*(_index_rows_by_key(product, stored_rows) | merged).values()], product.arrow_schema())


def _index_rows_by_key(product: Product, table: pa.Table) -> dict[Any, Row]:
    return {tuple(row[name] for name in product.row_keys): row for row in table.to_pylist()}


def _require_same_results(
    product: Product, expected: dict[Any, Row], actual: dict[Any, Row], batches: Sequence[Any]
) -> None:
    for key in expected.keys() | actual.keys():
        wanted, is_ = expected.get(key), actual.get(key)
        if (
            wanted is None
            or is_ is None
            or not all(_are_nearly_equal(wanted[name], is_[name]) for name in product.result_columns)
        ):
            lengths = ", ".join(str(len(batch)) for batch in batches)
            raise AssertionError(
                f"{product.table_name}: {dict(zip(product.row_keys, key, strict=True))} is {is_} after batches of "
                f"{lengths} changes, but {wanted} when all changes come at once"
            )


def _are_nearly_equal(expected: Any, actual: Any) -> bool:
    if isinstance(expected, float) and isinstance(actual, float):
        return isclose(expected, actual, rel_tol=_NEAR) or (isnan(expected) and isnan(actual))
    return bool(expected == actual)
