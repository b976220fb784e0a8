"""The payloads that a shard emits for products: rows of the products' tables, or its changes if they are few."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from sessionlake.gold.aggregate.product import START, Product
from sessionlake.gold.aggregate.sources import DeclaredColumns
from sessionlake.gold.fold.outputs import EmittedPayload, RowCountAndTimeRange, split_into_payloads

FEW_CHANGES = 1_000
"""A shard with up to this number of changes emits the changes. The driver then computes the products' rows from them.
"""
LATE_POINTS = "/late_points"  # no product can have a name with a slash
"""Kind of payload with events that are too late for products: rows of `gold.late_points` without `_batch`."""
CHANGES = "/changes"
"""Kind of payload with the changes of a shard that has only few changes."""


def create_product_payloads(
    changes: pa.Table, declared: DeclaredColumns, products: Sequence[Product]
) -> list[EmittedPayload]:
    """Returns what one shard emits for products: their rows, or the changes themselves if they are at most 1,000.

    Computing a product takes milliseconds even for few changes. So the driver computes the rows of all shards with few
    changes together.

    Args:
        changes: The shard's changes.
        declared: The declared columns that the changes have.
        products: The products, each after the product from which it is computed.
    """
    late = (product.select_late_rows(changes, declared) for product in products if product.lateness_ms is not None)
    payloads = [emitted for rows in late for emitted in split_into_payloads(LATE_POINTS, rows, None)]
    if changes.num_rows <= FEW_CHANGES:
        return [*payloads, EmittedPayload(CHANGES, RowCountAndTimeRange(changes.num_rows, 0, 0), changes)]
    tables = compute_product_rows(changes, declared, products)
    return payloads + [
        emitted
        for product in products
        for rows in [dictionary_encode_keys(product, tables[product.name])]
        for emitted in split_into_payloads(product.name, rows, START if product.bucket_ms else None)
    ]


def compute_product_rows(
    changes: pa.Table, declared: DeclaredColumns, products: Sequence[Product]
) -> dict[str, pa.Table]:
    """Returns each product's rows, computed from changes, by name of the product.

    Args:
        changes: The changes.
        declared: The declared columns that the changes have.
        products: The products, each after the product from which it is computed.
    """
    sources = {product.source for product in products if product.below is None}
    events = {source: source.extract_events(changes, declared) for source in sources}
    tables: dict[str, pa.Table] = {}
    for product in products:
        if product.below is not None:
            tables[product.name] = product.aggregate_shorter_buckets(tables[product.below.name])
        elif product.lateness_ms is not None:
            tables[product.name] = product.aggregate_changes(changes, declared)
        else:
            tables[product.name] = product.aggregate_events(events[product.source])
    return tables


def dictionary_encode_keys(product: Product, rows: pa.Table) -> pa.Table:
    """Returns a product's rows with dictionary-encoded key columns, since most rows share the same texts."""
    for name in product.keys:
        rows = rows.set_column(rows.column_names.index(name), name, rows[name].dictionary_encode())
    return rows.combine_chunks()
