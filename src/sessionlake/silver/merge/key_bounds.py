"""Which keys a MERGE can meet, as literals: a condition on the keys alone makes it read every key of the table."""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce
from operator import and_
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from sessionlake.silver.merge.batch_range import SESSION

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

# Up to so many values are named; of more, the least and the greatest are. A literal costs the driver some 0.1 ms.
NAMED = 1_000


@dataclass(frozen=True)
class Bound:
    """What one column's values can be: one of those named or, of very many, between these two."""

    column: str
    values: tuple[str, ...]
    named: bool

    def condition(self) -> Column:
        """On the table that is merged into (alias `t`)."""
        from pyspark.sql import functions as F

        column = F.col(f"t.{self.column}")
        return column.isin(*self.values) if self.named else column.between(*self.values)


@dataclass(frozen=True)
class KeyBounds:
    """The topics and sessions of a range of batches."""

    bounds: tuple[Bound, ...]

    @classmethod
    def at_hand(cls, keys: pa.Table) -> KeyBounds:
        """Those of rows at hand, with columns `topic` and `session_id`; at least one row."""
        return cls(tuple(_bound(name, pc.unique(keys[name])) for name in SESSION))

    @classmethod
    def of(cls, keys: DataFrame) -> KeyBounds:
        """Those of a frame that is computed already, likewise."""
        return cls(tuple(_bound_of(keys, name) for name in SESSION))

    def with_keys(self, same: str) -> Column:
        """The condition of a MERGE.

        Args:
            same: that the keys of `t` and `s` are equal.
        """
        from pyspark.sql import functions as F

        return reduce(and_, (bound.condition() for bound in self.bounds), F.expr(same))


def _bound(name: str, values: pa.Array) -> Bound:
    if len(values) <= NAMED:
        return Bound(name, tuple(values.to_pylist()), named=True)
    ends = pc.min_max(values).as_py()
    return Bound(name, (ends["min"], ends["max"]), named=False)


def _bound_of(keys: DataFrame, name: str) -> Bound:
    from pyspark.sql import functions as F

    values = [row[0] for row in keys.select(name).distinct().limit(NAMED + 1).collect()]
    if len(values) <= NAMED:
        return Bound(name, tuple(values), named=True)
    ends = keys.agg(F.min(name), F.max(name)).collect()[0]
    return Bound(name, (ends[0], ends[1]), named=False)
