"""States of shards brought into another number of shards: each session's goes where its next message will go."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import pandas as pd
import pyarrow as pa

from sessionlake.streaming.sharded import PACKED_SCHEMA

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_NAME = pa.struct([("topic", pa.string()), ("rest", pa.binary())])
_NAMED = pa.schema([("shard", pa.int32()), ("chunk", pa.binary()), ("names", pa.list_(_NAME))])
_NAMED_SCHEMA = "shard int, chunk binary, names array<struct<topic: string, rest: binary>>"
_PACKED = pa.schema([("shard", pa.int32()), ("chunk", pa.binary())])


class Resharder(Protocol):
    """Takes a layer's states apart and puts them together; pure, and picklable, since Spark ships it to its workers."""

    def names(self, shard: int, state: bytes | None) -> list[tuple[str, bytes | None]]:
        """By what the shard of each thing follows that the state is of: a topic, and a session's key or the like."""
        ...

    def split(self, shard: int, state: bytes | None, targets: Sequence[int]) -> dict[int, bytes]:
        """The parts of a state by new shard.

        Args:
            targets: the new shard of each of `names`.
        """
        ...

    def join(self, parts: Sequence[bytes]) -> bytes:
        """The state of a new shard, of all parts of it; of none, that of a shard that has nothing."""
        ...


def resharded(states: DataFrame, resharder: Resharder, shards: int) -> DataFrame:
    """The states of new shards.

    Args:
        states: of those before, `shard int, chunk binary`; null where a shard has none.
        shards: how many there will be.

    Returns:
        The same, with a row for each new shard. A task has the states that Spark gives it at once, and takes one
        apart at a time.
    """
    from pyspark.sql import functions as F

    def join(key: tuple[Any, ...], rows: pd.DataFrame) -> pd.DataFrame:
        parts = [bytes(chunk) for chunk in rows["chunk"] if chunk is not None]
        return pd.DataFrame({"shard": [int(key[0])], "chunk": [resharder.join(parts)]})

    # As the streams themselves tell a shard. What is absent leaves a hash as it is.
    target = F.transform("names", lambda name: F.pmod(F.xxhash64(name["topic"], name["rest"]), F.lit(shards)))
    named = states.mapInArrow(_Names(resharder), _NAMED_SCHEMA)
    parts = named.select("shard", "chunk", target.alias("targets")).mapInArrow(_Split(resharder), PACKED_SCHEMA)
    every = states.sparkSession.range(shards).selectExpr("CAST(id AS INT) AS shard", "CAST(NULL AS BINARY) AS chunk")
    return parts.unionByName(every).groupBy("shard").applyInPandas(join, PACKED_SCHEMA)


@dataclass(frozen=True)
class _Names:
    """A `mapInArrow` function: adds the names in each state."""

    resharder: Resharder

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for row in _one_by_one(batch):
                names = [{"topic": topic, "rest": rest} for topic, rest in self.resharder.names(**_state(row))]
                yield pa.RecordBatch.from_pylist([row | {"names": names}], _NAMED)


@dataclass(frozen=True)
class _Split:
    """A `mapInArrow` function: each state's parts, as `shard int, chunk binary`."""

    resharder: Resharder

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for row in _one_by_one(batch):
                for shard, part in self.resharder.split(**_state(row), targets=row["targets"]).items():
                    yield pa.RecordBatch.from_pylist([{"shard": shard, "chunk": part}], _PACKED)


def _one_by_one(batch: pa.RecordBatch) -> Iterator[dict[str, Any]]:
    """The rows, of which one at a time is Python's."""
    for number in range(batch.num_rows):
        yield from batch.slice(number, 1).to_pylist()


def _state(row: dict[str, Any]) -> dict[str, Any]:
    return {"shard": row["shard"], "state": row["chunk"]}
