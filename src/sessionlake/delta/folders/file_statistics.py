"""Computes and corrects the statistics of a data file in Delta's log: minimum, maximum and null count per column.

Readers skip files by these statistics, so every reader must decode the same bounds (minimum and maximum). The format is
in Delta's protocol, "Per-file Statistics".
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from sessionlake.protocol.years import FIRST_MS, LAST_MS

# Longer texts are shortened to lower and upper bounds. Bounds cannot be left out: delta-rs treats a column with values
# but without bounds as if no row met a condition.
_LONGEST_TEXT = 256
_LAST_CHARACTER = "\U0010ffff"
_EPOCH = datetime.fromtimestamp(0, UTC)
# Decimals keep all digits. Characters are escaped only where JSON requires it, since arrow-rs decodes escaped
# characters from U+20000 on wrong.
_JSON = msgspec.json.Encoder(decimal_format="number")
_ESCAPED = re.compile(r"(?<!\\)(?:\\\\)*\\u[dD][89abAB]")  # half of a character beyond U+FFFF


def encode_log_json(value: Any) -> bytes:
    """Returns JSON text for Delta's log, in a form that all readers of Delta tables decode to the same values.

    Characters beyond U+FFFF are not escaped, and infinities do not occur.
    """
    return _JSON.encode(value)


def parse_statistics(stats: str | None) -> dict[str, Any]:
    """Parses the statistics of a data file, such as `numRecords` and `minValues`. Decimal numbers keep all digits.

    Args:
        stats: JSON text from an `add` action of Delta's log; None or empty gives an empty dictionary.
    """
    return json.loads(stats or "{}", parse_float=Decimal)


def repair_unreadable_statistics(stats: str | None, rows: int) -> str | None:
    """Corrects the statistics of a data file in forms that some readers cannot decode, or that lack the number of rows.

    Earlier versions of sessionlake escaped characters beyond U+FFFF, and wrote infinities, which JSON does not have.
    Other writers may do the same.

    Args:
        stats: JSON text from the file's `add` action of Delta's log; None if it has none.
        rows: the file's number of rows.

    Returns:
        The corrected JSON text. None if the statistics were correct, or if the file has none.
    """
    if not stats:
        return None
    try:
        msgspec.json.decode(stats)
    except msgspec.DecodeError:
        return encode_log_json({"numRecords": rows}).decode()
    return encode_log_json(parse_statistics(stats)).decode() if _ESCAPED.search(stats) else None


class FileStatistics:
    """Collects the statistics of a data file for Delta's log, from its record batches or its footer's row groups.

    Args:
        names: columns for which minimum, maximum and null count are collected.
        schema: the file's columns.
    """

    def __init__(self, names: Iterable[str], schema: pa.Schema) -> None:
        self._kinds = {name: schema.field(name).type for name in names}
        self._rows = 0
        self._nulls = dict.fromkeys(self._kinds, 0)
        self._bounds_known = True
        self._least: dict[str, Any] = {}
        self._greatest: dict[str, Any] = {}

    def add_batch(self, batch: pa.RecordBatch) -> None:
        """Adds the rows of a record batch to the statistics."""
        self._rows += batch.num_rows
        for name, kind in self._kinds.items():
            column = batch.column(name)
            self._nulls[name] += column.null_count
            if not _has_type_with_min_and_max(kind):
                continue
            if pa.types.is_dictionary(column.type):
                column = column.dictionary.take(column.indices.unique())
            if pa.types.is_timestamp(kind):
                column = column.cast(pa.timestamp("us", kind.tz)).cast(pa.int64())
            if pa.types.is_floating(kind) and not pc.all(pc.is_finite(column), min_count=0).as_py():
                # Spark orders NaN after all numbers, Arrow does not order it, and JSON has neither NaN nor infinities.
                self._bounds_known = False
                continue
            ends = pc.min_max(column).as_py()
            if ends["min"] is not None:
                self._widen_min_and_max(name, ends["min"], ends["max"])

    def add_row_group(self, group: Any) -> None:
        """Adds a row group of the file to the statistics.

        Args:
            group: PyArrow's metadata of the row group, from the file's footer.
        """
        self._rows += group.num_rows
        for index in range(group.num_columns):
            column = group.column(index)
            name, stats = column.path_in_schema, column.statistics
            if (kind := self._kinds.get(name)) is None:
                continue
            self._nulls[name] += 0 if stats is None else stats.null_count
            if not _has_type_with_min_and_max(kind) or (stats is not None and stats.null_count == group.num_rows):
                continue
            if stats is None or not stats.has_min_max or pa.types.is_floating(kind):
                self._bounds_known = False  # missing for very long texts; and a footer does not report NaN
            else:
                self._widen_min_and_max(name, *_read_min_and_max(stats, kind))

    def _widen_min_and_max(self, name: str, least: Any, greatest: Any) -> None:
        """Widens the minimum and maximum of a column so that they include two values.

        If a year has not four digits, the column gets no minimum and maximum.

        Args:
            name: the column.
            least: the lower value; a time as an integer in microseconds since 1970.
            greatest: the higher value, in the same form.
        """
        if pa.types.is_timestamp(self._kinds[name]):
            if not FIRST_MS * 1000 <= least <= greatest <= LAST_MS * 1000:
                self._bounds_known = False
                return
            least, greatest = (_EPOCH + timedelta(microseconds=end) for end in (least, greatest))
        self._least[name] = min(self._least.get(name, least), least)
        self._greatest[name] = max(self._greatest.get(name, greatest), greatest)

    def to_json(self) -> str:
        """Returns the file's statistics as JSON text for an `add` action of Delta's log.

        If minimum and maximum of a column are unknown, it contains only the number of rows.
        """
        stats: dict[str, Any] = {"numRecords": self._rows}
        if self._bounds_known:
            stats["minValues"] = {
                name: self._encode_min_or_max(name, value, _compute_text_lower_bound)
                for name, value in sorted(self._least.items())
            }
            stats["maxValues"] = {
                name: self._encode_min_or_max(name, value, _compute_text_upper_bound)
                for name, value in sorted(self._greatest.items())
            }
            stats["nullCount"] = self._nulls
        return encode_log_json(stats).decode()

    def _encode_min_or_max(self, name: str, value: Any, shortened: Callable[[str], str]) -> Any:
        if isinstance(value, datetime):  # `strftime` would not pad years to four digits
            moment = value.replace(tzinfo=None).isoformat(timespec="microseconds")
            return moment if self._kinds[name].tz is None else moment + "Z"
        if isinstance(value, date):
            return value.isoformat()
        return shortened(value) if isinstance(value, str) else value


def _has_type_with_min_and_max(kind: pa.DataType) -> bool:
    """True if Delta's log stores minimum and maximum for columns of this type.

    It does not for bytes and nested types.
    """
    return not (pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_nested(kind))


def _read_min_and_max(stats: Any, kind: pa.DataType) -> tuple[Any, Any]:
    """Returns the minimum and maximum of a column in a row group; times as integers in microseconds since 1970."""
    if pa.types.is_timestamp(kind):
        return stats.min_raw, stats.max_raw
    if pa.types.is_decimal(kind):
        return _decode_decimal(stats.min_raw, kind.scale), _decode_decimal(stats.max_raw, kind.scale)
    return stats.min, stats.max


def _decode_decimal(raw: int | bytes, scale: int) -> Decimal:
    number = raw if isinstance(raw, int) else int.from_bytes(raw, "big", signed=True)
    return Decimal(f"{number}E{-scale}")


def _compute_text_lower_bound(text: str) -> str:
    return text[:_LONGEST_TEXT]


def _compute_text_upper_bound(text: str) -> str:
    """Returns an upper bound for a long text: its first characters, followed by the highest Unicode character."""
    end = next((i for i in range(_LONGEST_TEXT, len(text)) if text[i] != _LAST_CHARACTER), len(text))
    return text if end == len(text) else text[:end] + _LAST_CHARACTER
