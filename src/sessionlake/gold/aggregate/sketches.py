"""Aggregates that approximate a figure in little space: quantiles of numbers, and the number of distinct texts.

`Buckets` store what quantiles need, `Registers` what distinct counts need. Each stores pairs of a code and a number in
one binary column, sorted by code. Pairs with the same code merge by adding their numbers, or by taking the greater one.
The numbers are integers. So the bytes are the same for any order and any batches.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa

from sessionlake.gold.aggregate.functions import Aggregate, DerivedAggregate
from sessionlake.gold.aggregate.groups import Columns, RowGroups
from sessionlake.protocol.arrow import convert_to_contiguous_array, encode_values_as_codes
from sessionlake.protocol.names import quote
from sessionlake.protocol.types import Int64s

# Number of low bits of a double that are dropped. The first six bits of its fraction remain. They divide the range
# between two powers of two into 64 buckets.
_DROPPED = 46
_NEGATIVES = 1 << (63 - _DROPPED)
_INFINITY = 0x7FF << (52 - _DROPPED)
QUANTILE_ERROR = 1 / 128
"""The largest relative error of a quantile: half a bucket."""
_REGISTERS = 1 << 14
_RANK_BITS = 50
# Tolerances of the estimate: several times the standard error of 0.8 %, and a few texts that share a register.
_OFF, _FEW = 0.05, 3


class SketchAggregate(Aggregate):
    """An aggregate that stores pairs of a code and a number, sorted by code, in one binary column.

    The subclass decides what a code and a number mean.

    Attributes:
        entry_type: Numpy type of a pair, with the fields `code` and `number`.
        combine_entries: Numpy function that merges the numbers of two pairs with the same code.
    """

    entry_type: ClassVar[np.dtype[Any]]
    combine_entries: ClassVar[np.ufunc]

    def list_state_columns(self, result_name: str) -> tuple[tuple[str, str], ...]:
        return ((result_name, "binary"),)

    def build_state_of_each_event(self, result_name: str, events: pa.Table) -> Columns:
        entries = np.zeros(events.num_rows, self.entry_type)
        entries["code"], entries["number"] = self._compute_sketch_entries(events)
        return {result_name: _pack_sketch_entries(entries, np.ones(events.num_rows, np.int64))}

    @abstractmethod
    def _compute_sketch_entries(self, events: pa.Table) -> tuple[Any, Any]:
        """Returns the pair that stands for each event alone: an array of codes, and an array of numbers or one number.

        Args:
            events: Events with the columns in `input_columns`.
        """

    def combine_partial_results(self, result_name: str, left: Columns, right: Columns) -> Columns:
        pairs = np.arange(len(left[result_name]))
        return {
            result_name: self._merge_sketch_entries(
                pa.concat_arrays([left[result_name], right[result_name]]), np.tile(pairs, 2), len(pairs)
            )
        }

    def merge_partial_results_by_group(self, result_name: str, partial_results: pa.Table, groups: RowGroups) -> Columns:
        return {
            result_name: self._merge_sketch_entries(
                convert_to_contiguous_array(partial_results[result_name]),
                groups.group_number_of_each_row,
                len(groups.lengths),
            )
        }

    def _merge_sketch_entries(self, packed_entries: pa.Array, group_of_row: Int64s, group_count: int) -> pa.Array:
        entries, lengths = unpack_sketch_entries(packed_entries, self.entry_type)
        place = (np.repeat(group_of_row, lengths) << 32) + entries["code"]
        order = np.argsort(place, kind="stable")
        place = place[order]
        starts = np.flatnonzero(np.diff(place, prepend=-1))
        united = np.zeros(len(starts), self.entry_type)
        united["code"] = place[starts] & 0xFFFF_FFFF
        if len(starts):
            united["number"] = self.combine_entries.reduceat(entries["number"][order], starts)
        return _pack_sketch_entries(united, np.bincount(place[starts] >> 32, minlength=group_count))


@dataclass(frozen=True)
class Buckets(SketchAggregate):
    """The number of values in each bucket, a narrow range of values. Quantiles are computed from these numbers.

    Each range between two powers of two is divided into 64 buckets. Their codes are in the order of the values.

    The bucket is computed from the bits of a value, not by a logarithm, which machines may round differently.

    Attributes:
        of: Name of the column with the values.
        format: Version of the stored bytes.
    """

    of: str
    format: int = 1

    entry_type: ClassVar[np.dtype[Any]] = np.dtype([("code", "<u4"), ("number", "<i8")])
    combine_entries: ClassVar[np.ufunc] = np.add

    @property
    def input_columns(self) -> tuple[str, ...]:
        return (self.of,)

    def _compute_sketch_entries(self, events: pa.Table) -> tuple[Any, Any]:
        values = events[self.of].to_numpy().astype(np.float64)
        bucket = np.abs(values).view(np.int64) >> _DROPPED
        return np.where(values < 0, _NEGATIVES - 1 - bucket, _NEGATIVES + bucket), 1

    @property
    def column_comment(self) -> str:
        return f"Number of {self.of}s in each bucket of numbers, for quantiles"

    def build_result_sql(self) -> str:
        # The exact values, which the buckets approximate.
        return f"sort_array(collect_list({quote(self.of)}))"


@dataclass(frozen=True)
class Quantile(DerivedAggregate):
    """An approximate quantile, with a relative error of at most 0.8 %.

    The exact quantile is the lowest value v such that at least the share `share` of all values is v or less. The result
    is the middle of the bucket of v.

    Attributes:
        buckets: Name of the column with the aggregate `Buckets`.
        share: The share, from 0 to 1; 0.5 gives the median.
        value: Name of the events' column, for the SQL.
    """

    buckets: str
    share: float
    value: str = "value"

    def compute_from_results(self, results: Columns) -> Any:
        entries, lengths = unpack_sketch_entries(results[self.buckets], Buckets.entry_type)
        until = np.cumsum(entries["number"])
        ends = np.cumsum(lengths)
        before = np.concatenate([[0], until])[ends - lengths]
        count = np.concatenate([[0], until])[ends] - before
        rank = np.maximum(np.ceil(self.share * count), 1).astype(np.int64)
        return _compute_middle_of_buckets(entries["code"][np.searchsorted(until, before + rank)].astype(np.int64))

    @property
    def column_comment(self) -> str:
        return f"Quantile {self.share:g} of {self.value}, within 0.8 %"

    def build_result_sql(self) -> str:
        place = f"CAST(greatest(ceil({self.share}D * count({quote(self.value)})), 1) AS INT)"
        return f"sort_array(collect_list({quote(self.value)}))[{place} - 1]"

    def build_rounding_error_scale_sql(self) -> str:
        # Comparisons multiply this by 1e-9. The numbers nearest to zero share one bucket.
        return f"{QUANTILE_ERROR * 1e9}D * abs({self.build_result_sql()}) + 1e-290"


@dataclass(frozen=True)
class Registers(SketchAggregate):
    """HyperLogLog registers of texts, from which the number of distinct texts is estimated.

    Each text is hashed to 64 bits. The first 14 bits select a register. The register stores the highest number of
    leading zeros, plus one, in the other bits of its hashes. Registers without a text are not stored.

    Source: Flajolet, Fusy, Gandouet, Meunier, "HyperLogLog", 2007.

    Attributes:
        of: Name of the column with the texts.
        format: Version of the stored bytes.
    """

    of: str
    format: int = 1

    entry_type: ClassVar[np.dtype[Any]] = np.dtype([("code", "<u2"), ("number", "u1")])
    combine_entries: ClassVar[np.ufunc] = np.maximum

    @property
    def input_columns(self) -> tuple[str, ...]:
        return (self.of,)

    def _compute_sketch_entries(self, events: pa.Table) -> tuple[Any, Any]:
        code, distinct = encode_values_as_codes(events[self.of])
        digests = (blake2b(text, digest_size=8).digest() for text in distinct.cast(pa.binary()).to_pylist())
        hashed = np.frombuffer(b"".join(digests), "<u8")
        _, bits = np.frexp((hashed & np.uint64((1 << _RANK_BITS) - 1)).astype(np.float64))
        return (hashed >> np.uint64(_RANK_BITS))[code], (_RANK_BITS + 1 - bits)[code]

    @property
    def column_comment(self) -> str:
        return f"Registers of HyperLogLog, of {self.of}s"

    def build_result_sql(self) -> str:
        # The exact set, which the registers approximate.
        return f"collect_set({quote(self.of)})"


@dataclass(frozen=True)
class Distinct(DerivedAggregate):
    """The approximate number of different texts; the standard error is 0.8 %.

    Source: Ertl, "New cardinality estimation algorithms for HyperLogLog sketches", 2017, algorithm 6. The estimate has
    no bias for small or large counts, and needs only sums and roots.

    Attributes:
        registers: Name of the column with the aggregate `Registers`.
        value: Name of the events' column, for the SQL.
    """

    registers: str
    value: str = "value"

    type = "bigint"

    def compute_from_results(self, results: Columns) -> Any:
        entries, lengths = unpack_sketch_entries(results[self.registers], Registers.entry_type)
        ranks, rows = _RANK_BITS + 2, len(lengths)
        places = np.repeat(np.arange(rows), lengths) * ranks + entries["number"]
        counts = np.bincount(places, minlength=rows * ranks).reshape(rows, ranks).astype(np.float64)
        counts[:, 0] = _REGISTERS - lengths
        z = _REGISTERS * _compute_hyperloglog_tau(1 - counts[:, -1] / _REGISTERS)
        for rank in range(_RANK_BITS, 0, -1):
            z = 0.5 * (z + counts[:, rank])
        z += _REGISTERS * _compute_hyperloglog_sigma(counts[:, 0] / _REGISTERS)
        return np.rint(_REGISTERS * _REGISTERS / (2 * np.log(2)) / z).astype(np.int64)

    @property
    def column_comment(self) -> str:
        return f"Number of different {self.value}s, with a standard error of 0.8 %"

    def build_result_sql(self) -> str:
        return f"count(DISTINCT {quote(self.value)})"

    def build_rounding_error_scale_sql(self) -> str:
        return f"{_OFF * 1e9}D * {self.build_result_sql()} + {_FEW * 1e9}D"


def unpack_sketch_entries(packed_entries: pa.Array | pa.ChunkedArray, entry_type: np.dtype[Any]) -> tuple[Any, Int64s]:
    """Returns the pairs of code and number of all rows in one array, and how many pairs each row has.

    Args:
        packed_entries: The binary column that a `SketchAggregate` stores.
        entry_type: Numpy type of a pair.
    """
    held = (
        convert_to_contiguous_array(packed_entries) if isinstance(packed_entries, pa.ChunkedArray) else packed_entries
    ).cast(pa.binary())
    _, offsets, data = held.buffers()
    ends = np.frombuffer(offsets, np.int32)[held.offset : held.offset + len(held) + 1].astype(np.int64)
    content = np.frombuffer(data or b"", np.uint8)[ends[0] : ends[-1]]
    return content.view(entry_type), np.diff(ends) // entry_type.itemsize


def _pack_sketch_entries(entries: Any, lengths: Int64s) -> pa.Array:
    ends = np.concatenate([[0], np.cumsum(lengths)]) * entries.itemsize
    buffers = [None, pa.py_buffer(ends.astype(np.int32)), pa.py_buffer(entries.tobytes())]
    return pa.Array.from_buffers(pa.binary(), len(lengths), buffers)


def _compute_middle_of_buckets(bucket_codes: Int64s) -> Any:
    """Returns the value in the middle of each bucket; zero for the bucket nearest to zero.

    Args:
        bucket_codes: Codes of buckets, as the aggregate `Buckets` stores them.
    """
    bucket = np.where(bucket_codes < _NEGATIVES, _NEGATIVES - 1 - bucket_codes, bucket_codes - _NEGATIVES)
    half = np.where((bucket == 0) | (bucket == _INFINITY), 0, 1 << (_DROPPED - 1))
    middle = ((bucket << _DROPPED) + half).view(np.float64)
    return np.where(bucket_codes < _NEGATIVES, -middle, middle) + 0.0


def _compute_hyperloglog_sigma(x: Any) -> Any:
    """Returns `x + sum(x^(2^k) 2^(k-1))` over k from 1, for shares below 1. A term of Ertl's estimate (`Distinct`)."""
    found, before, power, factor = x, -x, x, 1.0
    while (found != before).any():
        power, before = power * power, found
        found = found + power * factor
        factor *= 2
    return found


def _compute_hyperloglog_tau(x: Any) -> Any:
    """Returns `(1 - x - sum((1 - x^(2^-k))^2 2^-k)) / 3` over k from 1. A term of Ertl's estimate (`Distinct`).

    For a share of 0 the result is 0.
    """
    found, before, root, factor = 1 - x, x - 1, x, 1.0
    while (found != before).any():
        root, before = np.sqrt(root), found
        factor *= 0.5
        found = found - (1 - root) ** 2 * factor
    return found / 3
