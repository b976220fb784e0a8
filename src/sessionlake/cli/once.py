"""Runs layers until they have processed all input that exists now, and reports what each of them did."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from operator import ge
from typing import TYPE_CHECKING

from sessionlake.cli.context import print_to_stderr
from sessionlake.cli.run import print_processor_error
from sessionlake.delta.lake import Lake
from sessionlake.delta.schemas.names import GOLD, LEDGER, SILVER, SILVER_TABLES
from sessionlake.delta.storage.reading import TableReader, is_in
from sessionlake.operations.pipeline import Layer, run_once
from sessionlake.protocol.types import Row
from sessionlake.settings.model import Settings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from sessionlake.local.signals import StopFlag

_COUNTS = ("applied", "duplicates", "quarantined", "held", "ignored")
# These are said even if they are 0. The others only if they are not.
_ALWAYS = ("applied", "quarantined")
_WORDS = {"held": "held back"}


@dataclass
class LayerRunSummary:
    """What one layer did in one run: sums of its ledger entries.

    Attributes:
        layer: Name of the layer.
        messages: Number of messages that it read; in gold the number of changes.
        parts: Number of parts of these messages. A message has several parts if it concerns several sessions.
        counts: Number of parts that were applied, quarantined and so on, by the ledger's column.
        rows: Number of rows that it wrote.
        tables: Names of the tables that it wrote.
    """

    layer: str
    messages: int = 0
    parts: int = 0
    counts: dict[str, int] = field(default_factory=lambda: dict.fromkeys(_COUNTS, 0))
    rows: int = 0
    tables: set[str] = field(default_factory=set)

    def add_ledger_entry(self, entry: Row) -> None:
        """Adds a ledger entry to the sums. Of silver's merges only rows and tables count, as they read no messages."""
        if entry["layer"] == self.layer:
            self.messages += entry["messages"]
            self.parts += entry["messages"] if entry["parts"] is None else entry["parts"]
            for name in _COUNTS:
                self.counts[name] += entry[name]
        self.rows += sum(output["rows"] for output in entry["outputs"])
        self.tables |= {output["table"] for output in entry["outputs"] if output["rows"]}

    def __str__(self) -> str:
        unit = "change" if self.layer == GOLD else "message"
        found = _format_number_and_unit(self.messages, unit)
        if self.parts != self.messages:
            found += f" with {_format_number_and_unit(self.parts, 'part')}"
        if self.layer == SILVER or self.layer.startswith(Layer.PROCESSOR):
            found += f": {', '.join(self._describe_counts())}"
        written = (
            f"{_format_number_and_unit(self.rows, 'row')} into {_format_number_and_unit(len(self.tables), 'table')}"
        )
        return f"{self.layer}: {found}; {written}" if self.messages or self.rows else f"{self.layer}: nothing new"

    def _describe_counts(self) -> Iterator[str]:
        for name, count in self.counts.items():
            if count or name in _ALWAYS:
                yield f"{count:,} {_WORDS.get(name, name)}"


def run_once_and_report(
    spark: SparkSession, settings: Settings, layer: Layer, stop: StopFlag, started_at: float
) -> None:
    """Processes all input that exists now, and reports for each layer what it read and wrote, and how long it took.

    Args:
        spark: The Spark session.
        settings: The configuration.
        layer: The layer to run, or all.
        stop: Set by signals; stops the run.
        started_at: When the command began, by `time.monotonic`.

    Raises:
        SessionlakeError: A layer failed; later layers are not started.
    """
    reader = Lake(settings).reader(spark)
    since, started = datetime.now(UTC), time.monotonic()

    def report_processed_layer(layer_name: str) -> None:
        nonlocal since, started
        now = datetime.now(UTC), time.monotonic()
        summary = summarize_ledger_entries(layer_name, read_ledger_entries_of_layer(reader, layer_name, since))
        print_to_stderr(f"{summary}, in {now[1] - started:.1f} s")
        since, started = now

    is_done = run_once(spark, settings, layer, stop, print_processor_error, on_end=report_processed_layer)
    print_to_stderr(f"{'done' if is_done else 'stopped'}, {time.monotonic() - started_at:.1f} s in all")


def summarize_ledger_entries(layer: str, entries: Iterable[Row]) -> LayerRunSummary:
    """Returns the sums of a layer's ledger entries."""
    summary = LayerRunSummary(layer)
    for entry in entries:
        summary.add_ledger_entry(entry)
    return summary


def read_ledger_entries_of_layer(reader: TableReader, layer: str, since: datetime) -> Iterator[Row]:
    """Yields the ledger entries that a layer committed since a time. Entries of silver's merges belong to silver."""
    names = [layer, SILVER_TABLES] if layer == SILVER else [layer]
    columns = ["layer", "messages", "parts", *_COUNTS, "outputs"]
    if reader.exists(LEDGER):
        yield from reader.read_rows(LEDGER, ("committed_at", ge, since), ("layer", is_in, names), columns=columns)


def _format_number_and_unit(number: int, unit: str) -> str:
    return f"{number:,} {unit}{'' if number == 1 else 's'}"
