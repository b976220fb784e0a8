"""Makes the texts that identify rows."""

from __future__ import annotations

import json
from datetime import date, datetime
from decimal import Decimal
from typing import Any

from sessionlake.feeds.values import format_json


def format_decimal_shortest(number: Decimal) -> str:
    """Returns a decimal as text without zeros at the end of its fraction: 1.10 gives `1.1`, 100 gives `100`."""
    if not number:
        return "0"
    text = format(number, "f")
    return text.rstrip("0").rstrip(".") if "." in text else text


def create_row_id(key_values: tuple[Any, ...]) -> str:
    """Returns the row id of a key: equal keys give the same text.

    The id of a single text is that text. All other keys give a JSON array without spaces.

    Args:
        key_values: The row's values in the key columns.
    """
    if len(key_values) == 1 and isinstance(key_values[0], str):
        return key_values[0]
    return "[" + ",".join(map(_format_key_value, key_values)) + "]"


def _format_key_value(value: Any) -> str:
    if isinstance(value, Decimal):
        return format_decimal_shortest(value)
    if isinstance(value, datetime | date):
        return json.dumps(value.isoformat())
    return format_json(value)
