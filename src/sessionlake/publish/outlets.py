"""What can be published: by which key, and which columns."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from sessionlake.delta.schemas.names import GOLD, ROWS, VIEWS
from sessionlake.errors import UsageError
from sessionlake.gold.declared.tables import product_of, tables_of, with_finals
from sessionlake.settings.gold import ProductSettings
from sessionlake.settings.model import Settings
from sessionlake.silver.tables.snapshots import ROW_KEY


@dataclass(frozen=True)
class Outlet:
    """A table that can be published.

    Attributes:
        key: the columns that tell its rows apart.
        results: of gold's columns, those that are results.
        whole: whether all columns are sent. Of gold's, those that begin with an underscore are not, unless they are
            results: they are what a figure is kept up by, as remainders of sums and sketches, and say nothing by
            themselves.
    """

    key: tuple[str, ...]
    results: tuple[str, ...] = ()
    whole: bool = False

    def columns(self, names: Iterable[str]) -> list[str]:
        """Of the table's columns, those that are sent."""
        return [name for name in names if self.whole or name in self.results or not name.startswith("_")]


def outlets(settings: Settings) -> dict[str, Outlet]:
    """The tables that can be published, if their change feed is on: rows of sessions, and all that gold keeps up."""
    found = {ROWS: Outlet(ROW_KEY, whole=True)}
    found |= {table.table: Outlet(table.row_keys, table.results) for table in with_finals(tables_of(settings))}
    products = {table: product_of(one) for table, one in _of_tables(settings).items()}
    return found | {table: Outlet(product.row_keys, product.results) for table, product in products.items()}


def _of_tables(settings: Settings) -> dict[str, ProductSettings]:
    """The products that are made of tables: these have a change feed in any case."""
    return {one.table: one for one in settings.gold.products if one.source is not None}


def outlet_of(settings: Settings, table: str) -> Outlet:
    """How a table is published.

    Raises:
        UsageError: it cannot be, or not by this configuration.
    """
    known = outlets(settings)
    if table in VIEWS:
        raise UsageError(
            f"publish: {table} is a view: it holds no rows whose changes could be sent; what it reads can be "
            f"published, or kept up as a table of one's own. These can: {', '.join(known)}"
        )
    if table not in known:
        raise UsageError(
            f"publish: {table!r} is no table with a change feed and a key to be published by; "
            f"these are: {', '.join(known)}"
        )
    schema, name = table.split(".")
    if schema == GOLD and name not in settings.gold.change_feed and table not in _of_tables(settings):
        raise UsageError(
            f"publish: {table} has no change feed, since gold.change_feed does not name it. Put {name} there, as in "
            f"`gold: {{change_feed: [{', '.join((*settings.gold.change_feed, name))}]}}`; gold switches it on when it "
            "starts next"
        )
    return known[table]
