"""The tables that can be published to Kafka, with their keys and the columns that are sent."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from sessionlake.delta.schemas.names import GOLD, ROWS, VIEWS
from sessionlake.errors import UsageError
from sessionlake.gold.declared.tables import (
    add_final_tables_of_products,
    create_product_from_settings,
    list_declared_gold_tables,
)
from sessionlake.settings.gold import ProductSettings
from sessionlake.settings.model import Settings
from sessionlake.silver.tables.snapshots import ROW_KEY


@dataclass(frozen=True)
class PublishableTable:
    """The columns of a table that can be published.

    Attributes:
        key: the columns that identify a row.
        results: for a table of gold, the columns with results. Empty for other tables.
        sends_all: True if all columns are sent. False if columns that start with an underscore and are not results are
            left out. Such columns hold state, for example remainders of sums.
    """

    key: tuple[str, ...]
    results: tuple[str, ...] = ()
    sends_all: bool = False

    def list_columns_to_send(self, names: Iterable[str]) -> list[str]:
        """Returns the names of the columns that are sent to Kafka.

        Args:
            names: names of all columns of the table.
        """
        return [name for name in names if self.sends_all or name in self.results or not name.startswith("_")]


def list_publishable_tables(settings: Settings) -> dict[str, PublishableTable]:
    """Returns the tables that can be published, by name with schema: `silver.session_rows` and gold's tables.

    Some of them may still lack the change feed that publishing needs.
    """
    found = {ROWS: PublishableTable(ROW_KEY, sends_all=True)}
    found |= {
        table.table_name: PublishableTable(table.row_keys, table.result_columns)
        for table in add_final_tables_of_products(list_declared_gold_tables(settings))
    }
    products = {
        table: create_product_from_settings(one) for table, one in _list_products_computed_from_tables(settings).items()
    }
    return found | {
        table: PublishableTable(product.row_keys, product.result_columns) for table, product in products.items()
    }


def _list_products_computed_from_tables(settings: Settings) -> dict[str, ProductSettings]:
    """Returns the settings of the products that are computed from another table (`source`), by name with schema.

    Their tables always have a change feed.
    """
    return {one.table: one for one in settings.gold.products if one.source is not None}


def require_publishable(settings: Settings, table: str) -> PublishableTable:
    """Returns the columns of a table that can be published.

    Raises:
        UsageError: the table can never be published, or the configuration gives it no change feed.
    """
    known = list_publishable_tables(settings)
    if table in VIEWS:
        raise UsageError(
            f"publish: {table} is a view, and views have no change feed",
            fix=f"Publish one of the tables {', '.join(known)}. To publish a view's result, store it in a "
            "table with `gold.products`",
        )
    if table not in known:
        raise UsageError(
            f"publish: {table!r} is not a table that can be published",
            why="Only tables with a key and a change feed can be published",
            fix=f"Publish one of {', '.join(known)}",
        )
    schema, name = table.split(".")
    if (
        schema == GOLD
        and name not in settings.gold.change_feed
        and table not in _list_products_computed_from_tables(settings)
    ):
        raise UsageError(
            f"publish: {table} has no change feed, because gold.change_feed does not name it",
            fix=f"Set `gold: {{change_feed: [{', '.join((*settings.gold.change_feed, name))}]}}` and restart gold, "
            "which then switches the feed on",
        )
    return known[table]
