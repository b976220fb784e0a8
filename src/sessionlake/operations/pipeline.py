"""Runs the layers: all in one process on a laptop, or one layer per job on Databricks."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from enum import StrEnum
from functools import partial
from typing import TYPE_CHECKING, Self

import pyarrow as pa

from sessionlake.bronze import sources as bronze
from sessionlake.delta.lake import create_storage
from sessionlake.delta.schemas.names import (
    SILVER,
    SILVER_TABLES,
)
from sessionlake.errors import IntegrityViolationError, SessionlakeError
from sessionlake.gold import job as gold
from sessionlake.ledger.entries import LedgerEntry
from sessionlake.operations.maintenance import TableMaintainer
from sessionlake.operations.preflight import require_layer_startable
from sessionlake.processors import job as processors
from sessionlake.settings.model import Settings
from sessionlake.silver import job as silver
from sessionlake.silver.merge.merger import TableMerger
from sessionlake.streaming.errors import convert_to_layer_error
from sessionlake.streaming.pause_requests import read_pause_reason, wait_while_paused
from sessionlake.streaming.payloads import read_own_form_payload_format
from sessionlake.streaming.query import LayerQuery

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_POLL_SECONDS = 0.25
_MAINTENANCE = "maintenance"


class Layer(StrEnum):
    """What `sessionlake run` can run: one layer, all processors, or everything."""

    BRONZE = "bronze"
    SILVER = "silver"
    GOLD = "gold"
    PROCESSOR = "processor"
    ALL = "all"

    @property
    def layers_without_processors(self) -> tuple[Layer, ...]:
        """The layers that the value stands for, in the order of the data flow. Processors are not included."""
        if self is Layer.PROCESSOR:
            return ()
        return (Layer.BRONZE, Layer.SILVER, Layer.GOLD) if self is Layer.ALL else (self,)


def list_layers_to_run(settings: Settings, layer: Layer) -> tuple[str, ...]:
    """Returns the names of the layers to run.

    For `all` and `processor`, the layer of each configured processor is included.
    """
    chosen = settings.processors if layer in {Layer.ALL, Layer.PROCESSOR} else ()
    return (*layer.layers_without_processors, *(processor.layer for processor in chosen))


def require_runnable_settings(settings: Settings, layer: Layer) -> None:
    """Checks, before Spark is started, that the chosen layers can run with these settings.

    Raises:
        BrokerError: Bronze is to run, and Kafka does not answer.
        ConfigError: Silver or a processor is to run, and a schema file or the processor's class cannot be used.
        MachineSetupError: The home cannot be written.
    """
    create_storage(settings).require_writable_storage()
    if Layer.SILVER in layer.layers_without_processors or layer is Layer.PROCESSOR:
        read_own_form_payload_format(settings.capture)
    for processor in settings.processors:
        if processor.layer in list_layers_to_run(settings, layer):
            processors.require_loadable_processor(settings, processor.name)
    if Layer.BRONZE in layer.layers_without_processors:
        bronze.require_readable_source(settings)


def run_once(
    spark: SparkSession,
    settings: Settings,
    layer: Layer,
    stop: threading.Event,
    on_failure: Callable[[SessionlakeError], None] | None = None,
    on_end: Callable[[str], None] | None = None,
) -> bool:
    """Processes all input that is available now, one layer after another.

    Args:
        stop: Ends the run early once it is set.
        on_failure: Receives the error of every failed processor after the first.
        on_end: Receives the name of each layer that has ended, also if `stop` ended it early.

    Returns:
        True if all layers have read all available input, False if `stop` was set before.

    Raises:
        SessionlakeError: A layer failed; later layers are not started. With `all`, the error of the first failed
            processor is raised after all other processors have finished.
    """
    failed: list[SessionlakeError] = []
    with claim_layers(spark, settings, layer):
        for part in list_layers_to_run(settings, layer):
            try:
                is_done = run_layer_until_caught_up(spark, settings, part, stop)
                if on_end is not None:
                    on_end(part)
                if not is_done:
                    return False
            except SessionlakeError as error:
                if part in layer.layers_without_processors or layer is not Layer.ALL:
                    raise
                failed.append(error)
                if on_failure is not None and len(failed) > 1:
                    on_failure(error)
    if failed:
        raise failed[0]
    return True


def run_until_stopped(
    spark: SparkSession,
    settings: Settings,
    layer: Layer,
    stop: threading.Event,
    on_failure: Callable[[SessionlakeError], None] | None = None,
    on_wait: Callable[[str], None] | None = None,
) -> None:
    """Runs layers until `stop` is set. They pause while another process asks for that.

    Args:
        on_failure: Receives the error of a processor that failed while the others continue.
        on_wait: Receives a message when bronze waits for Kafka or the layers pause, and when they continue.

    Raises:
        SessionlakeError: The first error of any layer, after the others were stopped. If all layers run, a processor's
            error is raised only at the end.
    """
    while True:
        running = Pipeline(spark, settings, layer, on_failure=on_failure, on_wait=on_wait)
        with claim_layers(spark, settings, layer), running as pipeline:
            why = pipeline.wait_until_stopped(stop)
            failed = list(pipeline.failed.values())
        if why is None:
            break
        wait_while_paused(settings, stop, why, on_wait or (lambda _: None))
    if failed:
        raise failed[0]


class Pipeline:
    """Layers that run from entering the context until leaving it.

    Args:
        on_commit: Receives the ledger entry of each batch that bronze, silver or the table merger commits.
        on_failure: Receives the error of a processor that failed while the others continue. Only with `all`.
        on_wait: Receives a message when bronze waits for Kafka, and when it continues.

    Attributes:
        queries: The running queries by the name of their layer.
        failed: The errors of processors that have failed, by the name of their layer.
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
        self._maintenance: TableMaintainer | None = None
        self.queries: dict[str, LayerQuery] = {}
        self.failed: dict[str, SessionlakeError] = {}

    def __enter__(self) -> Self:
        """Starts every layer. If one cannot start, those already started are stopped."""
        try:
            for part in list_layers_to_run(self._settings, self._layer):
                try:
                    self.queries[part] = self._start_layer(part)
                except SessionlakeError as error:
                    self._record_processor_failure(part, error)
            if self._layer is Layer.ALL:
                self._maintenance = TableMaintainer(self._spark, self._settings).start()
        except BaseException:
            self._stop_layers()
            raise
        return self

    def __exit__(self, *_error: object) -> None:
        """Stops all layers. A batch that is not finished is abandoned, and repeated at the next start."""
        self._stop_layers()

    def wait_until_stopped(self, stop: threading.Event) -> str | None:
        """Waits until `stop` is set, or another process asks the layers to pause.

        Returns:
            The reason for the pause; None if `stop` is set.

        Raises:
            SessionlakeError: The first error of any layer.
        """
        while not stop.wait(_POLL_SECONDS):
            self.raise_error_of_failed_layer()
            if (why := read_pause_reason(self._settings)) is not None:
                return why
        return None

    def raise_error_of_failed_layer(self) -> None:
        """Raises the error of a layer that has failed.

        If all layers run, errors of processors and of maintenance are only added to `failed`.

        Raises:
            SessionlakeError: The error of a layer that has failed.
            ClaimedByOtherProcessError: Another process has taken over a layer.
        """
        create_storage(self._settings).require_claims_still_held()
        if self._merger is not None and self._merger.error is not None:
            error = self._merger.error
            if isinstance(error, SessionlakeError):
                raise error
            raise convert_to_layer_error(error, SILVER_TABLES, self._settings.checkpoint_path(SILVER)) from error
        ended = None if self._maintenance is None else self._maintenance.error
        if ended is not None and _MAINTENANCE not in self.failed:
            self._record_processor_failure(
                _MAINTENANCE, convert_to_layer_error(ended, _MAINTENANCE, self._settings.checkpoint_path(_MAINTENANCE))
            )
        for part, query in self.queries.items():
            if part in self.failed:
                continue
            try:
                query.check_query_health()
            except SessionlakeError as error:
                self._record_processor_failure(part, error)

    def wait_until_all_available_processed(self) -> None:
        """Waits until all messages that Kafka holds now are processed by all layers that run.

        Raises:
            SessionlakeError: A layer failed before.
        """
        for part, query in self.queries.items():
            if part in self.failed:
                continue
            query.process_all_available()
            if part == Layer.SILVER and self._merger is not None:
                self._merger.wait_for_merges()
                self.raise_error_of_failed_layer()

    def _record_processor_failure(self, layer_name: str, error: SessionlakeError) -> None:
        """Adds a processor's error to `failed` if all layers run, so that they continue. Raises any other error."""
        if self._layer is not Layer.ALL or layer_name in self._layer.layers_without_processors:
            raise error
        self.failed[layer_name] = error
        self._on_failure(error)

    def _start_layer(self, layer_name: str) -> LayerQuery:
        """Starts one layer. During the checks before its start, tables are read only once."""
        with create_storage(self._settings).cache_repeated_reads():
            return self._check_and_start_layer(layer_name)

    def _check_and_start_layer(self, layer_name: str) -> LayerQuery:
        """Checks one layer, or a processor, and starts its query.

        With silver, also starts the merging of its tables.
        """
        spark, settings = self._spark, self._settings
        require_layer_startable(spark, settings, layer_name)
        for processor in settings.processors:
            if processor.layer == layer_name:
                return processors.start(spark, settings, processor.name)
        if layer_name == Layer.BRONZE:
            return bronze.start_bronze(spark, settings, on_batch=self._on_commit, on_wait=self._on_wait)
        if layer_name == Layer.GOLD:
            return gold.start(spark, settings)
        self._merger = TableMerger(spark, settings, on_merge=self._on_commit)
        query = silver.start(spark, settings, on_batch=self._report_silver_batch)
        self._merger.start_background_merging()
        return query

    def _report_silver_batch(self, entry: LedgerEntry, rows: Mapping[str, pa.Table]) -> None:
        """Passes a batch that silver has committed to the thread that merges tables, and to the caller of the pipeline.

        Args:
            entry: The batch's ledger entry.
            rows: The rows that it has appended, by table name.
        """
        if self._merger is not None:
            self._merger.add_pending_batch(entry, rows)
        self._on_commit(entry)

    def _stop_layers(self) -> None:
        """Stops maintenance, the queries of all layers, and the merging of silver's tables."""
        if self._maintenance is not None:
            self._maintenance.stop()
        for query in self.queries.values():
            query.stop()
        if self._merger is not None:
            self._merger.stop_background_merging()


