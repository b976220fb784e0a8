"""Where the tables are and how to open them: folders on a laptop, Unity Catalog names on Databricks."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sessionlake.config import Settings
from sessionlake.errors import LakeError
from sessionlake.lake.schemas import TABLES, TableSchema

if TYPE_CHECKING:
    from delta.tables import DeltaTable
    from pyspark.sql import DataFrame, SparkSession

    from sessionlake.lake.txn import Txn


# What Spark and delta-rs call the number of rows that a commit wrote.
_ROWS = ("numOutputRows", "num_added_rows")


def quote(name: str) -> str:
    """A SQL identifier, quoted."""
    return "`" + name.replace("`", "``") + "`"


@dataclass(frozen=True)
class Commit:
    """One version of a table, and how many rows its commit wrote."""

    version: int
    rows: int


# Types by width: each holds every value of those before it.
_WIDTHS = (("tinyint", "smallint", "int", "bigint"), ("float", "double"))


def _why_not(present: str, wanted: str) -> str:
    """Why a column cannot change its type so."""
    for widths in _WIDTHS:
        if present in widths and wanted in widths:
            if widths.index(wanted) < widths.index(present):
                return "values that are there need not fit the narrower type"
            return "a table's type is not widened in place, since not every Delta reader could read it any more"
    return "what is there is not of that type"


def _rows_written(commit: Path) -> int:
    for line in commit.read_text(encoding="utf-8").splitlines():
        info = json.loads(line).get("commitInfo")
        if info is not None:
            return _rows(info.get("operationMetrics", {}))
    return 0


def _rows(metrics: Mapping[str, Any]) -> int:
    return int(next((metrics[name] for name in _ROWS if name in metrics), 0))


class Lake:
    """Opens and creates the tables of one home or catalog. Holds no session and no state.

    Args:
        own: definitions of tables beside those that every lake has.
    """

    def __init__(self, settings: Settings, own: dict[str, TableSchema] | None = None) -> None:
        self.settings = settings
        self._schemas = TABLES | (own or {})

    @property
    def local(self) -> bool:
        """Whether tables are folders under the home rather than catalog entries."""
        return self.settings.catalog is None

    def path(self, table: str) -> Path:
        """Folder of a local table: `warehouse/<schema>/<table>`."""
        schema, name = table.split(".")
        return self.settings.warehouse / schema / name

    def identifier(self, table: str) -> str:
        """What SQL and `DeltaTable.forName` call the table."""
        schema, name = table.split(".")
        if self.settings.catalog is None:
            return f"delta.{quote(str(self.path(table)))}"
        return f"{quote(self.settings.catalog)}.{quote(self.settings.schemas.name_of(schema))}.{quote(name)}"

    def exists(self, spark: SparkSession, table: str) -> bool:
        """Whether the table has been created."""
        if self.local:
            return any((self.path(table) / "_delta_log").glob("*.json"))
        return bool(spark.catalog.tableExists(self.identifier(table)))

    def read(self, spark: SparkSession, table: str, version: int | None = None) -> DataFrame:
        """The table as a frame, now or as of a Delta version."""
        reader = spark.read.format("delta")
        if version is not None:
            reader = reader.option("versionAsOf", version)
        return reader.load(str(self.path(table))) if self.local else reader.table(self.identifier(table))

    def stream(self, spark: SparkSession, table: str, options: Mapping[str, Any]) -> DataFrame:
        """The table as a stream of its appended rows."""
        reader = spark.readStream.format("delta").options(**options)
        return reader.load(str(self.path(table))) if self.local else reader.table(self.identifier(table))

    def delta(self, spark: SparkSession, table: str) -> DeltaTable:
        """The table's Delta handle, for MERGE and history."""
        from delta.tables import DeltaTable

        if self.local:
            return DeltaTable.forPath(spark, str(self.path(table)))
        return DeltaTable.forName(spark, self.identifier(table))

    def last_commit(self, spark: SparkSession, table: str) -> Commit:
        """The table's latest commit. On a laptop its log is read directly: `history` costs a Spark job."""
        if self.local:
            log = self.path(table) / "_delta_log"
            newest = max((file for file in log.glob("*.json") if file.stem.isdigit()), default=None)
            return Commit(-1, 0) if newest is None else Commit(int(newest.stem), _rows_written(newest))
        row = self.delta(spark, table).history(1).select("version", "operationMetrics").first()
        return Commit(-1, 0) if row is None else Commit(row["version"], _rows(row["operationMetrics"]))

    def ensure(self, spark: SparkSession, tables: Iterable[str]) -> None:
        """Creates what is missing and adds newly declared columns.

        Raises:
            LakeError: an existing table has columns or types that the configuration does not.
        """
        for table in tables:
            if self.exists(spark, table):
                self._evolve(spark, table)
            else:
                self._create(spark, table)

    def overwrite(
        self, spark: SparkSession, table: str, rows: DataFrame, txn: Txn, metadata: str, *, changes: bool
    ) -> None:
        """Replaces a table's rows in one commit, once, whatever the number of repetitions.

        Args:
            metadata: kept with the commit: its `userMetadata` in the table's history.
            changes: False says that the rows are the same as before, so that streams and feeds pass over the commit.
        """
        append_only = "delta.appendOnly" in TABLES[table].properties()
        if append_only:
            spark.sql(f"ALTER TABLE {self.identifier(table)} SET TBLPROPERTIES ('delta.appendOnly' = 'false')")
        writer = rows.write.format("delta").mode("overwrite").option("userMetadata", metadata)
        writer = writer.option("dataChange", str(changes).lower())
        writer = writer.option("txnAppId", txn.on(table)).option("txnVersion", txn.version)
        if self.local:
            writer.save(str(self.path(table)))
        else:
            writer.saveAsTable(self.identifier(table))
        if append_only:
            spark.sql(f"ALTER TABLE {self.identifier(table)} SET TBLPROPERTIES ('delta.appendOnly' = 'true')")

    def add_version(self, spark: SparkSession, table: str, after: int) -> None:
        """Makes sure that there is a version behind `after`: a stream cannot be told to begin at one yet to come."""
        if self.last_commit(spark, table).version <= after:
            noted = f"'sessionlake.built_from' = '{int(after)}'"
            spark.sql(f"ALTER TABLE {self.identifier(table)} SET TBLPROPERTIES ({noted})")

    def drop(self, spark: SparkSession, table: str) -> None:
        """Removes a table and its history: for tables that are only built to be copied."""
        if self.local:
            shutil.rmtree(self.path(table), ignore_errors=True)
        else:
            spark.sql(f"DROP TABLE IF EXISTS {self.identifier(table)}")

    def register(self, spark: SparkSession, tables: Iterable[str] | None = None) -> list[str]:
        """Gives local tables their two-level names in this session's catalog; returns those that exist."""
        found = [table for table in tables or TABLES if self.exists(spark, table)]
        if self.local:
            for table in found:
                schema, name = table.split(".")
                spark.sql(f"CREATE SCHEMA IF NOT EXISTS {quote(schema)}")
                if not spark.catalog.tableExists(f"{schema}.{name}"):
                    spark.catalog.createTable(f"{schema}.{name}", path=str(self.path(table)), source="delta")
        return found

    def _create(self, spark: SparkSession, table: str) -> None:
        from delta.tables import DeltaTable

        schema = self._schemas[table]
        builder = DeltaTable.createIfNotExists(spark).comment(schema.comment)
        builder = builder.location(str(self.path(table))) if self.local else builder.tableName(self.identifier(table))
        for name, sql in schema.resolved(self.settings):
            builder = builder.addColumn(name, sql)
        if keys := schema.clustered(local=self.local):
            builder = builder.clusterBy(*keys)
        for key, value in schema.properties().items():
            builder = builder.property(key, value)
        builder.execute()

    def _evolve(self, spark: SparkSession, table: str) -> None:
        wanted = dict(self._schemas[table].resolved(self.settings))
        present = {f.name: f.dataType.simpleString() for f in self.read(spark, table).schema.fields}
        for name, sql in present.items():
            if name not in wanted:
                raise LakeError(
                    f"{table}: column {name} ({sql}) is in the table but not in capture.columns; a declared column "
                    "cannot be taken away, since its values would be lost: declare it again, or capture with these "
                    "columns into a home beside this one (`home` in the configuration), from what Kafka still holds"
                )
            if wanted[name].replace(" ", "") != sql:
                raise LakeError(
                    f"{table}: column {name} is {sql} in the table and {wanted[name]} in capture.columns: "
                    f"{_why_not(sql, wanted[name])}; declare it as it was, or capture with these columns into a home "
                    "beside this one (`home` in the configuration), from what Kafka still holds"
                )
        added = [f"{quote(name)} {sql}" for name, sql in wanted.items() if name not in present]
        if added:
            spark.sql(f"ALTER TABLE {self.identifier(table)} ADD COLUMNS ({', '.join(added)})")
