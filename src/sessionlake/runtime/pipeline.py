"""Layers run together in one process: started in order, watched, stopped as one."""

from __future__ import annotations

import fcntl
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

from sessionlake.config import Settings
from sessionlake.errors import MachineError, SessionlakeError
from sessionlake.lake.ledger import LedgerEntry
from sessionlake.runtime.home import require_home
from sessionlake.runtime.kafka import require_broker
from sessionlake.runtime.streams import LayerQuery, explain
from sessionlake.silver.tables import TableMerger

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LAYERS = ("bronze", "silver", "gold")
_LOOK_SECONDS = 0.25


def preflight(settings: Settings, layers: Sequence[str]) -> None:
    """What can be refused before Spark is started.

    Raises:
        BrokerError: bronze is to run and Kafka does not answer.
        MachineError: the home cannot be written.
    """
    if settings.catalog is None:
        require_home(settings)
    if "bronze" in layers:
        require_broker(settings)


def run(
    spark: SparkSession, settings: Settings, layers: Sequence[str], *, once: bool, stop: threading.Event
) -> list[str]:
    """Runs layers until `stop` is set, or with `once` each in its turn until it has taken in what there is.

    Returns:
        The layers that ran; with `once` and an early stop, those that came to their end.

    Raises:
        SessionlakeError: what ended one of them; the others have been stopped.
    """
    with claimed(settings, layers):
        if not once:
            with RunningLayers(spark, settings, layers) as running:
                while not stop.wait(_LOOK_SECONDS):
                    running.check()
            return list(layers)
        return [layer for layer in layers if not stop.is_set() and _to_the_end(spark, settings, layer, stop)]


def _to_the_end(spark: SparkSession, settings: Settings, layer: str, stop: threading.Event) -> bool:
    with RunningLayers(spark, settings, [layer], once=True) as running:
        while not running.ended():
            if stop.is_set():
                return False
        if running.merger is not None:
            running.merger.catch_up()
    return True


@contextmanager
def claimed(settings: Settings, layers: Sequence[str]) -> Iterator[None]:
    """Keeps a second process of this machine from running the same layers over the same home.

    Raises:
        MachineError: one does already.
    """
    with ExitStack() as held:
        if settings.catalog is None:
            folder = require_home(settings, "locks") / "locks"
            for layer in layers:
                lock = held.enter_context((folder / layer).open("w"))
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except OSError:
                    raise MachineError(
                        f"{layer} already runs over {settings.home}: stop that process, "
                        "or name another home with SESSIONLAKE_HOME"
                    ) from None
        yield


class WatchedMerger(TableMerger):
    """A table merger that says how far it is.

    Attributes:
        announced: the stream's batches committed since this process began: (batch id, messages).
        merged: highest batch id known to be merged, -1 before the first.
    """

    def __init__(self, spark: SparkSession, settings: Settings) -> None:
        super().__init__(spark, settings)
        self.announced: list[LedgerEntry] = []
        self.merged = -1

    def announce(self, entry: LedgerEntry) -> None:
        """Says that the stream has committed a batch."""
        self.announced.append(entry)
        super().announce(entry)

    def catch_up(self) -> int:
        """Merges everything committed so far; returns the number of merges."""
        due = self.announced[-1].txn.version if self.announced else -1
        done = super().catch_up()
        self.merged = max(self.merged, due)
        return done


class RunningLayers:
    """Layers in one process, as a context: leaving it stops them.

    Args:
        layers: some of `LAYERS`; silver brings its table merger with it.
        once: each stream ends when it has taken in what there was; silver's tables are then the caller's to merge.
    """

    def __init__(self, spark: SparkSession, settings: Settings, layers: Sequence[str], *, once: bool = False) -> None:
        self._spark = spark
        self._settings = settings
        self._layers = tuple(layers)
        self._once = once
        self.queries: dict[str, LayerQuery] = {}
        self.merger: WatchedMerger | None = None

    def __enter__(self) -> RunningLayers:
        try:
            for layer in self._layers:
                self.queries[layer] = self._start(layer)
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_error: object) -> None:
        self.stop()

    def check(self) -> None:
        """Returns at once while all is well.

        Raises:
            SessionlakeError: what ended one of the layers.
        """
        if self.merger is not None and self.merger.error is not None:
            error = self.merger.error
            if isinstance(error, SessionlakeError):
                raise error
            raise explain(error, "silver tables", self._settings.checkpoint("silver")) from error
        for query in self.queries.values():
            if not query.active:
                query.wait()
                raise SessionlakeError(f"{query.layer} was stopped from outside: run it again")

    def ended(self, seconds: float = _LOOK_SECONDS) -> bool:
        """Waits a moment; whether all streams have come to their end (as only those started with `once` do).

        Raises:
            SessionlakeError: what ended one of them.
        """
        return all(query.wait(seconds) for query in self.queries.values())

    def stop(self) -> None:
        """Stops them, sources first. A batch that is given up half-way is repeated, without a trace, at the next start."""
        for layer in self._layers:
            query = self.queries.get(layer)
            if query is not None:
                query.stop()
        if self.merger is not None:
            self.merger.stop()

    def _start(self, layer: str) -> LayerQuery:
        if layer == "bronze":
            from sessionlake.bronze.job import start as start_bronze

            return start_bronze(self._spark, self._settings, once=self._once)
        if layer == "gold":
            from sessionlake.gold.job import start as start_gold

            return start_gold(self._spark, self._settings, once=self._once)
        return self._start_silver()

    def _start_silver(self) -> LayerQuery:
        from sessionlake.silver.job import start as start_silver

        self.merger = WatchedMerger(self._spark, self._settings)
        query = start_silver(self._spark, self._settings, once=self._once, on_batch=self.merger.announce)
        if not self._once:
            self.merger.start()
        return query
