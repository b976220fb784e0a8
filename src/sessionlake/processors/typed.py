"""What processors are given, as types by name: a module made of the declared columns, for editors and type checkers."""

from __future__ import annotations

import json
from collections.abc import Iterable

from sessionlake.delta.schemas.names import CHANGES
from sessionlake.delta.schemas.tables import TABLES
from sessionlake.settings.model import Settings

_PYTHON = {
    "boolean": "bool",
    "tinyint": "int",
    "smallint": "int",
    "int": "int",
    "bigint": "int",
    "float": "float",
    "double": "float",
    "string": "str",
    "timestamp": "datetime",
    "array<string>": "list[str]",
}
# Columns of silver.session_changes that every row has.
_ALWAYS = frozenset(
    {"topic", "session_id", "change", "partition", "ordinal", "kafka_timestamp"}
    | {"_ts", "_offset", "_position", "_life", "_applied_at", "_applied_by", "_batch"}
)
_MODULE = '''"""Rows as the configuration declares them; made by `sessionlake types`, which makes it anew."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, TypedDict, cast

from sessionlake.processors import Row

Values = TypedDict(
    "Values",
    {values},
    total=False,
)
"""What a message sets of a row: in an update the columns that it names, in a snapshot all."""

Change = TypedDict(
    "Change",
    {changes},
)
"""A row of `{table}`."""


def values_of(row: Row) -> Values:
    """The values of a row that `Processor.on_message` is given."""
    return cast("Values", row.values)


def change_of(row: Mapping[str, Any]) -> Change:
    """A row that `KeyedProcessor.on_row` is given, of this table."""
    return cast("Change", row)
'''


def module_of(settings: Settings) -> str:
    """The text of a module with `Values`, `Change`, `values_of` and `change_of`."""
    declared = ((column.name, column.sql) for column in settings.capture.declared)
    changes = TABLES[CHANGES].columns_for(settings)
    return _MODULE.format(values=_fields(declared), changes=_fields(changes), table=CHANGES)


def _fields(columns: Iterable[tuple[str, str]]) -> str:
    told = (
        f"        {json.dumps(name, ensure_ascii=False)}: {_PYTHON[sql]}{'' if name in _ALWAYS else ' | None'},\n"
        for name, sql in columns
    )
    return "{\n" + "".join(told) + "    }"
