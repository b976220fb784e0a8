"""Encodes the columns of a gold state in little space, and decodes them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from sessionlake.errors import LakeError
from sessionlake.protocol.chunk import decode_ipc


def decode_state_fields(content: bytes) -> dict[str, Any]:
    """Decodes the MessagePack map of a stored state.

    Raises:
        LakeError: The bytes are damaged.
    """
    try:
        return msgspec.msgpack.decode(content, type=dict[str, Any])
    except msgspec.MsgspecError as error:
        raise LakeError(
            f"gold's state cannot be read ({error})",
            fix="Run `sessionlake recover gold`, which computes gold again from silver, or restore its checkpoint "
            "from a backup",
        ) from None


def require_state_format(fields: Mapping[str, Any], expected_format: str) -> None:
    """Checks that a stored state has the expected format, for example `sessionlake.gold.state/4`.

    Raises:
        LakeError: It has another format.
    """
    if fields.get("format") != expected_format:
        raise LakeError(
            f"gold's state has the format {fields.get('format')!r}, "
            f"but this version of sessionlake reads {expected_format!r}",
            fix="Run the version that wrote the state. Or run `sessionlake recover gold`, which computes gold again "
            "from silver with this version",
        )


def create_table_of_narrow_integers(columns: dict[str, Any]) -> pa.Table:
    """Returns columns as an Arrow table with narrow integers: differences to the lowest value of their column.

    The table's metadata has this lowest value by column. `columns` is changed in place.
    """
    least = {}
    for name, column in columns.items():
        if isinstance(column, np.ndarray) and column.dtype == np.int64 and len(column):
            low, high = int(column.min()), int(column.max())
            narrow = np.min_scalar_type(high - low)
            if narrow.itemsize < column.itemsize:
                columns[name], least[name] = (column - low).astype(narrow), str(low)
    return pa.table(columns).replace_schema_metadata(least)


def decode_state_columns(content: bytes) -> dict[str, Any]:
    """Decodes columns of a state from Arrow IPC. Returns them by name: texts as Arrow, all others as numpy arrays."""
    table = decode_ipc(content)
    least = table.schema.metadata or {}
    return {
        name: _restore_narrow_column(table[name].combine_chunks(), least.get(name.encode()))
        for name in table.column_names
    }


def _restore_narrow_column(column: Any, lowest_value: bytes | None) -> Any:
    array = pa.concat_arrays(column.chunks) if isinstance(column, pa.ChunkedArray) else column
    if pa.types.is_string(array.type):
        return array
    found = array.to_numpy(zero_copy_only=False)
    return found if lowest_value is None else found.astype(np.int64) + int(lowest_value)
