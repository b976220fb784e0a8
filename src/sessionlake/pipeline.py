"""The layers run together: one process on a laptop, one layer a job on Databricks."""

from __future__ import annotations

import threading
from collections.abc import Callable
from enum import StrEnum
from typing import TYPE_CHECKING

from sessionlake.bronze import job as bronze
from sessionlake.config import Settings
from sessionlake.errors import SessionlakeError
from sessionlake.gold import job as gold
from sessionlake.lake.ledger import LedgerEntry
from sessionlake.runtime.streams import LayerQuery
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

    def includes(self, layer: Layer) -> bool:
        """Whether running this one runs that one."""
        return self in (layer, Layer.ALL)


def run_once(spark: SparkSession, settings: Settings, layer: Layer) -> None:
    """Takes in what is there, layer after layer, each to its end.

    Raises:
        SessionlakeError: what stopped a layer; later layers are not begun.
    """
    if layer.includes(Layer.BRONZE):
        bronze.start(spark, settings, once=True).wait()
    if layer.includes(Layer.SILVER):
        silver.start(spark, settings, once=True).wait()
        TableMerger(spark, settings).catch_up()
    if layer.includes(Layer.GOLD):
        gold.start(spark, settings, once=True).wait()


class Pipeline:
    """Layers running live until they are stopped or one of them fails.

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
        self._queries: list[LayerQuery] = []
        self._merger: TableMerger | None = None

    def start(self) -> Pipeline:
        """Starts every layer; if one cannot start, none is left running."""
        try:
            self._start()
        except BaseException:
            self.stop()
            raise
        return self

    def _start(self) -> None:
        spark, settings = self._spark, self._settings
        if self._layer.includes(Layer.BRONZE):
            self._queries.append(bronze.start(spark, settings, on_batch=self._on_commit))
        if self._layer.includes(Layer.SILVER):
            merger = self._merger = TableMerger(spark, settings, on_merge=self._on_commit)
            self._queries.append(silver.start(spark, settings, on_batch=self._on_silver))
            merger.start()
        if self._layer.includes(Layer.GOLD):
            self._queries.append(gold.start(spark, settings))

    def _on_silver(self, entry: LedgerEntry) -> None:
        if self._merger is not None:
            self._merger.announce(entry)
        self._on_commit(entry)

    def watch(self, stop: threading.Event) -> None:
        """Returns when `stop` is set.

        Raises:
            SessionlakeError: the first error of any layer.
        """
        while not stop.wait(_LOOK_SECONDS):
            self.check()

    def check(self) -> None:
        """Raises the error of a layer that has stopped."""
        for query in self._queries:
            if not query.active:
                query.wait()
                raise SessionlakeError(f"{query.layer} ended by itself: see the log in {self._settings.home / 'logs'}")
        if self._merger is not None and self._merger.error is not None:
            raise SessionlakeError(f"merging silver's tables stopped: {self._merger.error}") from self._merger.error

    def drain(self) -> None:
        """Waits until everything that Kafka holds now has reached every table."""
        for query in self._queries:
            self._all_available(query)
            if query.layer == silver.LAYER and self._merger is not None:
                self._merger.drain()
                self.check()

    def _all_available(self, query: LayerQuery) -> None:
        try:
            query.query.processAllAvailable()
        except Exception:
            query.wait()
            raise

    def stop(self) -> None:
        """Ends every layer. A batch under way is given up: the next start repeats it."""
        for query in self._queries:
            query.stop()
        if self._merger is not None:
            self._merger.stop()
