"""The layers run together: one process on a laptop, one layer a job on Databricks."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from enum import StrEnum
from typing import TYPE_CHECKING, Self

import pyarrow as pa

from sessionlake.bronze import job as bronze
from sessionlake.config import Settings
from sessionlake.errors import SessionlakeError
from sessionlake.gold import job as gold
from sessionlake.lake.checkpoint import require_readable
from sessionlake.lake.ledger import LedgerEntry
from sessionlake.runtime.home import claim, require_home
from sessionlake.runtime.kafka import require_broker
from sessionlake.runtime.payloads import payload_of
from sessionlake.runtime.streams import LayerQuery, explain
from sessionlake.silver import job as silver
from sessionlake.silver.tables import TableMerger

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_LOOK_SECONDS = 0.25


class Layer(StrEnum):
    """What `sessionlake run` takes."""

    BRONZE = "bronze"
    SILVER = "silver"
    GOLD = "gold"
    ALL = "all"

    @property
    def parts(self) -> tuple[Layer, ...]:
        """The single layers that it means, in the order in which data passes them."""
        return (Layer.BRONZE, Layer.SILVER, Layer.GOLD) if self is Layer.ALL else (self,)


def preflight(settings: Settings, layer: Layer) -> None:
    """Refuses what cannot work, before Spark is started for it.

    Raises:
        BrokerError: bronze is to run and Kafka does not answer.
        ConfigError: silver is to run and a schema file cannot be used.
        MachineError: the home cannot be written.
    """
    if settings.catalog is None:
        require_home(settings)
    if Layer.SILVER in layer.parts:
        payload_of(settings.capture)
    if Layer.BRONZE in layer.parts:
        require_broker(settings)


def run_once(spark: SparkSession, settings: Settings, layer: Layer, stop: threading.Event) -> bool:
    """Takes in what is there, layer after layer, each to its end.

    Returns:
        Whether the end was reached: False if `stop` was set before.

    Raises:
        SessionlakeError: what stopped a layer; later layers are not begun.
    """
    with claimed(settings, layer):
        return all(_to_the_end(spark, settings, part, stop) for part in layer.parts)


def run_live(spark: SparkSession, settings: Settings, layer: Layer, stop: threading.Event) -> None:
    """Runs layers until `stop` is set.

    Raises:
        SessionlakeError: the first error of any of them; the others have been stopped.
    """
    with claimed(settings, layer), Pipeline(spark, settings, layer) as pipeline:
        pipeline.watch(stop)


class Pipeline:
    """Layers running live, from entering the context until leaving it.

    Args:
        on_commit: told of every batch of bronze, silver and the table merger that is committed.
    """

    def __init__(
        self,
        spark: SparkSession,
        settings: Settings,
        layer: Layer = Layer.ALL,
        on_commit: Callable[[LedgerEntry], None] | None = None,
    ) -> None:
        self._spark = spark
        self._settings = settings
        self._layer = layer
        self._on_commit = on_commit or (lambda _: None)
        self._merger: TableMerger | None = None
        self.queries: dict[Layer, LayerQuery] = {}

    def __enter__(self) -> Self:
        """Starts every layer; if one cannot start, none is left running."""
        try:
            for part in self._layer.parts:
                self.queries[part] = self._start(part)
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(self, *_error: object) -> None:
        """Stops them. A batch under way is given up: the next start repeats it."""
        self._stop()

    def watch(self, stop: threading.Event) -> None:
        """Returns when `stop` is set.

        Raises:
            SessionlakeError: the first error of any layer.
        """
        while not stop.wait(_LOOK_SECONDS):
            self.check()

    def check(self) -> None:
        """Raises the error of a layer that has stopped."""
        if self._merger is not None and self._merger.error is not None:
            error = self._merger.error
            if isinstance(error, SessionlakeError):
                raise error
            raise explain(error, "silver's tables", self._settings.checkpoint("silver")) from error
        for query in self.queries.values():
            query.check()

    def drain(self) -> None:
        """Waits until everything that Kafka holds now has reached every table.

        Raises:
            SessionlakeError: what stopped a layer before.
        """
        for part, query in self.queries.items():
            query.drain()
            if part is Layer.SILVER and self._merger is not None:
                self._merger.drain()
                self.check()

    def _start(self, part: Layer) -> LayerQuery:
        spark, settings = self._spark, self._settings
        require_readable(settings.checkpoint(part), part)
        if part is Layer.BRONZE:
            return bronze.start(spark, settings, on_batch=self._on_commit)
        if part is Layer.GOLD:
            return gold.start(spark, settings)
        self._merger = TableMerger(spark, settings, on_merge=self._on_commit)
        query = silver.start(spark, settings, on_batch=self._on_silver)
        self._merger.start()
        return query

    def _on_silver(self, entry: LedgerEntry, rows: Mapping[str, pa.Table]) -> None:
        if self._merger is not None:
            self._merger.announce(entry, rows)
        self._on_commit(entry)

    def _stop(self) -> None:
        for query in self.queries.values():
            query.stop()
        if self._merger is not None:
            self._merger.stop()


def _to_the_end(spark: SparkSession, settings: Settings, part: Layer, stop: threading.Event) -> bool:
    require_readable(settings.checkpoint(part), part)
    start: dict[Layer, Callable[..., LayerQuery]] = {
        Layer.BRONZE: bronze.start,
        Layer.SILVER: silver.start,
        Layer.GOLD: gold.start,
    }
    query = start[part](spark, settings, once=True)
    while not query.wait(_LOOK_SECONDS):
        if stop.is_set():
            query.stop()
            return False
    if part is Layer.SILVER:
        TableMerger(spark, settings).catch_up()
    return True


@contextmanager
def claimed(settings: Settings, layer: Layer) -> Iterator[None]:
    """Keeps a second process of this machine from running the same layers over the same home.

    Raises:
        MachineError: one does already.
    """
    with ExitStack() as held:
        for part in layer.parts:
            held.enter_context(claim(settings, part, f"runs {part}"))
        yield
