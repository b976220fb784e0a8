"""Settings of processors: those that are configured, and those that run products with a source table."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta
from graphlib import CycleError, TopologicalSorter
from typing import Any

from pydantic import ConfigDict, Field

from sessionlake.protocol.columns import repeated_names
from sessionlake.settings.capture import Duration, OnViolation, Regex, Section
from sessionlake.settings.gold import SOURCE, GoldSettings, ProductSettings


class ProcessorSettings(Section):
    """One user-defined processor, a class of `sessionlake.processors`."""

    model_config = ConfigDict(populate_by_name=True)

    name: str = Field(pattern=r"^[a-z][a-z0-9_]{0,62}$")
    """Names the processor and its table."""
    target: str = Field(alias="class", min_length=1)
    """An entry point of the group `sessionlake.processors`, or `module:Class`."""
    topics: Regex = ".*"
    """The captured topics that it processes. Must match a topic's whole name."""
    key: tuple[str, ...] = ()
    """Columns of `source`: the processor has a state for each value of them. Empty: a state per session.

    With a key it receives rows, without one the messages of sessions.
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
    """What happens when the class raises. Default: what a violation in the topic does."""
    max_state_bytes: int = Field(1024 * 1024, gt=0)
    """Largest state of one session, in bytes."""
    max_records_per_call: int = Field(100_000, gt=0)
    """Most records and timers that one message or timer may emit."""
    trigger: Duration = timedelta(seconds=1)
    """Least time between the starts of two batches."""

    @property
    def into(self) -> str:
        """The output table."""
        return self.table or f"silver.{self.name}"

    @property
    def layer(self) -> str:
        """Its name in the ledger, the checkpoint and the streaming query."""
        return f"processor-{self.name}"

    @property
    def where(self) -> str:
        """The configuration key that declares it."""
        return f"processors.{self.name}"

    @property
    def rebuilt_as(self) -> str:
        """Its name for `sessionlake rebuild`."""
        return f"processor:{self.name}"


class ProductProcessor(ProcessorSettings):
    """A product of gold with a source table, run as a processor with a key."""

    product: ProductSettings

    @property
    def where(self) -> str:
        """The configuration key that declares it."""
        return f"gold.products.{self.name}"

    @property
    def rebuilt_as(self) -> str:
        """Its name for `sessionlake rebuild`."""
        return self.into


def with_product_processors(
    processors: Iterable[ProcessorSettings], gold: GoldSettings
) -> tuple[ProcessorSettings, ...]:
    """Returns processors and those that run products. Each comes after those that write its source.

    Raises:
        ValueError: two have the same name or table, or some are computed from each other.
    """
    named = [own for own in processors if not isinstance(own, ProductProcessor)]
    every = [*named, *(_run_as(one, gold.trigger) for one in gold.products if one.source is not None)]
    if repeated := repeated_names(own.name for own in every):
        raise ValueError(f"a processor and a product of gold with a source have the name {', '.join(repeated)}")
    if repeated := repeated_names(own.into for own in every):
        raise ValueError(f"a processor and a product of gold have the table {', '.join(repeated)}")
    by_table = {own.into: own for own in every}
    sources = {own.into: [own.source] if own.key and own.source in by_table else [] for own in every}
    try:
        return tuple(by_table[table] for table in TopologicalSorter(sources).static_order())
    except CycleError as error:
        raise ValueError(
            f"tables cannot be computed from each other: {' from '.join(reversed(error.args[1]))}"
        ) from None


def _run_as(product: ProductSettings, trigger: timedelta) -> ProductProcessor:
    return ProductProcessor(
        name=product.name,
        target=product.python or product.table,
        key=product.keys,
        source=str(product.source),
        order=product.order,
        table=product.table,
        trigger=trigger,
        product=product,
    )
