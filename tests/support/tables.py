"""A reader of tables in memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from sessionlake.delta.storage.reading import Condition, TableReader, TableSize


class Tables(TableReader):
    """The lake's tables in memory."""

    def __init__(self, tables: dict[str, pa.Table]) -> None:
        self.tables = tables

    def exists(self, table: str) -> bool:
        return table in self.tables

    def read_table_schema(self, table: str) -> pa.Schema:
        return self.tables[table].schema

    def read_batches(
        self, table: str, *conditions: Condition, columns: Sequence[str] | None = None
    ) -> Iterator[pa.RecordBatch]:
        if table not in self.tables:
            return
        found = self.tables[table]
        for name, compare, value in conditions:
            found = found.filter(compare(pc.field(name), value))
        yield from (found if columns is None else found.select(list(columns))).to_batches()

    def read_rows_and_total_count(
        self, table: str, *conditions: Condition, columns: Sequence[str] | None = None
    ) -> tuple[pa.Table, int]:
        return self.read_arrow_table(table, *conditions, columns=columns), self.tables[table].num_rows

    def read_size(self, table: str) -> TableSize:
        return TableSize(0, self.tables[table].num_rows, 1, self.tables[table].nbytes)

    def find_files_to_read(self, table: str, *conditions: Condition) -> None:
        del table, conditions
