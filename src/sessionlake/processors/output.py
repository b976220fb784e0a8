"""The output columns of a processor. Records are checked against them, and converted to Arrow tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from typing import Annotated, Any, Union

import msgspec
import pyarrow as pa
from msgspec import Meta

from sessionlake.delta.schemas.columns import PARTITION, SESSION_ID, TOPIC
from sessionlake.feeds.numbers import require_exact_decimal
from sessionlake.protocol.columns import JsonType, is_decimal_type, parse_arrow_type, parse_columns
from sessionlake.protocol.message import is_name_without_json_escapes
from sessionlake.protocol.names import add_internal_prefix, require_allowed_column_names
from sessionlake.protocol.years import FIRST_MS, LAST_MS
from sessionlake.silver.fold.schemas import TIMESTAMP_TYPE

HEAD = (
    ("topic", "string"),
    ("session_id", "string"),
    ("partition", "int"),
    ("_offset", "bigint"),
    ("_position", "bigint"),
    ("ordinal", "int"),
    ("_time", "timestamp"),
)
"""The columns before the declared ones: the session, and the record's place among the session's records.

`_position` and `_offset` are the position and offset of the session's last message before the record. `ordinal` counts
the records of that message and of the timers that fired before the next message. `_time` is the stream time.
"""
BATCH = "_batch"
BATCH_COMMENT = "Number of the processor's batch that wrote the row"
HEAD_COMMENTS = {
    **{column.name: column.comment for column in (TOPIC, SESSION_ID, PARTITION)},
    "_offset": "Kafka offset of the session's last message before the record",
    "_position": "Order of application of that message (session_changes._position)",
    "ordinal": "Number of the record among those that followed that message, from 0",
    "_time": "Stream time at which the record was made",
}
_OUTPUT_TYPES: dict[str, type] = {"date": date, "binary": bytes}
"""Types of Python's values, by Spark SQL type, for types that messages in sessionlake's own form do not have."""
_HEAD_ARROW = (pa.string(), pa.string(), pa.int32(), pa.int64(), pa.int64(), pa.int32(), TIMESTAMP_TYPE)


@dataclass(frozen=True)
class RecordOrigin:
    """The session, message and time that an output record belongs to: values of the record's first columns.

    Attributes:
        topic: Topic of the session.
        session_id: Id of the session.
        partition: Partition of the session's last message.
        offset: Kafka offset of the session's last message before the record.
        position: Position of that message in the session's order of application.
        ordinal: Number of the record among those that followed that message, from 0.
        time: Stream time in ms at which the record was made.
    """

    topic: str
    session_id: str
    partition: int
    offset: int
    position: int
    ordinal: int
    time: int


class OutputColumns:
    """The columns of an output table: leading ones such as the session, those that the class declares, and `_batch`.

    Args:
        declared: The declared columns, Spark SQL types by name.
        leading_columns: The columns before the declared ones, as pairs of name and Spark SQL type.

    Raises:
        ValueError: A column cannot be declared so. The text names the column and says what is allowed.
    """

    def __init__(self, declared: Mapping[str, str], leading_columns: Sequence[tuple[str, str]] = HEAD) -> None:
        if not isinstance(declared, Mapping) or not declared:
            raise ValueError("at least one column must be declared, as in {'price': 'double'}")
        self._head = tuple(leading_columns)
        require_allowed_column_names(declared, {BATCH, *(name for name, _ in leading_columns)}, "the processor's table")
        self._types = {name: _parse_output_column(name, sql) for name, sql in declared.items()}
        decimals = {f"c{i}": kind for i, (_, _, kind) in enumerate(self._types.values()) if pa.types.is_decimal(kind)}
        self._digits = {field: (kind.precision, kind.scale) for field, kind in decimals.items()}
        fields = [(f"c{i}", Union[value, None], None) for i, (_, value, _) in enumerate(self._types.values())]  # noqa: UP007 - built at run time
        names = {
            f"c{i}": name if is_name_without_json_escapes(name) else add_internal_prefix(f"c{i}")
            for i, name in enumerate(self._types)
        }
        self._renamed = {
            name: add_internal_prefix(f"c{i}")
            for i, name in enumerate(self._types)
            if not is_name_without_json_escapes(name)
        }
        self._row = msgspec.defstruct("Record", fields, rename=names, forbid_unknown_fields=True, gc=False)

    @property
    def column_types(self) -> tuple[tuple[str, str], ...]:
        """All columns of the table, as pairs of name and Spark SQL type."""
        declared = ((name, sql) for name, (sql, _, _) in self._types.items())
        return (*self._head, *declared, (BATCH, "bigint"))

    @property
    def column_comments(self) -> dict[str, str]:
        """Comments of the declared columns and of `_batch`."""
        declared = dict.fromkeys(
            self._types, "Output of the processor; null if the record leaves it out or sets it to null"
        )
        return declared | {BATCH: BATCH_COMMENT}

    def convert_record_to_struct(self, record: Any) -> msgspec.Struct:
        """Checks that a record fits the declared columns, and returns it as a struct with values of the declared types.

        Raises:
            TypeError: The record is not a mapping.
            ValueError: The record does not fit the declared columns.
        """
        if not isinstance(record, Mapping):
            raise TypeError(f"a processor yields mappings of column to value, or timers; found {record!r:.100}")
        values = {self._renamed.get(name, name): value for name, value in record.items()}
        row = msgspec.convert(values, self._row)
        for field, (precision, scale) in self._digits.items():
            if (value := getattr(row, field)) is not None:
                setattr(row, field, require_exact_decimal(value, precision, scale))
        msgspec.msgpack.encode(row)  # finds text that is not Unicode
        return row

    def create_output_table(self, rows: Sequence[tuple[RecordOrigin, msgspec.Struct]]) -> pa.Table:
        """Returns checked records as an Arrow table with all columns except `_batch`.

        Args:
            rows: Each record's origin, and the record as `convert_record_to_struct` returns it.
        """
        places = [place for place, _ in rows]
        heads = zip(("topic", "session_id", "partition", "offset", "position", "ordinal"), _HEAD_ARROW, strict=False)
        arrays = [pa.array([getattr(place, name) for place in places], arrow) for name, arrow in heads]
        arrays.append(create_timestamps([place.time for place in places]))
        declared = self.create_declared_arrays([row for _, row in rows])
        return pa.Table.from_arrays([*arrays, *declared.values()], names=[*(name for name, _ in HEAD), *declared])

    def create_declared_arrays(self, records: Sequence[msgspec.Struct]) -> dict[str, pa.Array]:
        """Returns the values of checked records as one Arrow array for each declared column.

        Args:
            records: Records as `convert_record_to_struct` returns them.
        """
        found = {}
        for i, (name, (_, _, arrow)) in enumerate(self._types.items()):
            values = [getattr(row, f"c{i}") for row in records]
            found[name] = create_timestamps(values) if arrow == TIMESTAMP_TYPE else pa.array(values, arrow)
        return found


def create_timestamps(milliseconds: list[int | None]) -> pa.Array:
    """Converts milliseconds to Arrow timestamps. A time outside the years 1 to 9999 becomes the nearest time inside."""
    inside = (None if ms is None else min(max(ms, FIRST_MS), LAST_MS) * 1000 for ms in milliseconds)
    return pa.array(list(inside), pa.int64()).cast(TIMESTAMP_TYPE)


def _parse_output_column(name: str, sql_type: str) -> tuple[str, Any, pa.DataType]:
    """Returns the normalized Spark SQL type of a declared column, the type of its Python values, and its Arrow type.

    Args:
        name: Name of the column.
        sql_type: The declared type.

    Raises:
        ValueError: The type is not allowed.
    """
    normal = "".join(str(sql_type).lower().split())
    if normal in _OUTPUT_TYPES or is_decimal_type(normal):
        return normal, _OUTPUT_TYPES.get(normal, Decimal), parse_arrow_type(normal)
    if normal == "timestamp":
        return "timestamp", Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)], TIMESTAMP_TYPE
    try:
        column = parse_columns({"value": str(sql_type)})[0]
    except ValueError as error:
        text = str(error).replace("column 'value'", f"column {name!r}")
        raise ValueError(f"{text}, {', '.join(_OUTPUT_TYPES)}, decimal(p,s), timestamp") from None
    if column.json_type is JsonType.INTEGER:
        top = 2 ** (column.bits - 1)
        return column.sql, Annotated[int, Meta(ge=-top, le=top - 1)], column.arrow
    value = {JsonType.BOOLEAN: bool, JsonType.NUMBER: float, JsonType.STRING: str}[column.json_type]
    return column.sql, value, column.arrow
