"""Reads everything that the report shows. Each part is limited, so that no large table is read as a whole."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from sessionlake.delta.schemas.names import EVENTS, LEDGER, PROGRESS, QUARANTINE, SESSIONS, SILVER
from sessionlake.delta.schemas.tables import TABLES
from sessionlake.delta.storage.reading import TableReader, TableSize
from sessionlake.history.missing import missing_offsets
from sessionlake.history.report.alerts import AlertsOfRuleAndKey, read_latest_alerts
from sessionlake.history.report.batches import LayerBatch, build_conditions_for_recent_rows, find_latest_batches
from sessionlake.history.report.crosstab import CountsByTopicAndCategory, arrange_counts_by_topic_and_category
from sessionlake.history.report.pace import LagOverTime, ThroughputOverTime, compute_lags, compute_throughput
from sessionlake.history.report.series import MetricSeries, select_series_to_draw
from sessionlake.history.status import LayerStatus, layer_statuses
from sessionlake.integrity.outcome import IntegrityEventKind
from sessionlake.ledger.progress import LayerReadOffsets
from sessionlake.protocol.types import TopicPartition
from sessionlake.settings.model import Settings

# The most rows that are counted in `integrity_events` or `quarantine`; the most that are read of `session_progress`.
_COUNTED = 1_000_000
_PROGRESS = 100_000
_EVENTS = (IntegrityEventKind.DUPLICATE, IntegrityEventKind.GAP, IntegrityEventKind.LATE, IntegrityEventKind.ORPHAN)


@dataclass(frozen=True)
class RowCountsSinceBatch:
    """How many rows one of silver's tables has, by topic and category.

    Attributes:
        table: The counts.
        since: The first silver batch whose rows are counted; None if all rows are counted.
    """

    table: CountsByTopicAndCategory
    since: int | None = None


@dataclass(frozen=True)
class ReportContents:
    """Everything that the report shows. Times are UTC.

    Attributes:
        place: Where the tables are, as a text.
        made_at: When the report was made.
        statuses: The status of each layer.
        missing: Number of faulty offsets: those with two messages, and those without one unless gaps are allowed. For
            each topic-partition, only the layer with the most faults counts.
        allows_gaps: True if offsets without a message are not faults.
        partitions: Number of topic-partitions that were read.
        batches: The latest batches of all layers.
        lags: The lag of each layer over time.
        throughput: How much each layer read over time.
        judgements: Rows of `integrity_events` by topic and event.
        quarantined: Rows of `quarantine` by topic and reason.
        sessions: Sessions by topic and status.
        series: A few series with their values.
        alerts: The latest alerts of rules.
        tables: Name and size of each table.
    """

    place: str
    made_at: datetime
    statuses: list[LayerStatus]
    missing: int
    allows_gaps: bool
    partitions: int
    batches: list[LayerBatch]
    lags: list[LagOverTime]
    throughput: list[ThroughputOverTime]
    judgements: RowCountsSinceBatch
    quarantined: RowCountsSinceBatch
    sessions: CountsByTopicAndCategory
    series: list[MetricSeries]
    alerts: list[AlertsOfRuleAndKey]
    tables: list[tuple[str, TableSize]]


def read_report_contents(reader: TableReader, settings: Settings) -> ReportContents:
    """Reads and returns everything that the report shows.

    Raises:
        LakeError: A table cannot be read.
    """
    statuses = layer_statuses(reader, settings)
    layers = [status.layer for status in statuses]
    until = max((status.committed_at for status in statuses if status.committed_at), default=None)
    batches = [] if until is None else find_latest_batches(reader, layers, until)
    behind = {status.layer: status.behind or 0 for status in statuses}
    silver = next(status for status in statuses if status.layer == SILVER)
    missing = missing_offsets(reader) if reader.exists(LEDGER) else {}
    return ReportContents(
        place=settings.lake_location,
        made_at=datetime.now(UTC),
        statuses=statuses,
        missing=_count_faulty_offsets(missing, allow_gaps=settings.allows_offset_gaps),
        allows_gaps=settings.allows_offset_gaps,
        partitions=len({(span.topic, span.partition) for span in missing}),
        batches=batches,
        lags=compute_lags(batches, behind),
        throughput=compute_throughput(batches, layers),
        judgements=_count_rows_by_topic_and_category(reader, EVENTS, "event", batches, silver.events, _EVENTS),
        quarantined=_count_rows_by_topic_and_category(reader, QUARANTINE, "reason", batches, silver.quarantined),
        sessions=arrange_counts_by_topic_and_category(
            reader.count_rows_by(SESSIONS, ("topic", "status")), ("open", "ended", "broken")
        ),
        series=select_series_to_draw(
            reader, build_conditions_for_recent_rows(batches, PROGRESS, reader.count_rows(PROGRESS), _PROGRESS)
        ),
        alerts=read_latest_alerts(reader),
        tables=_read_table_sizes(reader, [*TABLES, *dict.fromkeys(settings.added_table_names)]),
    )


def _count_faulty_offsets(missing: Mapping[LayerReadOffsets, int], *, allow_gaps: bool) -> int:
    """Returns the number of missing messages (unless gaps are allowed) and of repeated ones, over all topic-partitions.

    In each topic-partition, the layer with the most counts.
    """
    worst: dict[TopicPartition, int] = {}
    for span, count in missing.items():
        place, fault = (span.topic, span.partition), -count if allow_gaps else abs(count)
        worst[place] = max(fault, worst.get(place, 0))
    return sum(worst.values())


def _count_rows_by_topic_and_category(
    reader: TableReader,
    table: str,
    category_column: str,
    batches: Sequence[LayerBatch],
    total_rows: int,
    first_categories: Sequence[str] = (),
) -> RowCountsSinceBatch:
    window = build_conditions_for_recent_rows(batches, table, total_rows, _COUNTED)
    found = arrange_counts_by_topic_and_category(
        reader.count_rows_by(table, ("topic", category_column), *window), first_categories
    )
    return RowCountsSinceBatch(found, window[0][2] if window else None)


def _read_table_sizes(reader: TableReader, tables: Iterable[str]) -> list[tuple[str, TableSize]]:
    return [(table, reader.read_size(table)) for table in tables if reader.exists(table)]
