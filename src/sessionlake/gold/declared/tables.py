"""What gold keeps up: the tables that every lake has, and those that its configuration declares."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

from sessionlake.delta.schemas.definition import TableSchema, Writes, with_comments
from sessionlake.delta.schemas.gold import AVERAGE_COMMENTS
from sessionlake.delta.schemas.names import VIEWS
from sessionlake.delta.schemas.tables import TABLES
from sessionlake.errors import ConfigError
from sessionlake.gold.aggregate.final import BATCH, FinalTable, final_table
from sessionlake.gold.aggregate.functions import Aggregate, Count, Derived, Endmost, Extreme, Mean, Sum, Variance
from sessionlake.gold.aggregate.product import START, Product
from sessionlake.gold.aggregate.sketches import Buckets, Distinct, Quantile, Registers
from sessionlake.gold.aggregate.sources import PARTITION, POINTS, TEXTS, Rows, Source, names_sessions
from sessionlake.gold.aggregate.standard import STANDARD
from sessionlake.gold.declared.comments import final_comments, product_comments
from sessionlake.gold.declared.references import enriched_of, enriched_schema, reference_schemas
from sessionlake.gold.enrich.table import Enriched
from sessionlake.gold.fold.series import POINT_SERIES, RollingAverage
from sessionlake.protocol.names import internal, same_but_for_case, same_name_text
from sessionlake.settings.gold import (
    STANDARD_AVERAGES,
    AggregateKind,
    AverageSettings,
    EventKind,
    OutputMode,
    ProductSettings,
    lacking_for_append,
)
from sessionlake.settings.model import Settings, milliseconds
from sessionlake.settings.named_code import NamedCodeError, named_code

_SUM, _COUNT, _SQUARES, _BUCKETS, _REGISTERS = map(internal, ("sum", "count", "squares", "buckets", "registers"))
_KINDS: dict[AggregateKind, Aggregate | Derived] = {
    AggregateKind.COUNT: Count(),
    AggregateKind.SUM: Sum("value"),
    AggregateKind.MIN: Extreme("value", greatest=False),
    AggregateKind.MAX: Extreme("value", greatest=True),
    AggregateKind.MEAN: Mean(_SUM, _COUNT),
    AggregateKind.VARIANCE: Variance(_SUM, _SQUARES, _COUNT),
    AggregateKind.FIRST: Endmost("value", last=False),
    AggregateKind.LAST: Endmost("value", last=True),
    AggregateKind.FIRST_TS: Extreme("ts", greatest=False, type="bigint"),
    AggregateKind.LAST_TS: Extreme("ts", greatest=True, type="bigint"),
    AggregateKind.P50: Quantile(_BUCKETS, 0.5),
    AggregateKind.P90: Quantile(_BUCKETS, 0.9),
    AggregateKind.P95: Quantile(_BUCKETS, 0.95),
    AggregateKind.P99: Quantile(_BUCKETS, 0.99),
    AggregateKind.APPROX_DISTINCT: Distinct(_REGISTERS),
}
_KEEPS_SUMS: dict[str, Aggregate] = {_COUNT: Count(), _SUM: Sum("value")}
_KEEPS_BUCKETS: dict[str, Aggregate] = {_BUCKETS: Buckets("value")}
# What is kept besides, for those that follow from it.
_KEPT: dict[AggregateKind, dict[str, Aggregate]] = {
    AggregateKind.MEAN: _KEEPS_SUMS,
    AggregateKind.VARIANCE: _KEEPS_SUMS | {_SQUARES: Sum("value", squared=True)},
    AggregateKind.P50: _KEEPS_BUCKETS,
    AggregateKind.P90: _KEEPS_BUCKETS,
    AggregateKind.P95: _KEEPS_BUCKETS,
    AggregateKind.P99: _KEEPS_BUCKETS,
    AggregateKind.APPROX_DISTINCT: {_REGISTERS: Registers("value")},
}


GoldTable = Product | RollingAverage | Enriched
"""What gold keeps up, and makes anew by itself."""


def tables_of(settings: Settings) -> tuple[GoldTable, ...]:
    """All that gold keeps up.

    Raises:
        ConfigError: a declared one has the name of another table.
    """
    _refuse_taken([*(one.table for one in settings.gold.enriched), *(one.taken for one in settings.gold.references)])
    return (*averages_of(settings), *products_of(settings), *enriched_of(settings))


def averages_of(settings: Settings) -> tuple[RollingAverage, ...]:
    """The tables of averages.

    Raises:
        ConfigError: a declared one has the name of another table.
    """
    declared = {one.name: one for one in settings.gold.averages}
    _refuse_taken(one.table for one in declared.values() if one.name not in STANDARD_AVERAGES)
    whole = {name: AverageSettings(name=name) for name in STANDARD_AVERAGES} | declared
    return tuple(_average(settings, one) for one in whole.values())


def _average(settings: Settings, one: AverageSettings) -> RollingAverage:
    keys = one.keys or STANDARD_AVERAGES[one.name]
    own = {*keys, *((PARTITION,) if names_sessions(keys) else ())}
    points = one.points or settings.gold.rolling_points
    return RollingAverage(
        one.name,
        tuple(name for name in POINT_SERIES if name in own),
        points,
        milliseconds(one.watermark),
        one.early,
        one.least_points,
        comment=f"Average over each point and the {points - 1} before it, by {', '.join(keys)}",
    )


def _refuse_taken(tables: Iterable[str]) -> None:
    for table in tables:
        if table in {*TABLES, *VIEWS}:
            raise ConfigError(f"gold: {table} is a table of every lake's: choose another name")


def products_of(settings: Settings) -> tuple[Product, ...]:
    """All products that gold keeps up, each behind the one that it is made from.

    Raises:
        ConfigError: a declared one has the name of another table.
    """
    _refuse_taken(table for one in settings.gold.products for table in one.tables)
    tiers = {name: span for name, span in settings.gold.retention if span is not None}
    standard = (replace(one, retention_ms=_milliseconds(tiers.get(one.name))) for one in STANDARD)
    return (*standard, *(product_of(one) for one in settings.gold.products if one.source is None))


def finals_of(products: Iterable[GoldTable]) -> list[FinalTable]:
    """Where final rows of these are appended, of those of which they are."""
    found = (final_table(product) for product in products if isinstance(product, Product))
    return [final for final in found if final is not None]


def with_finals(products: Iterable[GoldTable]) -> list[GoldTable | FinalTable]:
    """These, and behind them where their final rows are appended."""
    every = list(products)
    return [*every, *finals_of(every)]


def schemas_of(settings: Settings) -> dict[str, TableSchema]:
    """The definitions of the tables that the configuration declares."""
    tables = tables_of(settings)
    own = {table.table: _schema(table) for table in tables if table.table not in TABLES}
    own |= {final.table: _final_schema(final) for final in finals_of(tables)}
    return own | reference_schemas(settings)


def _in_python(declared: ProductSettings, target: str) -> Product:
    where = f"gold.products.{declared.name}.python"
    try:
        found = named_code(target, Product, str(Path.cwd()))
    except NamedCodeError as error:
        raise ConfigError(f"{where}: {error}") from error
    if not isinstance(found, Product):
        raise ConfigError(f"{where}: {target} is no sessionlake.gold.Product")
    if found.name != declared.name:
        raise ConfigError(f"{where}: {target} is named {found.name!r}: the two names must be the same")
    if found.output != declared.output:
        raise ConfigError(
            f"{where}: {target} has output {found.output!r}, and the configuration {declared.output.value!r}: say the "
            f"same in both, of {', '.join(OutputMode)}, since who looks after tables goes by the configuration alone"
        )
    if vague := [name for name, one in found.aggregates.items() if type(one).__repr__ is object.__repr__]:
        raise ConfigError(
            f"{where}: {', '.join(vague)}: an aggregate of one's own is a dataclass, or has a __repr__ of "
            "all that decides its figures: by that, gold knows when the table is to be made anew"
        )
    if found.below is not None and found.below not in STANDARD:
        names = ", ".join(product.table for product in STANDARD)
        raise ConfigError(f"{where}: {target} is made from {found.below.table}; there are {names}")
    if found.retention_ms is not None and (found.bucket_ms is None or "topic" not in found.keys):
        raise ConfigError(
            f"{where}: {target} has a retention_ms: what is kept for a time has a bucket_ms, and topic among its keys, "
            "whose stream time counts"
        )
    spans = map(_span, (found.bucket_ms, found.lateness_ms, found.retention_ms))
    if found.output == OutputMode.APPEND and (lacks := lacking_for_append(found.keys, *spans)):
        raise ConfigError(f"{where}: {target}: {lacks}")
    _refuse_twice(found, f"{where}: {target}")
    for wrong in _wrong_source(found, declared):
        raise ConfigError(f"{where}: {target} {wrong}")
    return found


def _wrong_source(found: Product, declared: ProductSettings) -> Iterator[str]:
    """What cannot be of a product in Python that is made of such a source, or is said to be."""
    if found.below is not None and found.lateness_ms is not None:
        yield f"is made from {found.below.table}, which does not tell what is late"
    rows = found.source if isinstance(found.source, Rows) else None
    table = None if rows is None else rows.table
    if table != declared.source:
        yield f"has the source {table or 'silver'}, the configuration {declared.source or 'none'}: say it in both"
    if rows is None:
        return
    reads = {name for one in found.aggregates.values() if isinstance(one, Aggregate) for name in one.reads}
    if found.keys != declared.keys:
        yield f"has the keys {', '.join(found.keys)}, the configuration {', '.join(declared.keys)}: say them in both"
    if found.below is not None or found.lateness_ms is not None or found.retention_ms is not None:
        yield "is of a table's rows, all of which are gone through each time: no below, lateness_ms or retention_ms"
    if rows.time is None and (found.bucket_ms is not None or ("ts" in reads and not rows.order)):
        yield "needs the `time` of its Rows"
    if rows.value is None and "value" in reads:
        yield "needs the `value` of its Rows"


def _refuse_twice(product: Product, where: str) -> None:
    if (pair := same_but_for_case(name for name, _ in product.columns)) is not None:
        raise ConfigError(f"{where}: {same_name_text(*pair)}. Give its results other names")


def product_of(declared: ProductSettings) -> Product:
    """The product that is declared, of silver's changes or of a table's rows.

    Raises:
        ConfigError: its Python cannot be used.
    """
    if declared.python is not None:
        return _in_python(declared, declared.python)
    aggregates = {name: _KINDS[kind] for name, kind in declared.aggregates.items()}
    for kind in sorted({*declared.aggregates.values()}):
        aggregates |= _KEPT.get(kind, {})
    found = Product(
        declared.name,
        declared.keys,
        aggregates,
        source=_source(declared),
        bucket_ms=_milliseconds(declared.bucket),
        lateness_ms=_milliseconds(declared.lateness),
        retention_ms=_milliseconds(declared.retention),
        output=declared.output.value,
        comment=f"A row for each {', '.join(declared.keys)}" + (f" and {declared.bucket}" if declared.bucket else ""),
        shown=tuple(declared.aggregates),
    )
    _refuse_twice(found, f"gold.products.{declared.name}")
    return found


def _source(declared: ProductSettings) -> Source:
    numbers = declared.of is EventKind.NUMBERS
    if declared.source is not None:
        return Rows(declared.source, declared.time, declared.value, declared.order, numbers)
    return POINTS if numbers else TEXTS


def _milliseconds(span: timedelta | None) -> int | None:
    return None if span is None else milliseconds(span)


def _span(ms: int | None) -> timedelta | None:
    return None if ms is None else timedelta(milliseconds=ms)


def _schema(table: GoldTable) -> TableSchema:
    if isinstance(table, Enriched):
        return enriched_schema(table)
    keys = table.row_keys
    times = tuple(name for name in (START, "ts") if name in keys)
    skipping = (*table.keys, *times)
    if isinstance(table, RollingAverage):
        comments, written_by = AVERAGE_COMMENTS, "gold.batch.averages"
    else:
        comments, written_by = product_comments(table), "gold.batch.products"
    columns = with_comments(table.columns, comments)
    return TableSchema(
        columns, table.comment, written_by, cluster_by=keys[:2], statistics_columns=skipping, writes=Writes.BOTH
    )


def _final_schema(final: FinalTable) -> TableSchema:
    skipping = (*final.row_keys, BATCH)
    return TableSchema(
        with_comments(final.columns, final_comments(final)),
        final.comment,
        written_by="gold.batch.final",
        cluster_by=final.row_keys[:2],
        statistics_columns=skipping,
        writes=Writes.APPEND,
    )
