"""A folded batch on the driver: its account, and its rows as frames."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING

from sessionlake.gold.outputs import Account, Kind, read_rows, total, unpack

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

# Payloads up to this size come to the driver with the account, and a small batch is written from there without
# another Python stage; 64 shards of six kinds make 25 MB at most.
_INLINE_BYTES = 65_536


@dataclass(frozen=True)
class Folded:
    """What a fold sent on.

    Attributes:
        frame: `kind string, payload binary`, persisted or checkpointed.
        inline: the payloads of each kind, None in the place of one that was too big to bring along.
    """

    frame: DataFrame
    account: Account
    inline: Mapping[str, Sequence[bytes | None]]

    @property
    def whole(self) -> bool:
        """Whether all payloads were brought along."""
        return all(content is not None for contents in self.inline.values() for content in contents)

    @staticmethod
    def collect(frame: DataFrame) -> Folded:
        """Runs the fold (one job) and takes its account."""
        from pyspark.sql import functions as F

        is_small = (F.length("payload") <= _INLINE_BYTES) | (F.col("kind") == str(Kind.ACCOUNT))
        inline: dict[str, list[bytes | None]] = {}
        for row in frame.select("kind", F.when(is_small, F.col("payload")).alias("payload")).collect():
            inline.setdefault(row["kind"], []).append(None if row["payload"] is None else bytes(row["payload"]))
        return Folded(frame, total(c for c in inline.pop(Kind.ACCOUNT, []) if c is not None), inline)


def rows_of(parts: Sequence[Folded], kinds: Collection[Kind], ddl: str) -> DataFrame:
    """The rows of these kinds, from the driver if all are there, else unpacked where they are.

    Args:
        kinds: such as share their columns.
        ddl: those.
    """
    from pyspark.sql import functions as F

    contents = [content for part in parts for kind in kinds for content in part.inline.get(kind, [])]
    at_hand = [content for content in contents if content is not None]
    if contents and len(at_hand) == len(contents):
        return parts[0].frame.sparkSession.createDataFrame(read_rows(at_hand))
    wanted = F.col("kind").isin([str(kind) for kind in kinds])
    payloads = [part.frame.where(wanted).select("payload") for part in parts]
    return reduce(lambda a, b: a.union(b), payloads).mapInArrow(unpack, ddl)
