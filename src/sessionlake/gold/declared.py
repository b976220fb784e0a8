"""The products of a lake: those that every lake has, and those that its configuration declares."""

from __future__ import annotations

from sessionlake.config import Settings, milliseconds
from sessionlake.errors import ConfigError
from sessionlake.gold.aggregate.functions import Aggregate, Count, Derived, Endmost, Extreme, Mean, Sum, Variance
from sessionlake.gold.aggregate.product import START, Product
from sessionlake.gold.aggregate.sketches import Buckets, Distinct, Quantile, Registers
from sessionlake.gold.aggregate.sources import POINTS, TEXTS
from sessionlake.gold.aggregate.standard import STANDARD
from sessionlake.gold_settings import AggregateKind, EventKind, ProductSettings
from sessionlake.lake.names import VIEWS
from sessionlake.lake.schemas import TABLES
from sessionlake.lake.table_schema import TableSchema, Writes

_KINDS: dict[AggregateKind, Aggregate | Derived] = {
    AggregateKind.COUNT: Count(),
    AggregateKind.SUM: Sum("value"),
    AggregateKind.MIN: Extreme("value", greatest=False),
    AggregateKind.MAX: Extreme("value", greatest=True),
    AggregateKind.MEAN: Mean("__sum", "__count"),
    AggregateKind.VARIANCE: Variance("__sum", "__squares", "__count"),
    AggregateKind.FIRST: Endmost("value", last=False),
    AggregateKind.LAST: Endmost("value", last=True),
    AggregateKind.FIRST_TS: Extreme("ts", greatest=False, type="bigint"),
    AggregateKind.LAST_TS: Extreme("ts", greatest=True, type="bigint"),
    AggregateKind.P50: Quantile("__buckets", 0.5),
    AggregateKind.P90: Quantile("__buckets", 0.9),
    AggregateKind.P95: Quantile("__buckets", 0.95),
    AggregateKind.P99: Quantile("__buckets", 0.99),
    AggregateKind.APPROX_DISTINCT: Distinct("__registers"),
}
_SUMS: dict[str, Aggregate] = {"__count": Count(), "__sum": Sum("value")}
_BUCKETS: dict[str, Aggregate] = {"__buckets": Buckets("value")}
# What is kept besides, for those that follow from it.
_KEPT: dict[AggregateKind, dict[str, Aggregate]] = {
    AggregateKind.MEAN: _SUMS,
    AggregateKind.VARIANCE: _SUMS | {"__squares": Sum("value", squared=True)},
    AggregateKind.P50: _BUCKETS,
    AggregateKind.P90: _BUCKETS,
    AggregateKind.P95: _BUCKETS,
    AggregateKind.P99: _BUCKETS,
    AggregateKind.APPROX_DISTINCT: {"__registers": Registers("value")},
}


def products_of(settings: Settings) -> tuple[Product, ...]:
    """All products, each behind the one that it is made from.

    Raises:
        ConfigError: a declared one has the name of another table.
    """
    for declared in settings.gold.products:
        if declared.table in {*TABLES, *VIEWS}:
            raise ConfigError(f"gold.products: {declared.table} is a table of every lake's: choose another name")
    return (*STANDARD, *map(_product, settings.gold.products))


def schemas_of(settings: Settings) -> dict[str, TableSchema]:
    """The definitions of the declared products' tables."""
    return {product.table: _schema(product) for product in products_of(settings) if product.table not in TABLES}


def _product(declared: ProductSettings) -> Product:
    aggregates = {name: _KINDS[kind] for name, kind in declared.aggregates.items()}
    for kind in sorted({*declared.aggregates.values()}):
        aggregates |= _KEPT.get(kind, {})
    return Product(
        declared.name,
        declared.keys,
        aggregates,
        source=POINTS if declared.of is EventKind.NUMBERS else TEXTS,
        bucket_ms=None if declared.bucket is None else milliseconds(declared.bucket),
        comment=f"A row for each {', '.join(declared.keys)}" + (f" and {declared.bucket}" if declared.bucket else ""),
    )


def _schema(product: Product) -> TableSchema:
    keys = product.row_keys
    skipping = (*product.keys, START) if START in keys else product.keys
    return TableSchema(product.columns, product.comment, cluster_by=keys[:2], skipping=skipping, writes=Writes.BOTH)
