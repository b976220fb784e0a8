"""The layers run together: one process on a laptop, one layer a job on Databricks."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from enum import StrEnum
from functools import partial
from typing import TYPE_CHECKING, Self

import pyarrow as pa

from sessionlake.bronze import sources as bronze
from sessionlake.delta.lake import storage_of
from sessionlake.delta.schemas.names import (
    SILVER,
    SILVER_TABLES,
)
from sessionlake.errors import IntegrityViolationError, SessionlakeError
from sessionlake.gold import job as gold
from sessionlake.ledger.entries import LedgerEntry
from sessionlake.operations.maintenance import Maintenance
from sessionlake.operations.preflight import require_sound
from sessionlake.processors import job as processors
from sessionlake.settings.model import Settings
from sessionlake.silver import job as silver
from sessionlake.silver.merge.merger import TableMerger
from sessionlake.streaming.aside import asked, stand_aside
from sessionlake.streaming.errors import explain
from sessionlake.streaming.payloads import payload_of
from sessionlake.streaming.query import LayerQuery

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_LOOK_SECONDS = 0.25
_MAINTENANCE = "maintenance"


class Layer(StrEnum):
    """What `sessionlake run` takes."""

    BRONZE = "bronze"
    SILVER = "silver"
    GOLD = "gold"
    PROCESSOR = "processor"
    ALL = "all"

    @property
    def parts(self) -> tuple[Layer, ...]:
        """The single layers that it means, in the order in which data passes them; processors are not among them."""
        if self is Layer.PROCESSOR:
            return ()
        return (Layer.BRONZE, Layer.SILVER, Layer.GOLD) if self is Layer.ALL else (self,)


def parts_of(settings: Settings, layer: Layer) -> tuple[str, ...]:
    """Names of all that is to run: the layers, and under `all` and `processor` every configured processor."""
    mine = settings.processors if layer in {Layer.ALL, Layer.PROCESSOR} else ()
    return (*layer.parts, *(processor.layer for processor in mine))


def preflight(settings: Settings, layer: Layer) -> None:
    """Refuses what cannot work, before Spark is started for it.

    Raises:
        BrokerError: bronze is to run and Kafka does not answer.
        ConfigError: silver or a processor is to run, and a schema file or the processor's class cannot be used.
        MachineError: the home cannot be written.
    """
    storage_of(settings).require_writable()
    if Layer.SILVER in layer.parts or layer is Layer.PROCESSOR:
        payload_of(settings.capture)
    for processor in settings.processors:
        if processor.layer in parts_of(settings, layer):
            processors.require_usable(settings, processor.name)
    if Layer.BRONZE in layer.parts:
        bronze.require(settings)


def run_once(
    spark: SparkSession,
    settings: Settings,
    layer: Layer,
    stop: threading.Event,
    on_failure: Callable[[SessionlakeError], None] | None = None,
) -> bool:
    """Takes in what is there, layer after layer, each to its end.

    Args:
        on_failure: told of what has stopped further processors behind the first one.

    Returns:
        Whether the end was reached: False if `stop` was set before.

    Raises:
        SessionlakeError: what stopped a layer; later layers are not begun. What stopped the first processor among `all`
            is raised after the others have come to their end.
    """
    failed: list[SessionlakeError] = []
    with claimed(spark, settings, layer):
        for part in parts_of(settings, layer):
            try:
                if not to_the_end(spark, settings, part, stop):
                    return False
            except SessionlakeError as error:
                if part in layer.parts or layer is not Layer.ALL:
                    raise
                failed.append(error)
                if on_failure is not None and len(failed) > 1:
                    on_failure(error)
    if failed:
        raise failed[0]
    return True


def run_live(
    spark: SparkSession,
    settings: Settings,
    layer: Layer,
    stop: threading.Event,
    on_failure: Callable[[SessionlakeError], None] | None = None,
    on_wait: Callable[[str], None] | None = None,
) -> None:
    """Runs layers until `stop` is set; they stand aside as long as somebody asks them to.

    Args:
        on_failure: told of a processor that has stopped while the others go on.
        on_wait: told when bronze waits for Kafka, or all stand aside, and when they go on.

    Raises:
        SessionlakeError: the first error of any of them; the others have been stopped. What stopped a processor among
            `all` is raised at the end.
    """
    while True:
        running = Pipeline(spark, settings, layer, on_failure=on_failure, on_wait=on_wait)
        with claimed(spark, settings, layer), running as pipeline:
            why = pipeline.watch(stop)
            failed = list(pipeline.failed.values())
        if why is None:
            break
        stand_aside(settings, stop, why, on_wait or (lambda _: None))
    if failed:
        raise failed[0]


class Pipeline:
    """Layers running live, from entering the context until leaving it.

    Args:
        on_commit: told of every batch of bronze, silver and the table merger that is committed.
        on_failure: told of a processor that has stopped while the others go on, as it does among `all`.
        on_wait: told when bronze waits for Kafka, and when it goes on.

    Attributes:
        queries: what runs, by its name.
        failed: the errors of processors that have stopped, likewise.
    """

    def __init__(
        self,
        spark: SparkSession,
        settings: Settings,
        layer: Layer = Layer.ALL,
        on_commit: Callable[[LedgerEntry], None] | None = None,
        on_failure: Callable[[SessionlakeError], None] | None = None,
        on_wait: Callable[[str], None] | None = None,
    ) -> None:
        self._spark = spark
        self._settings = settings
        self._layer = layer
        self._on_commit = on_commit or (lambda _: None)
        self._on_failure = on_failure or (lambda _: None)
        self._on_wait = on_wait
        self._merger: TableMerger | None = None
        self._maintenance: Maintenance | None = None
        self.queries: dict[str, LayerQuery] = {}
        self.failed: dict[str, SessionlakeError] = {}

    def __enter__(self) -> Self:
        """Starts every layer; if one cannot start, none is left running."""
        try:
            for part in parts_of(self._settings, self._layer):
                try:
                    self.queries[part] = self._start(part)
                except SessionlakeError as error:
                    self._failed(part, error)
            if self._layer is Layer.ALL:
                self._maintenance = Maintenance(self._spark, self._settings).start()
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(self, *_error: object) -> None:
        """Stops them. A batch under way is given up: the next start repeats it."""
        self._stop()

    def watch(self, stop: threading.Event) -> str | None:
        """Returns when `stop` is set, or when somebody asks the layers to stand aside: then why.

        Raises:
            SessionlakeError: the first error of any layer.
        """
        while not stop.wait(_LOOK_SECONDS):
            self.check()
            if (why := asked(self._settings)) is not None:
                return why
        return None

    def check(self) -> None:
        """Raises the error of a layer that has stopped; that of a processor among all, or of maintenance, is noted.

        Raises:
            ClaimedError: another process has taken over what this one had claimed.
        """
        storage_of(self._settings).require_claims()
        if self._merger is not None and self._merger.error is not None:
            error = self._merger.error
            if isinstance(error, SessionlakeError):
                raise error
            raise explain(error, SILVER_TABLES, self._settings.checkpoint(SILVER)) from error
        ended = None if self._maintenance is None else self._maintenance.error
        if ended is not None and _MAINTENANCE not in self.failed:
            self._failed(_MAINTENANCE, explain(ended, _MAINTENANCE, self._settings.checkpoint(_MAINTENANCE)))
        for part, query in self.queries.items():
            if part in self.failed:
                continue
            try:
                query.check()
            except SessionlakeError as error:
                self._failed(part, error)

    def drain(self) -> None:
        """Waits until everything that Kafka holds now has reached every table.

        Raises:
            SessionlakeError: what stopped a layer before.
        """
        for part, query in self.queries.items():
            if part in self.failed:
                continue
            query.drain()
            if part == Layer.SILVER and self._merger is not None:
                self._merger.drain()
                self.check()

    def _failed(self, part: str, error: SessionlakeError) -> None:
        """Notes the failure of a processor that runs among others; raises any other."""
        if self._layer is not Layer.ALL or part in self._layer.parts:
            raise error
        self.failed[part] = error
        self._on_failure(error)

    def _start(self, part: str) -> LayerQuery:
        with storage_of(self._settings).caching():
            return self._start_sound(part)

    def _start_sound(self, part: str) -> LayerQuery:
        spark, settings = self._spark, self._settings
        require_sound(spark, settings, part)
        for processor in settings.processors:
            if processor.layer == part:
                return processors.start(spark, settings, processor.name)
        if part == Layer.BRONZE:
            return bronze.start(spark, settings, on_batch=self._on_commit, on_wait=self._on_wait)
        if part == Layer.GOLD:
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
        if self._maintenance is not None:
            self._maintenance.stop()
        for query in self.queries.values():
            query.stop()
        if self._merger is not None:
            self._merger.stop()


def to_the_end(spark: SparkSession, settings: Settings, part: str, stop: threading.Event) -> bool:
    """Has a layer, which must be claimed, take in what is there; whether it came to the end before `stop` was set.

    Raises:
        IntegrityViolationError: silver stopped at a place that is to be decided; the batches before it are merged.
    """
    start: dict[str, Callable[..., LayerQuery]] = {
        Layer.BRONZE: bronze.start,
        Layer.SILVER: silver.start,
        Layer.GOLD: gold.start,
        **{own.layer: partial(processors.start, name=own.name) for own in settings.processors},
    }
    try:
        with storage_of(settings).caching():
            require_sound(spark, settings, part)
            query = start[part](spark, settings, once=True)
        if not _ended(query, settings, stop):
            return False
    except IntegrityViolationError:
        if part == Layer.SILVER:
            with suppress(Exception):  # what is not merged now is when it goes on: the place is to be told
                TableMerger(spark, settings).catch_up()
        raise
    if part == Layer.SILVER:
        TableMerger(spark, settings).catch_up()
    return True


def _ended(query: LayerQuery, settings: Settings, stop: threading.Event) -> bool:
    """Waits for a query's end, or for `stop`; whether it has come to its end. Then it runs no more."""
    try:
        while not query.wait(_LOOK_SECONDS):
            storage_of(settings).require_claims()
            if stop.is_set():
                return False
    finally:
        query.stop()
    return True


@contextmanager
def claimed(
    spark: SparkSession, settings: Settings, layer: Layer, doing: str | None = None, *others: str
) -> Iterator[None]:
    """Keeps other processes from running the same layers over the same tables.

    Args:
        doing: what is done with them, as in "rebuilds silver"; by default they run.
        others: what is claimed with them.

    Raises:
        ClaimedError: another process has one of them already, or has taken it over meanwhile.
    """
    with ExitStack() as held:
        for part in (*parts_of(settings, layer), *others):
            held.enter_context(storage_of(settings).claim(spark, part, doing or f"runs {part}"))
        yield
