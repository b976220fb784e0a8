"""Reads Canal's flat messages in JSON: changes of several rows of a MySQL table, all values as texts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import repeat
from typing import Any

from sessionlake.feeds.decoder import Delete, Event, Message, Put


class Canal:
    """The decoder class of the preset `canal`, for changes of rows of a MySQL table."""

    def decode(self, message: Message) -> Iterable[Event]:
        """Yields one event, or none for tombstones and changes of schemas."""
        if message.value is None:
            return
        found = message.json()
        kind = found["type"].upper()
        if kind == "TRUNCATE":
            yield Event(kind="snapshot", ts=found.get("es"))
        elif kind in {"INSERT", "UPDATE", "DELETE"}:
            yield Event(
                ts=found.get("es"),
                rows=_convert_row_changes(kind, found["data"], found.get("old"), message.key_columns),
            )
        elif not found.get("isDdl"):
            raise ValueError(f"the type {kind} is unknown")


def _convert_row_changes(
    operation: str, rows: list[Any], old_values: list[Any] | None, key_columns: tuple[str, ...]
) -> Iterator[Put | Delete]:
    """Yields the changes of rows. A row whose key has changed is deleted under its old key.

    Args:
        operation: `INSERT`, `UPDATE` or `DELETE`.
        rows: The rows after the change; for `DELETE`, the deleted rows.
        old_values: For each row, the changed values as they were before; None unless it is an update.
        key_columns: Names of the key columns.
    """
    for row, before in zip(rows, old_values or repeat(None), strict=bool(old_values)):
        if operation == "DELETE":
            yield Delete(row)
            continue
        earlier = {name: before[name] for name in key_columns if before and name in before}
        if any(row[name] != value for name, value in earlier.items()):
            yield Delete(row | earlier)
        yield Put(row, row)
