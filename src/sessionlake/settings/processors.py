"""Settings of processors: configured ones, and those that maintain gold's products with a source table."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta
from graphlib import CycleError, TopologicalSorter
from typing import Any

from pydantic import ConfigDict, Field

from sessionlake.protocol.columns import find_repeated_names
from sessionlake.settings.gold import SOURCE, GoldSettings, ProductSettings
from sessionlake.settings.section import Duration, OnViolation, Regex, SettingsSection


class ProcessorSettings(SettingsSection):
    """One processor: a user's class that computes a table from the messages of sessions or from rows of a table."""

    model_config = ConfigDict(populate_by_name=True)

    name: str = Field(pattern=r"^[a-z][a-z0-9_]{0,62}$")
    """Names the processor and its table."""
    target: str = Field(alias="class", min_length=1)
    """The class: an entry point of the group `sessionlake.processors`, or `module:Class`."""
    topics: Regex = ".*"
    """The captured topics that it processes. Must match a topic's whole name."""
    key: tuple[str, ...] = ()
    """Columns of `source`. The processor then receives its rows, and has one state for each value of these columns.

    Empty: the processor receives the messages of sessions, and has one state per session.
    """
    source: str = Field("silver.session_changes", pattern=SOURCE)
    """The table whose rows it processes, if it has a `key`."""
    order: tuple[str, ...] = ("_ts", "topic", "partition", "_position", "session_id", "ordinal")
    """Columns of `source` that order a key's rows. No two rows of a key may be equal in all of them."""
    table: str | None = Field(None, pattern=r"^(silver|gold)\.[a-z][a-z0-9_]{0,127}$")
    """The output table. Default: `silver.<name>`."""
    options: dict[str, Any] = Field(default_factory=dict)
    """Keyword arguments of the class."""
    on_error: OnViolation | None = None
    """What happens when the class raises an exception. Default: the same as for violations in the topic."""
    max_state_bytes: int = Field(1024 * 1024, gt=0)
    """Largest state of one session, in bytes."""
    max_records_per_call: int = Field(100_000, gt=0)
    """Most records and timers that one message or timer may emit."""
    trigger: Duration = timedelta(seconds=1)
    """Least time between the starts of two batches."""

    @property
    def output_table(self) -> str:
        """Name of the output table, with schema."""
        return self.table or f"silver.{self.name}"

    @property
    def layer(self) -> str:
        """The processor's name in the ledger, of its checkpoint, and of its streaming query."""
        return f"processor-{self.name}"

    @property
    def config_key(self) -> str:
        """The configuration key that declares the processor."""
        return f"processors.{self.name}"

    @property
    def rebuild_argument(self) -> str:
        """The argument with which `sessionlake rebuild` rebuilds the processor's table."""
        return f"processor:{self.name}"


class ProductProcessor(ProcessorSettings):
    """The settings of a processor that sessionlake adds to maintain a product of gold with a source table."""

    product: ProductSettings

    @property
    def config_key(self) -> str:
        """The configuration key that declares the product."""
        return f"gold.products.{self.name}"

    @property
    def rebuild_argument(self) -> str:
        """The argument with which `sessionlake rebuild` rebuilds the product's table."""
        return self.output_table


def add_product_processors(
    processors: Iterable[ProcessorSettings], gold: GoldSettings
) -> tuple[ProcessorSettings, ...]:
    """Returns the configured processors, and one for each product of gold with a source table.

    If one reads a table that another writes, the writer comes first.

    Args:
        processors: The configured processors. Ones that this function has added before are replaced.
        gold: The settings with the products.

    Raises:
        ValueError: Two have the same name or table, or tables are computed from each other in a circle.
    """
    named = [own for own in processors if not isinstance(own, ProductProcessor)]
    every = [*named, *(_create_product_processor(one, gold.trigger) for one in gold.products if one.source is not None)]
    if repeated := find_repeated_names(own.name for own in every):
        raise ValueError(
            f"a processor and a product of gold with a source have the same name {', '.join(repeated)}; rename one"
        )
    if repeated := find_repeated_names(own.output_table for own in every):
        raise ValueError(
            f"a processor and a product of gold write to the same table {', '.join(repeated)}; rename one of the tables"
        )
    by_table = {own.output_table: own for own in every}
    sources = {own.output_table: [own.source] if own.key and own.source in by_table else [] for own in every}
    try:
        return tuple(by_table[table] for table in TopologicalSorter(sources).static_order())
    except CycleError as error:
        raise ValueError(
            f"tables cannot be computed from each other in a circle: {' from '.join(reversed(error.args[1]))}"
        ) from None


def _create_product_processor(product: ProductSettings, trigger: timedelta) -> ProductProcessor:
    return ProductProcessor(
        name=product.name,
        target=product.python or product.table_name,
        key=product.keys,
        source=str(product.source),
        order=product.order,
        table=product.table_name,
        trigger=trigger,
        product=product,
    )
