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
    """The payloads that the folds of a batch emitted.

    Attributes:
        frame: All payloads, `kind string, payload binary`, persisted or checkpointed.
        inline_payloads_by_kind: The payloads that the driver has, by kind; None in place of each payload that was
            too large to collect.
    """

    frame: DataFrame
    inline_payloads_by_kind: Mapping[str, Sequence[bytes | None]]

    def find_inline_payloads(self, kinds: Iterable[str] | None = None) -> list[bytes] | None:
        """Returns all payloads of these kinds (None: all kinds), or None if one of the payloads was not collected."""
        contents = [
            content
            for kind in (self.inline_payloads_by_kind if kinds is None else kinds)
            for content in self.inline_payloads_by_kind.get(kind, ())
        ]
        collected = [content for content in contents if content is not None]
        return collected if len(collected) == len(contents) else None


def collect_reports(frame: DataFrame, report: str, inline_bytes: int) -> tuple[FoldedBatch, list[bytes]]:
    """Runs the fold in one job and collects the small payloads and all reports.

    Args:
        frame: The payloads, `kind string, payload binary`, persisted or checkpointed.
        report: The kind of the reports, which are collected whatever their size.
        inline_bytes: Payloads of other kinds are collected up to this size.

    Returns:
        The folded payloads, and the collected reports.
    """
    from pyspark.sql import functions as F

    large = reduce(operator.or_, (F.startswith("payload", F.lit(begin)) for begin in LARGE_PREFIXES))
    fits = (F.length("payload") <= inline_bytes) & ~large
    is_small = fits | (F.col("kind") == report)
    rows = frame.select("kind", F.when(is_small, F.col("payload")).alias("payload")).collect()
    collected = ((row["kind"], None if row["payload"] is None else bytes(row["payload"])) for row in rows)
    return split_reports(frame, collected, report)


def split_reports(
    frame: DataFrame, collected: Iterable[tuple[str, bytes | None]], report: str
) -> tuple[FoldedBatch, list[bytes]]:
    """Separates the reports from other collected payloads; returns the payloads without reports, and the reports.

    Args:
        frame: The payloads, `kind string, payload binary`.
        collected: Kind and payload of each row of `frame`; None for a payload that was too large to collect.
        report: The kind of the reports.
    """
    inline: dict[str, list[bytes | None]] = {}
    for kind, payload in collected:
        inline.setdefault(kind, []).append(payload)
    reports = [bytes(decompress_if_compressed(content)) for content in inline.pop(report, []) if content is not None]
    return FoldedBatch(frame, inline), reports
