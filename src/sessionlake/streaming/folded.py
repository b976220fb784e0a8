"""Collects what the folds of a batch emitted: the job that runs the folds also brings small payloads to the driver."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING

from sessionlake.protocol.chunk import decompress_if_compressed
from sessionlake.streaming.payload_files import LARGE_PREFIXES

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


@dataclass(frozen=True)
class FoldedBatch:
    """What the folds of all shards emitted for one batch, as payloads (rows or bytes in binary form).

    Attributes:
        frame: All payloads, as a Spark frame `kind string, payload binary` that is persisted or checkpointed.
        collected_payloads_by_kind: The payloads that were collected into the driver, by kind. None stands for a payload
            that is too large and is only in `frame`.
    """

    frame: DataFrame
    collected_payloads_by_kind: Mapping[str, Sequence[bytes | None]]

    def get_payloads_if_all_collected(self, kinds: Iterable[str] | None = None) -> list[bytes] | None:
        """Returns all payloads of these kinds, if all of them were collected into the driver.

        Args:
            kinds: The kinds of payloads; None means all kinds.

        Returns:
            The payloads; None if at least one was too large to be collected.
        """
        contents = [
            content
            for kind in (self.collected_payloads_by_kind if kinds is None else kinds)
            for content in self.collected_payloads_by_kind.get(kind, ())
        ]
        collected = [content for content in contents if content is not None]
        return collected if len(collected) == len(contents) else None


def collect_fold_reports(
    frame: DataFrame, report_kind: str, max_collected_bytes: int
) -> tuple[FoldedBatch, list[bytes]]:
    """Runs the fold in one Spark job, and collects all reports and the small payloads into the driver.

    Args:
        frame: What the folds emit, `kind string, payload binary`, persisted or checkpointed.
        report_kind: The kind of payloads that are reports. They are collected whatever their size.
        max_collected_bytes: Payloads of other kinds are collected if they have at most this many bytes.

    Returns:
        The payloads that are not reports, and the content of each report.
    """
    from pyspark.sql import functions as F

    large = reduce(operator.or_, (F.startswith("payload", F.lit(begin)) for begin in LARGE_PREFIXES))
    fits = (F.length("payload") <= max_collected_bytes) & ~large
    is_small = fits | (F.col("kind") == report_kind)
    rows = frame.select("kind", F.when(is_small, F.col("payload")).alias("payload")).collect()
    collected = ((row["kind"], None if row["payload"] is None else bytes(row["payload"])) for row in rows)
    return separate_reports_from_payloads(frame, collected, report_kind)


def separate_reports_from_payloads(
    frame: DataFrame, collected: Iterable[tuple[str, bytes | None]], report_kind: str
) -> tuple[FoldedBatch, list[bytes]]:
    """Separates the reports from other payloads that were collected into the driver.

    Args:
        frame: All payloads, `kind string, payload binary`.
        collected: Kind and payload of each row of `frame`; None for a payload that was too large to collect.
        report_kind: The kind of payloads that are reports.

    Returns:
        The payloads that are not reports, and the content of each report.
    """
    inline: dict[str, list[bytes | None]] = {}
    for kind, payload in collected:
        inline.setdefault(kind, []).append(payload)
    reports = [
        bytes(decompress_if_compressed(content)) for content in inline.pop(report_kind, []) if content is not None
    ]
    return FoldedBatch(frame, inline), reports
