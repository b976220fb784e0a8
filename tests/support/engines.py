"""Compares the answers of Sail with those of Spark."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from sessionlake.cli.context import print_to_stderr
from sessionlake.cli.engines.interface import EngineRefusalError, QueryResult
from sessionlake.cli.engines.sail import SailEngine
from sessionlake.cli.query import SparkEngine, prepare_statement, print_query_result
from sessionlake.cli.show import OutputFormat
from sessionlake.errors import SessionlakeError
from sessionlake.settings.model import Settings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass
class EnginePair:
    """Both engines over one lake.

    Attributes:
        compared: The statements that both have answered with the same rows, types and names.
    """

    spark: SparkSession
    sail: SailEngine
    settings: Settings
    compared: list[str]

    def compare(self, sql: str, arguments: Mapping[str, str] | None = None, *, ordered: bool = False) -> str | None:
        """Runs a statement with both engines.

        Args:
            sql: The statement.
            arguments: The texts of its parameters.
            ordered: True if it sorts all rows of its result, so that their order is compared too.

        Returns:
            None if both give the same answer. Else why Sail does not run the statement, or `differs: ` and the
            difference.
        """
        statement = prepare_statement(self.settings, sql, arguments)
        try:
            fast = self.sail.run(statement)
        except EngineRefusalError as refusal:
            return str(refusal)
        try:
            answer = SparkEngine(self.spark, self.settings).run(statement)
        except SessionlakeError as error:
            return f"differs: Spark refuses it: {error}"
        if describe(fast) != describe(answer):
            return f"differs: {describe(fast)} instead of {describe(answer)}"
        pairs = zip_longest(*(comparable_rows(one.rows, ordered=ordered) for one in (fast, answer)))
        found = next(((one, other) for one, other in pairs if one != other), None)
        if found is not None:
            return f"differs: {found[0]} instead of {found[1]}"
        self.compared.append(sql)
        return None


def write_files_with_spark(spark: SparkSession, settings: Settings, sql: str, form: OutputFormat) -> None:
    """Writes what `query --engine spark` writes."""
    print_query_result(SparkEngine(spark, settings).run(prepare_statement(settings, sql)), form, print_to_stderr)


def describe(answer: QueryResult) -> list[tuple[str, str]]:
    """Returns the names and types of an answer's columns, without what neither a table nor JSON shows."""
    return [(field.name, _type_text(field.type)) for field in answer.rows.schema]


def _type_text(kind: pa.DataType) -> str:
    if pa.types.is_struct(kind):
        return f"struct<{', '.join(f'{one.name}: {_type_text(one.type)}' for one in kind)}>"
    if pa.types.is_map(kind):
        return f"map<{_type_text(kind.key_type)}, {_type_text(kind.item_type)}>"
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return f"list<{_type_text(kind.value_type)}>"
    return str(kind).removeprefix("large_")


def comparable_rows(table: pa.Table, *, ordered: bool) -> list[Any]:
    """Returns the rows as values that can be compared: in their order, or sorted."""
    columns = []
    for column in table.columns:
        whole = pa.int64() if pa.types.is_timestamp(column.type) else None
        whole = pa.int32() if pa.types.is_date(column.type) else whole
        values = (column.cast(whole) if whole else column).to_pylist()
        columns.append([_comparable(value) for value in values])
    rows = list(zip(*columns, strict=True))
    return rows if ordered else sorted(rows, key=repr)


def _comparable(value: Any) -> Any:
    """Returns floats with twelve digits, because sums may differ in the last ones: no engine adds in a fixed order."""
    if isinstance(value, float):
        return "NaN" if math.isnan(value) else f"{value:.12g}"
    if isinstance(value, dict):
        return {name: _comparable(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [_comparable(one) for one in value]
    return value
