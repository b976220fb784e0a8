"""What processors with a key have in common: the table's rows for a key are computed from all source rows of that key.

`by_class` computes them with a user's class, `by_product` with a declared product.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import TYPE_CHECKING

import pyarrow as pa

from sessionlake.errors import ConfigError
from sessionlake.protocol.names import check_columns, quote
from sessionlake.settings.model import ProcessorSettings
from sessionlake.spark.frames import map_groups

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

# Number of groups into which keys are hashed. The rows of one group must fit into a worker's memory.
_GROUPS = 1024
# Types whose values equal themselves, and compare in the same way in Spark, Arrow and Python.
_EXACT = re.compile(r"string|binary|boolean|tinyint|smallint|int|bigint|decimal\(.+\)|date|timestamp|timestamp_ntz")


class Computation(ABC):
    """Computes the output rows of each key from all its source rows.

    Attributes:
        by: Source columns that form the key. All rows of every key that a batch touches are computed again.
        keys: Columns that identify an output row.
        columns: Names and Spark SQL types of the output, without `_batch`.
        comments: Column comments by column name.
        comment: The table's description.
        logic: A hash of everything the output depends on. None for a user's class, whose code cannot be hashed.
    """

    by: tuple[str, ...]
    keys: tuple[str, ...]
    columns: tuple[tuple[str, str], ...]
    comments: Mapping[str, str]
    comment: str
    logic: str | None = None

    @abstractmethod
    def select_input(self, rows: DataFrame) -> DataFrame:
        """Returns the source's rows that count, with the columns that `compute` needs and those of `by`."""

    @abstractmethod
    def compute(self, rows: DataFrame) -> DataFrame:
        """Computes the output rows, each row once.

        Args:
            rows: Result of `select_input`, with every row of each key that occurs in it.

        Raises:
            ProcessorError: The user's code failed.
        """


def compute_groups(
    rows: DataFrame, by: Iterable[str], function: Callable[[pa.Table], pa.Table], columns: Iterable[tuple[str, str]]
) -> DataFrame:
    """Applies a function to Arrow tables that each hold all rows of several keys.

    Args:
        by: Columns that form the key.
        columns: Names and Spark SQL types of the function's result.
    """
    ddl = ", ".join(f"{quote(name)} {sql}" for name, sql in columns)
    return map_groups(rows, by, _GROUPS, function, ddl).localCheckpoint()


def rows_with_values(rows: DataFrame, names: Iterable[str]) -> DataFrame:
    """Filters rows to those with a value in each of these columns."""
    from pyspark.sql import functions as F

    for name in names:
        rows = rows.where(F.col(quote(name)).isNotNull())
    return rows


def require_columns(config: ProcessorSettings, names: Iterable[str], present: Mapping[str, str]) -> None:
    """Checks that the source has all these columns.

    Raises:
        ConfigError: Some are missing.
    """
    if missing := [name for name in names if name not in present]:
        raise ConfigError(
            f"{config.where}: {config.source} has no column {', '.join(missing)}; there are {', '.join(present)}",
            fix="Name columns that the source has",
        )


def require_exact(config: ProcessorSettings, what: str, names: Iterable[str], present: Mapping[str, str]) -> None:
    """Checks that the types of these columns compare and sort in the same way in Spark, Arrow and Python.

    Raises:
        ConfigError: The type of a column does not.
    """
    for name in names:
        if not _EXACT.fullmatch(present[name]):
            raise ConfigError(
                f"{config.where}.{what}: {name} is of type {present[name]}",
                why="Its values cannot be compared exactly",
                fix="Name columns of text, bytes, whole or decimal numbers, booleans, dates or times",
            )


def require_names(config: ProcessorSettings, published: Collection[str]) -> None:
    """Checks that the key's columns can be columns of the output table.

    Args:
        published: The output table's other columns.

    Raises:
        ConfigError: A column is named twice, or the table already has one of that name.
    """
    try:
        check_columns(config.key, published, config.into)
    except ValueError as error:
        raise ConfigError(f"{config.where}.key: {error}") from None
