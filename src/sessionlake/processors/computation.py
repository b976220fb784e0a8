"""What processors with a key have in common: they compute a key's output rows from all source rows of that key.

The source is the table that the processor reads. `by_class` computes the rows with a user's class, `by_product` with a
declared product.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import TYPE_CHECKING

import pyarrow as pa

from sessionlake.errors import ConfigError
from sessionlake.protocol.names import quote, require_allowed_column_names
from sessionlake.settings.model import ProcessorSettings
from sessionlake.spark.frames import apply_to_groups

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

# Number of groups into which keys are hashed. The rows of one group must fit into a worker's memory.
_GROUPS = 1024
# Types whose values equal themselves, and compare in the same way in Spark, Arrow and Python.
_EXACT = re.compile(r"string|binary|boolean|tinyint|smallint|int|bigint|decimal\(.+\)|date|timestamp|timestamp_ntz")


class TableComputation(ABC):
    """Computes the output rows of each key from all source rows of that key.

    Attributes:
        by: Columns of the source table that form the key. If a batch has rows of a key, all rows of that key are
            computed again.
        keys: Columns that identify an output row.
        columns: The output columns without `_batch`, as pairs of name and Spark SQL type.
        comments: Column comments by column name.
        comment: The output table's description.
        logic: A hash of everything that the output depends on. None for a user's class, whose code cannot be hashed.
    """

    by: tuple[str, ...]
    keys: tuple[str, ...]
    columns: tuple[tuple[str, str], ...]
    comments: Mapping[str, str]
    comment: str
    logic: str | None = None

    @abstractmethod
    def select_input_rows(self, rows: DataFrame) -> DataFrame:
        """Returns the source rows that have a complete key, with the columns that `compute_rows` needs."""

    @abstractmethod
    def compute_rows(self, rows: DataFrame) -> DataFrame:
        """Returns the output rows of all keys that occur in `rows`.

        Args:
            rows: Rows from `select_input_rows`. If a key occurs, all of its rows must be included.

        Raises:
            ProcessorError: The user's code failed.
        """


def compute_rows_by_key(
    rows: DataFrame, by: Iterable[str], function: Callable[[pa.Table], pa.Table], columns: Iterable[tuple[str, str]]
) -> DataFrame:
    """Applies a function to Arrow tables that each hold all rows of several keys, and returns all results as a frame.

    Args:
        rows: The source rows.
        by: Columns that form the key.
        function: Takes a table of source rows, and returns a table of output rows.
        columns: Columns of the function's result, as pairs of name and Spark SQL type.
    """
    ddl = ", ".join(f"{quote(name)} {sql}" for name, sql in columns)
    return apply_to_groups(rows, by, _GROUPS, function, ddl).localCheckpoint()


def select_rows_without_nulls(rows: DataFrame, columns: Iterable[str]) -> DataFrame:
    """Returns the rows that are null in none of the columns."""
    from pyspark.sql import functions as F

    for name in columns:
        rows = rows.where(F.col(quote(name)).isNotNull())
    return rows


def require_source_columns(config: ProcessorSettings, names: Iterable[str], present: Mapping[str, str]) -> None:
    """Checks that the source table has all columns that the configuration names.

    Args:
        config: The processor's configuration.
        names: Names of the columns.
        present: The columns of the source table and their Spark SQL types.

    Raises:
        ConfigError: Columns are missing.
    """
    if missing := [name for name in names if name not in present]:
        raise ConfigError(
            f"{config.config_key}: {config.source} has no column {', '.join(missing)}; it has {', '.join(present)}",
            fix="Name columns that the source table has",
        )


def require_exact_types(
    config: ProcessorSettings, setting: str, names: Iterable[str], present: Mapping[str, str]
) -> None:
    """Checks that the columns have types whose values compare and sort in the same way in Spark, Arrow and Python.

    Args:
        config: The processor's configuration.
        setting: The setting that names the columns, for the error's text.
        names: Names of the columns.
        present: The columns of the source table and their Spark SQL types.

    Raises:
        ConfigError: A column has another type, for example a floating-point number.
    """
    for name in names:
        if not _EXACT.fullmatch(present[name]):
            raise ConfigError(
                f"{config.config_key}.{setting}: the column {name} is of type {present[name]}",
                why="Values of this type cannot be compared exactly",
                fix="Name columns of text, bytes, whole or decimal numbers, booleans, dates or times",
            )


def require_usable_key_names(config: ProcessorSettings, other_columns: Collection[str]) -> None:
    """Checks that the names of the key's columns can be used beside the output table's other columns.

    Raises:
        ConfigError: The key names a column twice, or a column that the output table has anyway.
    """
    try:
        require_allowed_column_names(config.key, other_columns, config.output_table)
    except ValueError as error:
        raise ConfigError(f"{config.config_key}.key: {error}", fix="Correct `key`") from None
