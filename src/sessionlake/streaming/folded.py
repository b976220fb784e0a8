"""A folded batch as the driver sees it: what is small is brought along by the one job that runs the fold."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING

from sessionlake.protocol.chunk import decompress
from sessionlake.streaming.carried import LARGE_PREFIXES

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


@dataclass(frozen=True)
class Folded:
    """What a fold emitted.

    Attributes:
        frame: `kind string, payload binary`, persisted or checkpointed.
        inline: the payloads of each kind, None in the place of one that was too big to bring along.
    """

    frame: DataFrame
    inline: Mapping[str, Sequence[bytes | None]]

    def at_hand(self, kinds: Iterable[str] | None = None) -> list[bytes] | None:
        """All payloads of these kinds (by default of all), or None if some were not brought along."""
        contents = [
            content for kind in (self.inline if kinds is None else kinds) for content in self.inline.get(kind, ())
        ]
        here = [content for content in contents if content is not None]
        return here if len(here) == len(contents) else None


def collect(frame: DataFrame, report: str, inline_bytes: int) -> tuple[Folded, list[bytes]]:
    """Runs the fold (one job).

    Args:
        frame: `kind string, payload binary`, persisted or checkpointed.
        report: the kind that is brought along whatever its size.
        inline_bytes: size up to which other payloads are.

    Returns:
        What was folded, and the reports.
    """
    from pyspark.sql import functions as F

    large = reduce(operator.or_, (F.startswith("payload", F.lit(begin)) for begin in LARGE_PREFIXES))
    fits = (F.length("payload") <= inline_bytes) & ~large
    is_small = fits | (F.col("kind") == report)
    rows = frame.select("kind", F.when(is_small, F.col("payload")).alias("payload")).collect()
    brought = ((row["kind"], None if row["payload"] is None else bytes(row["payload"])) for row in rows)
    return taken_apart(frame, brought, report)


def taken_apart(
    frame: DataFrame, brought: Iterable[tuple[str, bytes | None]], report: str
) -> tuple[Folded, list[bytes]]:
    """What was folded, and the reports, of the payloads that were brought along: see `collect`."""
    inline: dict[str, list[bytes | None]] = {}
    for kind, payload in brought:
        inline.setdefault(kind, []).append(payload)
    reports = [bytes(decompress(content)) for content in inline.pop(report, []) if content is not None]
    return Folded(frame, inline), reports
