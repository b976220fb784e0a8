"""All tables that gold maintains: the standard tables, which every lake has, and the declared ones."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

from sessionlake.delta.schemas.definition import TableSchema, WriteMode, add_comments
from sessionlake.delta.schemas.gold import AVERAGE_COMMENTS
from sessionlake.delta.schemas.names import VIEWS
from sessionlake.delta.schemas.tables import TABLES
from sessionlake.errors import ConfigError
from sessionlake.gold.aggregate.final import BATCH, FinalTable, find_final_table
from sessionlake.gold.aggregate.functions import (
    Aggregate,
)
from sessionlake.gold.aggregate.product import START, Product
from sessionlake.gold.aggregate.sources import (
    PARTITION,
    POINTS,
    TEXTS,
    DecimalPoints,
    DecimalRows,
    EventSource,
    FeedEvents,
    Rows,
    have_session_keys,
)
from sessionlake.gold.aggregate.standard import STANDARD
from sessionlake.gold.declared.aggregates import create_declared_aggregates, is_source_value_decimal
from sessionlake.gold.declared.comments import build_final_comments, build_product_comments
from sessionlake.gold.declared.references import (
    build_enriched_schema,
    build_reference_schemas,
    list_declared_enriched_tables,
)
from sessionlake.gold.enrich.table import EnrichedTable
from sessionlake.gold.fold.series import POINT_SERIES, RollingAverage
from sessionlake.protocol.names import describe_name_clash, find_names_equal_to_sql
from sessionlake.settings.capture import CaptureSettings
from sessionlake.settings.gold import (
    STANDARD_AVERAGES,
    AverageSettings,
    EventKind,
    OutputMode,
    ProductSettings,
    describe_missing_for_append,
)
from sessionlake.settings.model import Settings
from sessionlake.settings.named_code import NamedCodeError, load_named_code
from sessionlake.settings.section import milliseconds

GoldTable = Product | RollingAverage | EnrichedTable
"""A table that gold maintains. Gold rebuilds it by itself if its definition changes."""


def list_declared_gold_tables(settings: Settings) -> tuple[GoldTable, ...]:
    """Returns all tables that gold maintains.

    Raises:
        ConfigError: two tables have the same name.
    """
    _refuse_names_of_other_gold_tables(
        [*(one.table for one in settings.gold.enriched), *(one.applied_table_name for one in settings.gold.references)]
    )
    return (
        *list_declared_averages(settings),
        *list_declared_products(settings),
        *list_declared_enriched_tables(settings),
    )


def list_declared_averages(settings: Settings) -> tuple[RollingAverage, ...]:
    """Returns all tables of rolling averages: the standard ones and the declared ones.

    Raises:
        ConfigError: two tables have the same name.
    """
    declared = {one.name: one for one in settings.gold.averages}
    _refuse_names_of_other_gold_tables(one.table for one in declared.values() if one.name not in STANDARD_AVERAGES)
    by_name = {name: AverageSettings(name=name) for name in STANDARD_AVERAGES} | declared
    return tuple(_create_rolling_average(settings, one) for one in by_name.values())


def _create_rolling_average(settings: Settings, declaration: AverageSettings) -> RollingAverage:
    keys = declaration.keys or STANDARD_AVERAGES[declaration.name]
    own = {*keys, *((PARTITION,) if have_session_keys(keys) else ())}
    points = declaration.points or settings.gold.rolling_points
    return RollingAverage(
        declaration.name,
        tuple(name for name in POINT_SERIES if name in own),
        points,
        milliseconds(declaration.watermark),
        declaration.early,
        declaration.least_points,
        comment=f"Average over each point and the {points - 1} before it, by {', '.join(keys)}"
        + _describe_feed_restriction(declaration.feed),
        topics=None if declaration.feed is None else settings.capture.find_feed_topics(declaration.feed),
    )


def _refuse_names_of_other_gold_tables(tables: Iterable[str]) -> None:
    for table in tables:
        if table in {*TABLES, *VIEWS}:
            raise ConfigError(
                f"gold declares a table {table}, but sessionlake has a table or view of this name itself",
                fix="Choose another name for the declared table",
            )


def list_declared_products(settings: Settings) -> tuple[Product, ...]:
    """Returns all tables of aggregates (products), each after the product from which it is computed.

    Raises:
        ConfigError: two tables have the same name.
    """
    _refuse_names_of_other_gold_tables(table for one in settings.gold.products for table in one.tables)
    tiers = {name: span for name, span in settings.gold.retention if span is not None}
    standard = (replace(one, retention_ms=_to_milliseconds(tiers.get(one.name))) for one in STANDARD)
    own = (one for one in settings.gold.products if one.source is None)
    return (*standard, *(create_product_from_settings(one, settings.capture) for one in own))


def find_final_tables(products: Iterable[GoldTable]) -> list[FinalTable]:
    """Returns the tables of final rows (`gold.<name>_final`) of those products that have one."""
    found = (find_final_table(product) for product in products if isinstance(product, Product))
    return [final for final in found if final is not None]


def add_final_tables_of_products(products: Iterable[GoldTable]) -> list[GoldTable | FinalTable]:
    """Returns the tables, followed by the tables of final rows (`gold.<name>_final`) of those that have one."""
    every = list(products)
    return [*every, *find_final_tables(every)]


def build_declared_gold_schemas(settings: Settings) -> dict[str, TableSchema]:
    """Returns the definitions of all declared tables, by table name with schema."""
    tables = list_declared_gold_tables(settings)
    own = {table.table_name: _create_gold_table_schema(table) for table in tables if table.table_name not in TABLES}
    own |= {final.table_name: _create_final_schema(final) for final in find_final_tables(tables)}
    return own | build_reference_schemas(settings)


def _load_python_product(declared: ProductSettings, target: str) -> Product:
    where = f"gold.products.{declared.name}.python"
    try:
        found = load_named_code(target, Product, str(Path.cwd()))
    except NamedCodeError as error:
        raise ConfigError(f"{where}: {error}") from error
    if not isinstance(found, Product):
        raise ConfigError(
            f"{where}: {target} is not a `sessionlake.gold.Product`", fix="Name an instance of this class in `python`"
        )
    if found.name != declared.name:
        raise ConfigError(
            f"{where}: {target} has the name {found.name!r}, but the configuration says {declared.name!r}",
            fix="Use the same name in both",
        )
    if found.output != declared.output:
        raise ConfigError(
            f"{where}: {target} has the output {found.output!r}, but the configuration says {declared.output.value!r}",
            why="Commands that do not load Python code read only the configuration, so both must agree",
            fix=f"Write the same `output` in both, one of {', '.join(OutputMode)}",
        )
    if vague := [name for name, one in found.aggregates.items() if type(one).__repr__ is object.__repr__]:
        raise ConfigError(
            f"{where}: the classes of these aggregates have no __repr__: {', '.join(vague)}",
            why="Gold compares the __repr__ of aggregates to know when to rebuild the table",
            fix="Make each a dataclass, or write a __repr__ that shows everything that decides its results",
        )
    if found.below is not None and found.below not in STANDARD:
        names = ", ".join(product.table_name for product in STANDARD)
        raise ConfigError(
            f"{where}: {target} is computed from {found.below.table_name}, which is not a standard table of gold",
            fix=f"Compute it from one of {names}",
        )
    if found.retention_ms is not None and (found.bucket_ms is None or "topic" not in found.keys):
        raise ConfigError(
            f"{where}: the product {target} has a retention_ms, but no bucket_ms or no key `topic`",
            why="A row expires when its topic's stream time is retention_ms after the row's bucket",
            fix="Set bucket_ms and add `topic` to the keys, or leave retention_ms out",
        )
    spans = map(_to_timedelta, (found.bucket_ms, found.lateness_ms, found.retention_ms))
    if found.output == OutputMode.APPEND and (lacks := describe_missing_for_append(found.keys, *spans)):
        raise ConfigError(f"{where}: {target}: {lacks}", fix="Correct the product in Python")
    _refuse_equal_column_names(found, f"{where}: {target}")
    for wrong in _find_declaration_faults(found, declared):
        raise ConfigError(f"{where}: {target} {wrong}", fix="Correct the product in Python")
    return found


def _find_declaration_faults(product: Product, declared: ProductSettings) -> Iterator[str]:
    """Yields the reasons why a product written in Python does not fit its declaration in the configuration."""
    if product.below is not None and product.lateness_ms is not None:
        yield (
            f"has a lateness_ms, but is computed from {product.below.table_name}, which does not say which rows are "
            "late"
        )
    rows = product.source if isinstance(product.source, Rows) else None
    table = None if rows is None else rows.table
    if table != declared.source:
        yield (
            f"has the source {table or 'silver'}, but the configuration says {declared.source or 'none'}: "
            "use the same in both"
        )
    if rows is None:
        return
    reads = {name for one in product.aggregates.values() if isinstance(one, Aggregate) for name in one.input_columns}
    if product.keys != declared.keys:
        yield (
            f"has the keys {', '.join(product.keys)}, but the configuration says {', '.join(declared.keys)}: "
            "use the same in both"
        )
    if product.below is not None or product.lateness_ms is not None or product.retention_ms is not None:
        yield "is computed from all rows of a table each time: leave out below, lateness_ms and retention_ms"
    if rows.time is None and (product.bucket_ms is not None or ("ts" in reads and not rows.order)):
        yield "needs a `time` in its Rows"
    if rows.value is None and "value" in reads:
        yield "needs a `value` in its Rows"


def _refuse_equal_column_names(product: Product, where: str) -> None:
    if (pair := find_names_equal_to_sql(name for name, _ in product.column_types)) is not None:
        raise ConfigError(f"{where}: {describe_name_clash(*pair)}", fix="Give its results other names")


def create_product_from_settings(
    declaration: ProductSettings, capture: CaptureSettings | None = None, value_type: str | None = None
) -> Product:
    """Creates a product from its settings. It aggregates silver's changes or the rows of another table.

    Args:
        declaration: The settings of the product.
        capture: The feeds and columns that the settings may name; None if they name neither a feed nor a column.
        value_type: With a source table, the Spark SQL type of its column `value`; None if it is not known. Then the
            product has the right names of columns, but decimals are not aggregated exactly.

    Raises:
        ConfigError: The product is written in Python, and its code cannot be used.
    """
    if declaration.python is not None:
        return _load_python_product(declaration, declaration.python)
    found = Product(
        declaration.name,
        declaration.keys,
        create_declared_aggregates(declaration, capture, value_type),
        source=_create_event_source(declaration, capture, value_type),
        bucket_ms=_to_milliseconds(declaration.bucket),
        lateness_ms=_to_milliseconds(declaration.lateness),
        retention_ms=_to_milliseconds(declaration.retention),
        output=declaration.output.value,
        comment=f"A row for each {', '.join(declaration.keys)}"
        + (f" and {declaration.bucket}" if declaration.bucket else "")
        + _describe_feed_restriction(declaration.feed),
        shown=tuple(declaration.aggregates),
    )
    _refuse_equal_column_names(found, f"gold.products.{declaration.name}")
    return found


def _create_event_source(
    declared: ProductSettings, capture: CaptureSettings | None, value_type: str | None
) -> EventSource:
    numbers = declared.of is EventKind.NUMBERS
    if declared.source is not None:
        settings = declared.source, declared.time, declared.value, declared.order, numbers
        return (
            DecimalRows(*settings, str(value_type))
            if is_source_value_decimal(declared, value_type)
            else Rows(*settings)
        )
    found: EventSource = POINTS if numbers else TEXTS
    if capture is not None and declared.value is not None:
        found = DecimalPoints(declared.value, capture.find_column(declared.value).sql)
    if capture is not None and declared.feed is not None:
        found = FeedEvents(found, capture.find_feed_topics(declared.feed))
    return found


def _describe_feed_restriction(feed: str | None) -> str:
    return "" if feed is None else f", of topics that the feed {feed} reads"


def _to_milliseconds(span: timedelta | None) -> int | None:
    return None if span is None else milliseconds(span)


def _to_timedelta(ms: int | None) -> timedelta | None:
    return None if ms is None else timedelta(milliseconds=ms)


def _create_gold_table_schema(table: GoldTable) -> TableSchema:
    if isinstance(table, EnrichedTable):
        return build_enriched_schema(table)
    keys = table.row_keys
    times = tuple(name for name in (START, "ts") if name in keys)
    skipping = (*table.keys, *times)
    if isinstance(table, RollingAverage):
        comments, written_by = AVERAGE_COMMENTS, "gold.batch.averages"
    else:
        comments, written_by = build_product_comments(table), "gold.batch.products"
    columns = add_comments(table.column_types, comments)
    return TableSchema(
        columns, table.comment, written_by, cluster_by=keys[:2], statistics_columns=skipping, writes=WriteMode.BOTH
    )


def _create_final_schema(final: FinalTable) -> TableSchema:
    skipping = (*final.row_keys, BATCH)
    return TableSchema(
        add_comments(final.column_types, build_final_comments(final)),
        final.comment,
        written_by="gold.batch.final",
        cluster_by=final.row_keys[:2],
        statistics_columns=skipping,
        writes=WriteMode.APPEND,
    )
