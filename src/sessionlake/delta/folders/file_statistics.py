"""What a table's log tells of a file's columns: least and greatest values, and how many are null.

Readers leave out a file by these, so a bound must hold whoever reads it. See Delta's protocol, "Per-file Statistics".
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

# Longer texts are cut, to what is not above the least, and not below the greatest. Left out they must not be: of a
# column that has values and no bounds, delta-rs' dataset takes every row for one that meets no condition on it.
_LONGEST_TEXT = 256
_LAST_CHARACTER = "\U0010ffff"
_EPOCH = datetime.fromtimestamp(0, UTC)
# Decimals keep all their digits, and no character is escaped that JSON does not ask for: arrow-rs decodes characters
# from U+20000 on wrong where they are escaped.
_JSON = msgspec.json.Encoder(decimal_format="number")
_ESCAPED = re.compile(r"(?<!\\)(?:\\\\)*\\u[dD][89abAB]")  # half of a character beyond U+FFFF


def encode(told: Any) -> bytes:
    """JSON of statistics, of a commit's action, or of a version's checksum: every reader decodes it alike."""
    return _JSON.encode(told)


def parse(stats: str | None) -> dict[str, Any]:
    """Statistics as a commit has them; numbers with all their digits."""
    return json.loads(stats or "{}", parse_float=Decimal)


def corrected_stats(stats: str | None, rows: int) -> str | None:
    """The same statistics as every reader decodes them alike; None if they are so already.

    Earlier versions escaped characters beyond U+FFFF, and wrote infinities, which are no JSON. Other writers may do so,
    and may leave out the number of rows.

    Args:
        stats: as the log has them.
        rows: how many the file has.
    """
    if not stats:
        return None
    try:
        msgspec.json.decode(stats)
    except msgspec.DecodeError:
        return encode({"numRecords": rows}).decode()
    return encode(parse(stats)).decode() if _ESCAPED.search(stats) else None


class Statistics:
    """What a log keeps of a file's columns, gathered batch by batch.

    Args:
        names: columns of which minimum, maximum and number of nulls are told.
        schema: of the file.
    """

    def __init__(self, names: Iterable[str], schema: pa.Schema) -> None:
        self._kinds = {name: schema.field(name).type for name in names}
        self._rows = 0
        self._nulls = dict.fromkeys(self._kinds, 0)
        self._whole = True
        self._least: dict[str, Any] = {}
        self._greatest: dict[str, Any] = {}

    def add(self, batch: pa.RecordBatch) -> None:
        """Counts a batch in."""
        self._rows += batch.num_rows
        for name, kind in self._kinds.items():
            column = batch.column(name)
            self._nulls[name] += column.null_count
            if not _has_bounds(kind):
                continue
            if pa.types.is_dictionary(column.type):
                column = column.dictionary.take(column.indices.unique())
            if pa.types.is_timestamp(kind):
                column = column.cast(pa.timestamp("us", kind.tz)).cast(pa.int64())
            if pa.types.is_floating(kind) and not pc.all(pc.is_finite(column), min_count=0).as_py():
                # Spark orders NaN behind all numbers, Arrow nowhere, and JSON has neither it nor infinities.
                self._whole = False
                continue
            ends = pc.min_max(column).as_py()
            if ends["min"] is not None:
                self._extend(name, ends["min"], ends["max"])

    def add_group(self, group: Any) -> None:
        """Counts a row group of a file's footer in."""
        self._rows += group.num_rows
        for index in range(group.num_columns):
            column = group.column(index)
            name, told = column.path_in_schema, column.statistics
            if (kind := self._kinds.get(name)) is None:
                continue
            self._nulls[name] += 0 if told is None else told.null_count
            if not _has_bounds(kind) or (told is not None and told.null_count == group.num_rows):
                continue
            if told is None or not told.has_min_max or pa.types.is_floating(kind):
                self._whole = False  # as of texts of thousands of characters; a footer does not tell of NaN
            else:
                self._extend(name, *_ends(told, kind))

    def _extend(self, name: str, least: Any, greatest: Any) -> None:
        """Widens bounds; times are in microseconds, and those of no year of four digits are none that can be told."""
        if pa.types.is_timestamp(self._kinds[name]):
            if not FIRST_MS * 1000 <= least <= greatest <= LAST_MS * 1000:
                self._whole = False
                return
            least, greatest = (_EPOCH + timedelta(microseconds=end) for end in (least, greatest))
        self._least[name] = min(self._least.get(name, least), least)
        self._greatest[name] = max(self._greatest.get(name, greatest), greatest)

    def to_json(self) -> str:
        """As Delta's log has it; the number of rows alone where a bound is not known."""
        told: dict[str, Any] = {"numRecords": self._rows}
        if self._whole:
            told["minValues"] = {name: self._text(name, value, _cut) for name, value in sorted(self._least.items())}
            told["maxValues"] = {
                name: self._text(name, value, _rounded_up) for name, value in sorted(self._greatest.items())
            }
            told["nullCount"] = self._nulls
        return encode(told).decode()

    def _text(self, name: str, value: Any, shortened: Callable[[str], str]) -> Any:
        if isinstance(value, datetime):  # `strftime` would not fill up years to four digits
            moment = value.replace(tzinfo=None).isoformat(timespec="microseconds")
            return moment if self._kinds[name].tz is None else moment + "Z"
        if isinstance(value, date):
            return value.isoformat()
        return shortened(value) if isinstance(value, str) else value


def _has_bounds(kind: pa.DataType) -> bool:
    """Whether the protocol has bounds for values of a type: it has none for bytes."""
    return not (pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_nested(kind))


def _ends(told: Any, kind: pa.DataType) -> tuple[Any, Any]:
    """The bounds of a row group; times in microseconds."""
    if pa.types.is_timestamp(kind):
        return told.min_raw, told.max_raw
    if pa.types.is_decimal(kind):
        return _decimal(told.min_raw, kind.scale), _decimal(told.max_raw, kind.scale)
    return told.min, told.max


def _decimal(raw: int | bytes, scale: int) -> Decimal:
    number = raw if isinstance(raw, int) else int.from_bytes(raw, "big", signed=True)
    return Decimal(f"{number}E{-scale}")


def _cut(text: str) -> str:
    return text[:_LONGEST_TEXT]


def _rounded_up(text: str) -> str:
    """At least the text: what is behind its beginning is below the last character that there is."""
    end = next((i for i in range(_LONGEST_TEXT, len(text)) if text[i] != _LAST_CHARACTER), len(text))
    return text if end == len(text) else text[:end] + _LAST_CHARACTER
