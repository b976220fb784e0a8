"""Converts the event times and checks the decimals of many messages at once by Arrow, and rare forms one by one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sessionlake.feeds.code import build_plain_decimal_regex
from sessionlake.feeds.times import convert_time_to_milliseconds
from sessionlake.feeds.values import FeedColumn

_YEAR_1 = -62_135_596_800_000
_PLAIN_LENGTHS = pa.array([len(f"2026-01-31T12:00:00{fraction}Z") for fraction in ("", ".000", ".000000")], pa.int32())
"""Lengths of times that end with Z, for which Arrow and Python agree."""


Milliseconds = list[int]
IndicesOfInvalid = list[int]


def convert_times_and_find_invalid(times: Sequence[int | str]) -> tuple[Milliseconds, IndicesOfInvalid]:
    """Converts ISO 8601 texts to milliseconds since 1970, rounded down. Integers are milliseconds already.

    Returns:
        The milliseconds, and the indices of texts that are no times, for which the milliseconds are 0.
    """
    places = [place for place, time in enumerate(times) if type(time) is str]
    texts: list[Any] = [times[place] for place in places] if len(places) < len(times) else list(times)
    found, wrong = _convert_plain_iso_times_by_arrow(texts), []
    if found is None:
        found = []
        for place, text in zip(places, texts, strict=True):
            try:
                found.append(convert_time_to_milliseconds(text, "iso"))
            except (ValueError, OverflowError):
                found.append(0)
                wrong.append(place)
    if len(places) == len(times):
        return found, wrong
    converted: list[Any] = list(times)
    for place, time in zip(places, found, strict=True):
        converted[place] = time
    return converted, wrong


def _convert_plain_iso_times_by_arrow(iso_times: list[str]) -> list[int] | None:
    """Converts times at once. Returns None if any has a form that Arrow may read in another way than Python."""
    texts = pa.array(iso_times, pa.string())
    is_plain = pc.and_(pc.is_in(pc.binary_length(texts), _PLAIN_LENGTHS), pc.ends_with(texts, "Z"))
    if not pc.all(is_plain).as_py():
        return None
    try:
        found = texts.cast(pa.timestamp("us", "UTC")).cast(pa.int64()).to_numpy() // 1000
    except pa.ArrowInvalid:
        return None
    return found.tolist() if found.min(initial=0) >= _YEAR_1 else None


def find_unusual_decimal_texts(cells: Sequence[Any], column: FeedColumn) -> list[int]:
    """Returns the indices of texts that are no plain decimals that fit the column: digits with a sign and a point.

    Args:
        cells: Texts, None, and `MISSING` where the message does not set the column.
        column: A column of decimals.
    """
    try:
        texts = pa.array(cells, pa.string())
    except (pa.ArrowInvalid, pa.ArrowTypeError):
        texts = pa.array([cell if type(cell) is str else None for cell in cells], pa.string())
    is_plain = pc.fill_null(pc.match_substring_regex(texts, f"^(?:{build_plain_decimal_regex(column.sql)})$"), True)
    return [] if pc.all(is_plain).as_py() else np.flatnonzero(~is_plain.to_numpy(zero_copy_only=False)).tolist()
