"""What a table by keys holds: what comes of all rows that a source has of each key, however it is computed."""

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

# In so many groups keys are gone through: the rows of each must fit into a worker.
_GROUPS = 1024
# Types whose values are equal to themselves, and alike in Spark, in Arrow and in Python.
_EXACT = re.compile(r"string|binary|boolean|tinyint|smallint|int|bigint|decimal\(.+\)|date|timestamp|timestamp_ntz")


class Computation(ABC):
    """What comes of the rows of each key.

    Attributes:
        by: columns by whose values rows go together; those of a batch say what is gone through once more.
        keys: what tells apart the rows that come of it.
        columns: names and Spark SQL types of these, less `_batch`.
        comments: what the columns mean, by their names.
        comment: what the table is, for its description.
        logic: changes with whatever its rows depend on; None where code of which nothing is known decides.
    """

    by: tuple[str, ...]
    keys: tuple[str, ...]
    columns: tuple[tuple[str, str], ...]
    comments: Mapping[str, str]
    comment: str
    logic: str | None = None

    @abstractmethod
    def given(self, rows: DataFrame) -> DataFrame:
        """Of rows of the source, those that count, with the columns that are needed, and those of `by`."""

    @abstractmethod
    def made(self, rows: DataFrame) -> DataFrame:
        """What comes of rows that count, computed once.

        Args:
            rows: of each key that is among them, all there are.

        Raises:
            ProcessorError: code of one's own failed.
        """


def each_group(
    rows: DataFrame, by: Iterable[str], function: Callable[[pa.Table], pa.Table], columns: Iterable[tuple[str, str]]
) -> DataFrame:
    """What a function makes of rows of several keys at once, all of each together."""
    ddl = ", ".join(f"{quote(name)} {sql}" for name, sql in columns)
    return map_groups(rows, by, _GROUPS, function, ddl).localCheckpoint()


def have(rows: DataFrame, names: Iterable[str]) -> DataFrame:
    """The rows that have a value in each of these columns."""
    from pyspark.sql import functions as F

    for name in names:
        rows = rows.where(F.col(quote(name)).isNotNull())
    return rows


def require_columns(own: ProcessorSettings, names: Iterable[str], present: Mapping[str, str]) -> None:
    """Returns if the source has all of these columns.

    Raises:
        ConfigError: naming those that it lacks.
    """
    if missing := [name for name in names if name not in present]:
        raise ConfigError(
            f"{own.where}: {own.source} has no column {', '.join(missing)}; there are {', '.join(present)}"
        )


def require_exact(own: ProcessorSettings, what: str, names: Iterable[str], present: Mapping[str, str]) -> None:
    """Returns if values of these columns are told apart, and ordered, alike wherever they are.

    Raises:
        ConfigError: naming one that is not.
    """
    for name in names:
        if not _EXACT.fullmatch(present[name]):
            raise ConfigError(
                f"{own.where}.{what}: {name} is {present[name]}: texts, bytes, whole and decimal numbers, "
                "booleans, dates and times are told apart"
            )


def require_names(own: ProcessorSettings, published: Collection[str]) -> None:
    """Returns if the key's columns can be those of a table.

    Args:
        published: the columns that the table has besides.

    Raises:
        ConfigError: one is named twice, or as a column that the table has anyway.
    """
    try:
        check_columns(own.key, published, own.into)
    except ValueError as error:
        raise ConfigError(f"{own.where}.key: {error}") from None
