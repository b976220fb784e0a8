"""The result of folding a batch on the driver: small payloads come with the job that runs the fold."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING

from sessionlake.protocol.chunk import decompress
from sessionlake.streaming.payload_files import LARGE_PREFIXES

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


@dataclass(frozen=True)
class Folded:
    """The payloads that the folds of a batch emitted.

    Attributes:
        frame: `kind string, payload binary`, persisted or checkpointed.
        inline: The payloads of each kind that the driver has; None for each one that was too big to collect.
    """

    frame: DataFrame
    inline: Mapping[str, Sequence[bytes | None]]

    def inline_payloads(self, kinds: Iterable[str] | None = None) -> list[bytes] | None:
        """Returns all payloads of these kinds (None: of all kinds), or None if one of them was not collected."""
        contents = [
            content for kind in (self.inline if kinds is None else kinds) for content in self.inline.get(kind, ())
        ]
        collected = [content for content in contents if content is not None]
        return collected if len(collected) == len(contents) else None


def collect(frame: DataFrame, report: str, inline_bytes: int) -> tuple[Folded, list[bytes]]:
    """Runs the fold in one job and collects the small payloads.

    Args:
        frame: `kind string, payload binary`, persisted or checkpointed.
        report: The kind of which payloads are collected whatever their size.
        inline_bytes: The size up to which payloads of other kinds are collected.

    Returns:
        What was folded, and the reports.
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
) -> tuple[Folded, list[bytes]]:
    """Returns what was folded and, apart from it, the reports among the collected payloads."""
    inline: dict[str, list[bytes | None]] = {}
    for kind, payload in collected:
        inline.setdefault(kind, []).append(payload)
    reports = [bytes(decompress(content)) for content in inline.pop(report, []) if content is not None]
    return Folded(frame, inline), reports
