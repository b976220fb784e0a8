"""Implements `TableReader` with Spark, for tables in any storage."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from datetime import date, datetime
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from sessionlake.delta.storage.far_times import OutOfRangeTime, convert_time_to_micros
from sessionlake.delta.storage.interface import TableStorage
from sessionlake.delta.storage.reading import (
    Condition,
    FilesToRead,
    TableReader,
    TableSize,
    TooLargeError,
    convert_groups_to_counter,
    convert_groups_to_dict,
    list_session_columns,
)
from sessionlake.delta.storage.values import convert_to_row_dicts
from sessionlake.protocol.names import quote
from sessionlake.protocol.types import Row
from sessionlake.spark.failures import RESULT_TOO_BIG, parse_spark_failure
from sessionlake.spark.frames import convert_to_spark_frame, iterate_batches
from sessionlake.spark.interpreted import disable_code_generation

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

# Bytes that a value in an Arrow table needs at least, as assumed when the number of rows is limited.
_CELL_BYTES = 8

_FIRST_DAY = date(1970, 1, 1)


class SparkReader(TableReader):
    """Reads rows of tables with Spark, from any storage.

    Args:
        storage: the storage of the tables.
        spark: the session to read with.
    """

    def __init__(self, storage: TableStorage, spark: SparkSession) -> None:
        self._storage = storage
        self._spark = spark

    def exists(self, table: str) -> bool:
        return self._storage.exists(self._spark, table)

    def read_table_schema(self, table: str) -> pa.Schema:
        """Returns the columns of a table, with the Arrow types that Spark's `toArrow` returns. Runs no Spark job."""
        from pyspark.sql.pandas.types import to_arrow_schema

        return to_arrow_schema(self._storage.read(self._spark, table, {}).schema)

    def read_batches(
        self, table: str, *conditions: Condition, columns: Sequence[str] | None = None
    ) -> Iterator[pa.RecordBatch]:
        """Yields the rows of a table that meet all conditions, as record batches.

        Collects all rows at once. If Spark refuses a result of this size, collects it in parts.
        """
        if not self.exists(table):
            return
        try:
            with disable_code_generation(self._spark):
                frame = self._build_filtered_frame(table, conditions, columns)
                found = frame.toArrow()
        except Exception as error:
            if not RESULT_TOO_BIG.matches_failure(parse_spark_failure(error)):
                raise
            yield from iterate_batches(frame)
        else:
            yield from found.to_batches()

    def read_arrow_table(
        self,
        table: str,
        *conditions: Condition,
        columns: Sequence[str] | None = None,
        sessions: pa.Table | None = None,
        max_bytes: int | None = None,
    ) -> pa.Table:
        """Returns the rows of a table that meet all conditions, as one Arrow table.

        With `max_bytes`, Spark returns at most as many rows as could fit.
        """
        if max_bytes is None or not self.exists(table):
            return super().read_arrow_table(table, *conditions, columns=columns, sessions=sessions)
        try:
            with disable_code_generation(self._spark):
                frame = self._select_sessions(self._build_filtered_frame(table, conditions), sessions)
                frame = frame if columns is None else frame.select(*map(quote, columns))
                most = max_bytes // (_CELL_BYTES * len(frame.columns))
                found = frame.limit(most + 1).toArrow()
        except Exception as error:
            if not RESULT_TOO_BIG.matches_failure(parse_spark_failure(error)):
                raise
            raise TooLargeError(f"{table}: {RESULT_TOO_BIG.remedy}") from error
        if found.num_rows > most or found.nbytes > max_bytes:
            raise TooLargeError(
                f"{table}: the selected rows have more than {max_bytes} bytes, the limit for one read into memory",
                fix="Select fewer rows or columns",
            )
        return found

    def _select_sessions(self, frame: DataFrame, sessions: pa.Table | None) -> DataFrame:
        from pyspark.sql import functions as F

        if sessions is None:
            return frame
        names = list_session_columns(sessions)
        named = sessions.select(names).group_by(names).aggregate([])
        return frame.join(F.broadcast(convert_to_spark_frame(self._spark, named)), names, "left_semi")

    def read_rows_and_total_count(
        self, table: str, *conditions: Condition, columns: Sequence[str] | None = None
    ) -> tuple[pa.Table, int]:
        same = {"versionAsOf": self._storage.latest_version(self._spark, table)}
        with disable_code_generation(self._spark):
            found = self._build_filtered_frame(table, conditions, columns, same).toArrow()
            return found, self._storage.read(self._spark, table, same).count()

    def read_size(self, table: str) -> TableSize:
        with disable_code_generation(self._spark):
            (detail,) = (
                self._storage.open_delta_table(self._spark, table).detail().select("numFiles", "sizeInBytes").collect()
            )
            rows = self._storage.read(self._spark, table, {}).count()
            version = self._storage.latest_version(self._spark, table)
        return TableSize(version, rows, detail["numFiles"], detail["sizeInBytes"])

    def count_rows(self, table: str) -> int:
        if not self.exists(table):
            return 0
        with disable_code_generation(self._spark):
            return self._storage.read(self._spark, table, {}).count()

    def find_files_to_read(self, table: str, *conditions: Condition) -> FilesToRead | None:
        """Returns None, since in a catalog only the platform knows which files it opens."""
        del table, conditions
        return None

    def sample_rows(self, table: str, max_rows: int, columns: Sequence[str]) -> list[Row]:
        if not self.exists(table):
            return []
        with disable_code_generation(self._spark):
            return convert_to_row_dicts(self._build_filtered_frame(table, (), columns).limit(max_rows).toArrow())

    def count_rows_by(self, table: str, by: Sequence[str], *conditions: Condition) -> Counter[tuple[Any, ...]]:
        """Counts the rows of each group on the cluster."""
        if not self.exists(table):
            return Counter()
        with disable_code_generation(self._spark):
            return convert_groups_to_counter(
                self._build_filtered_frame(table, conditions).groupBy(*map(quote, by)).count().toArrow()
            )

    def find_highest_values(
        self, table: str, column: str, by: Sequence[str], *conditions: Condition
    ) -> dict[tuple[Any, ...], Any]:
        """Computes the highest value of a column in each group of rows, on the cluster."""
        from pyspark.sql import functions as F

        if not self.exists(table):
            return {}
        with disable_code_generation(self._spark):
            return convert_groups_to_dict(
                self._build_filtered_frame(table, conditions)
                .groupBy(*map(quote, by))
                .agg(F.max(quote(column)))
                .toArrow()
            )

    def has_rows(self, table: str, *conditions: Condition) -> bool:
        if not self.exists(table):
            return False
        with disable_code_generation(self._spark):
            return not self._build_filtered_frame(table, conditions).isEmpty()

    def _build_filtered_frame(
        self,
        table: str,
        conditions: Sequence[Condition],
        columns: Sequence[str] | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> DataFrame:
        """Returns the rows of a table that meet the conditions as a Spark frame, with these columns (None for all).

        It is called inside `disable_code_generation`, since Delta reads the table's log as soon as the frame is
        created.

        Args:
            table: the table's two-level name.
            conditions: conditions that rows must meet.
            columns: names of the columns; None for all.
            options: options of Spark's Delta reader.
        """
        from pyspark.sql import functions as F

        frame = self._storage.read(self._spark, table, options or {})
        for name, compare, value in conditions:
            frame = frame.where(compare(F.col(quote(name)), to_spark_literal(value)))
        return frame if columns is None else frame.select(*map(quote, columns))


def to_spark_literal(value: Any) -> Any:
    """Converts the value of a condition, or each value in a list, to a type that Spark can compare with a column.

    A time is passed as microseconds and a date as days, so that neither time zone nor calendar can change it. A time
    without zone is passed as text.
    """
    from pyspark.sql import functions as F

    if isinstance(value, datetime) and value.tzinfo is None:
        return F.lit(value.isoformat()).cast("timestamp_ntz")
    if isinstance(value, OutOfRangeTime | datetime):
        return F.timestamp_micros(F.lit(convert_time_to_micros(value)))
    if isinstance(value, date):
        return F.date_from_unix_date(F.lit((value - _FIRST_DAY).days))
    return [to_spark_literal(one) for one in value] if isinstance(value, list | tuple) else value