def run_layer_until_caught_up(spark: SparkSession, settings: Settings, layer_name: str, stop: threading.Event) -> bool:
    """Runs a layer until all input that is available now is processed. This process must have claimed the layer.

    Returns:
        True if all input was processed, False if `stop` was set before.

    Raises:
        IntegrityViolationError: Silver stopped at a message that needs a decision. The batches before it are merged.
    """
    start: dict[str, Callable[..., LayerQuery]] = {
        Layer.BRONZE: bronze.start_bronze,
        Layer.SILVER: silver.start,
        Layer.GOLD: gold.start,
        **{processor.layer: partial(processors.start, name=processor.name) for processor in settings.processors},
    }
    try:
        with create_storage(settings).cache_repeated_reads():
            require_layer_startable(spark, settings, layer_name)
            query = start[layer_name](spark, settings, once=True)
        if not _wait_for_query_end(query, settings, stop):
            return False
    except IntegrityViolationError:
        if layer_name == Layer.SILVER:
            with suppress(Exception):  # the violation must be reported; the next run merges what this one could not
                TableMerger(spark, settings).merge_all_pending_batches()
        raise
    if layer_name == Layer.SILVER:
        TableMerger(spark, settings).merge_all_pending_batches()
    return True


def _wait_for_query_end(query: LayerQuery, settings: Settings, stop: threading.Event) -> bool:
    """Waits until a query ends or `stop` is set, then stops the query. Returns False if `stop` ended the wait."""
    try:
        while not query.wait(_POLL_SECONDS):
            create_storage(settings).require_claims_still_held()
            if stop.is_set():
                return False
    finally:
        query.stop()
    return True


@contextmanager
def claim_layers(
    spark: SparkSession, settings: Settings, layer: Layer, action: str | None = None, *others: str
) -> Iterator[None]:
    """Claims layers for the block, so that no other process runs them on the same tables.

    Args:
        action: What this process does, as in "rebuilds silver", for the error text in other processes. None means that
            it runs the layers.
        others: Names of further claims to hold during the block.

    Raises:
        ClaimedByOtherProcessError: Another process holds one of the claims, or takes one over during the block.
    """
    with ExitStack() as stack:
        for part in (*list_layers_to_run(settings, layer), *others):
            stack.enter_context(create_storage(settings).hold_exclusive_claim(spark, part, action or f"runs {part}"))
        yield
