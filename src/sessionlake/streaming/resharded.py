"""Moves the states of shards to a new number of shards: each session's state goes where its next message will go."""

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


class StateResharder(Protocol):
    """Distributes the state of a layer's shards over another number of shards.

    Pure, and picklable for Spark's workers.
    """

    def list_sessions(self, shard: int, state: bytes | None) -> list[tuple[str, bytes | None]]:
        """Lists the parts of a shard's state that can go to different shards.

        Args:
            shard: The old shard.
            state: Its state; None if it has none.

        Returns:
            A pair for each part, whose hash gives the part's new shard: its topic, and its session key or similar. The
            second value is None if only the topic is hashed.
        """
        ...

    def split_state(self, shard: int, state: bytes | None, targets: Sequence[int]) -> dict[int, bytes]:
        """Splits the state of an old shard into one part for each new shard that gets any of it.

        Args:
            shard: The old shard.
            state: Its state; None if it has none.
            targets: The new shard of each pair that `list_sessions` returned.

        Returns:
            The parts of the state, by new shard.
        """
        ...

    def join_states(self, parts: Sequence[bytes]) -> bytes:
        """Returns the state of a new shard, joined from its parts. Without parts, it is the state of an empty shard."""
        ...


def reshard_states(states: DataFrame, resharder: StateResharder, shards: int) -> DataFrame:
    """Returns the states of the new shards, computed from the states of the old ones.

    Args:
        states: The old states, `shard int, chunk binary`; null for a shard without a state.
        resharder: Splits and joins the states.
        shards: The new number of shards.

    Returns:
        The new states in the same form, with a row for each new shard.
    """
    from pyspark.sql import functions as F

    def join_state_parts_of_shard(key: tuple[Any, ...], rows: pd.DataFrame) -> pd.DataFrame:
        parts = [bytes(chunk) for chunk in rows["chunk"] if chunk is not None]
        return pd.DataFrame({"shard": [int(key[0])], "chunk": [resharder.join_states(parts)]})

    # The same hash as in the streams. A null part does not change the hash.
    target = F.transform("names", lambda name: F.pmod(F.xxhash64(name["topic"], name["rest"]), F.lit(shards)))
    named = states.mapInArrow(_SessionLister(resharder), _NAMED_SCHEMA)
    parts = named.select("shard", "chunk", target.alias("targets")).mapInArrow(_StateSplitter(resharder), PACKED_SCHEMA)
    every = states.sparkSession.range(shards).selectExpr("CAST(id AS INT) AS shard", "CAST(NULL AS BINARY) AS chunk")
    return parts.unionByName(every).groupBy("shard").applyInPandas(join_state_parts_of_shard, PACKED_SCHEMA)


@dataclass(frozen=True)
class _SessionLister:
    """A `mapInArrow` function that adds to each shard's state the column `names`: which sessions or series it has.

    Each is a struct (topic, rest of its key), whose hash gives its new shard.
    """

    resharder: StateResharder

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for row in _iterate_row_dicts(batch):
                names = [
                    {"topic": topic, "rest": rest}
                    for topic, rest in self.resharder.list_sessions(**_build_state_function_arguments(row))
                ]
                yield pa.RecordBatch.from_pylist([row | {"names": names}], _NAMED)


@dataclass(frozen=True)
class _StateSplitter:
    """A `mapInArrow` function that splits each old shard's state, and yields its parts as `shard int, chunk binary`."""

    resharder: StateResharder

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for row in _iterate_row_dicts(batch):
                for shard, part in self.resharder.split_state(
                    **_build_state_function_arguments(row), targets=row["targets"]
                ).items():
                    yield pa.RecordBatch.from_pylist([{"shard": shard, "chunk": part}], _PACKED)


def _iterate_row_dicts(batch: pa.RecordBatch) -> Iterator[dict[str, Any]]:
    """Yields the rows of a record batch as dictionaries by column name. Converts one at a time to save memory."""
    for number in range(batch.num_rows):
        yield from batch.slice(number, 1).to_pylist()


def _build_state_function_arguments(row: dict[str, Any]) -> dict[str, Any]:
    return {"shard": row["shard"], "state": row["chunk"]}
