"""Processors: those that a configuration names, and those that its products of tables are run as."""

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
    """One user-defined processor (see `sessionlake.processors`)."""

    model_config = ConfigDict(populate_by_name=True)

    name: str = Field(pattern=r"^[a-z][a-z0-9_]{0,62}$")
    """Names the processor and its table."""
    target: str = Field(alias="class", min_length=1)
    """An entry point of the group `sessionlake.processors`, or `module:Class`."""
    topics: Regex = ".*"
    """Which of the captured topics it is given; matches whole names."""
    key: tuple[str, ...] = ()
    """Columns of `source`, by whose values it has a state, and is given rows; unless set, sessions and messages."""
    source: str = Field("silver.session_changes", pattern=SOURCE)
    """The table whose rows it is given, with a `key`."""
    order: tuple[str, ...] = ("_ts", "topic", "partition", "_position", "session_id", "ordinal")
    """Columns of `source` by which a key's rows are ordered: no two rows of a key are alike in all of them."""
    table: str | None = Field(None, pattern=r"^(silver|gold)\.[a-z][a-z0-9_]{0,127}$")
    """The output table; `silver.<name>` unless set."""
    options: dict[str, Any] = Field(default_factory=dict)
    """Keyword arguments of the class."""
    on_error: OnViolation | None = None
    """What a failure of the class does; without it, what a violation does in the topic."""
    max_state_bytes: int = Field(1024 * 1024, gt=0)
    """Most bytes of one session's state."""
    max_records_per_call: int = Field(100_000, gt=0)
    """Most records and timers of one message or timer."""
    trigger: Duration = timedelta(seconds=1)
    """How long after the start of a batch the next one starts."""

    @property
    def into(self) -> str:
        """The output table."""
        return self.table or f"silver.{self.name}"

    @property
    def layer(self) -> str:
        """What the ledger, the checkpoint and the streaming query call it."""
        return f"processor-{self.name}"

    @property
    def where(self) -> str:
        """Where the configuration declares it."""
        return f"processors.{self.name}"

    @property
    def rebuilt_as(self) -> str:
        """What `sessionlake rebuild` calls it."""
        return f"processor:{self.name}"


class ProductProcessor(ProcessorSettings):
    """A product of gold that names a source: it is run as a processor with a key, which goes by its declaration."""

    product: ProductSettings

    @property
    def where(self) -> str:
        """Where the configuration declares it."""
        return f"gold.products.{self.name}"

    @property
    def rebuilt_as(self) -> str:
        """What `sessionlake rebuild` calls it."""
        return self.into


def with_products(processors: Iterable[ProcessorSettings], gold: GoldSettings) -> tuple[ProcessorSettings, ...]:
    """Processors and what products of tables are run as, each behind those that fill its source.

    Raises:
        ValueError: two have one name, or some are made of each other.
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
        raise ValueError(f"{' from '.join(reversed(error.args[1]))}: tables cannot be made from each other") from None


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
