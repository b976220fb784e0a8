"""Answers for the command line: SQL results, the layers' status, a session's table."""

from __future__ import annotations

import csv
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TextIO

import msgspec
from rich.console import Console
from rich.table import Table

from sessionlake.config import Settings
from sessionlake.errors import BrokerError, MachineError, UsageError
from sessionlake.lake.schemas import TABLES
from sessionlake.lake.status import read_status
from sessionlake.lake.tables import Lake
from sessionlake.runtime.spark import spark_session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def run_query(settings: Settings, sql: str, output: str, out: TextIO) -> None:
    """Runs SQL over the tables it names and prints the result.

    Raises:
        UsageError: Spark does not accept the SQL, or a table it names does not exist yet.
    """
    write_frame(select(settings, sql), output, out)


def select(settings: Settings, sql: str) -> DataFrame:
    """The frame of a query over two-level names."""
    from pyspark.errors import PySparkException

    spark, lake = spark_session(settings, app="query"), Lake(settings)
    named = [table for table in TABLES if re.search(rf"\b{re.escape(table)}\b", sql, re.IGNORECASE)]
    present = lake.register(spark, named)
    missing = [table for table in named if table not in present]
    if missing:
        raise UsageError(f"{', '.join(missing)}: nothing written yet; run the layer first (sessionlake run all --once)")
    try:
        return spark.sql(sql)
    except PySparkException as error:
        text = " ".join(str(error).split(";;")[0].split("== SQL")[0].split())
        raise UsageError(f"{text[:500]}\ntables: {', '.join(TABLES)}") from None


def show_session(settings: Settings, session: str, topic: str | None, output: str, out: TextIO) -> None:
    """Prints a session's rows.

    Raises:
        UsageError: there is no such session.
    """
    from pyspark.sql import functions as F

    spark, lake = spark_session(settings, app="query"), Lake(settings)
    if not lake.exists(spark, "silver.sessions"):
        raise UsageError("no session yet: run silver first (sessionlake run all --once)")
    wanted = F.col("session_id") == session
    if topic is not None:
        wanted &= F.col("topic") == topic
    if lake.read(spark, "silver.sessions").where(wanted).isEmpty():
        raise UsageError(f"no session {session!r}; `sessionlake query` over silver.sessions lists them all")
    rows = lake.read(spark, "silver.session_rows").where(wanted).orderBy("topic", "row_id")
    write_frame(rows, output, out)


def show_status(settings: Settings, output: str, out: TextIO) -> None:
    """Prints one line a layer."""
    spark = spark_session(settings, app="query")
    layers = read_status(spark, Lake(settings), _kafka_messages(settings))
    rows = [layer.to_dict() for layer in layers]
    for row in rows:
        row["age_seconds"] = None if row["age_seconds"] is None else round(row["age_seconds"], 1)
    write_rows(list(rows[0]), rows, output, out)


def _kafka_messages(settings: Settings) -> int | None:
    """Sum of the end offsets of all topics that match; None if Kafka does not answer."""
    try:
        from confluent_kafka import Consumer, KafkaException, TopicPartition

        from sessionlake.runtime.kafka import client_config, require_broker

        require_broker(settings)
    except (BrokerError, MachineError, ModuleNotFoundError):
        return None
    consumer = Consumer({**client_config(settings), "group.id": "sessionlake-status", "enable.auto.commit": False})
    try:
        topics = consumer.list_topics(timeout=10).topics
        names = [name for name in topics if re.fullmatch(settings.kafka.topic_pattern, name)]
        places = [TopicPartition(name, number) for name in names for number in topics[name].partitions]
        return sum(consumer.get_watermark_offsets(place, timeout=10)[1] for place in places)
    except KafkaException:
        return None
    finally:
        consumer.close()


def write_frame(frame: DataFrame, output: str, out: TextIO) -> None:
    """Prints a frame's rows."""
    from pyspark.errors import PySparkException

    try:
        rows = [row.asDict(recursive=True) for row in frame.collect()]
    except PySparkException as error:
        raise UsageError(" ".join(str(error).split())[:500]) from None
    write_rows(frame.columns, rows, output, out)


def write_rows(columns: Sequence[str], rows: list[dict[str, Any]], output: str, out: TextIO) -> None:
    """Prints rows as a table, as JSON (one object a line) or as CSV with a header."""
    if output == "json":
        out.writelines(msgspec.json.encode(row, enc_hook=str).decode() + "\n" for row in rows)
    elif output == "csv":
        writer = csv.DictWriter(out, columns)
        writer.writeheader()
        writer.writerows(rows)
    else:
        Console(file=out, soft_wrap=False, width=None).print(table_of(columns, rows))


def table_of(columns: Sequence[str], rows: list[dict[str, Any]], title: str | None = None) -> Table:
    """A terminal table."""
    table = Table(title=title, title_justify="left", title_style="bold")
    for column in columns:
        number = any(isinstance(row[column], int | float) for row in rows)
        table.add_column(column, justify="right" if number else "left", overflow="fold")
    for row in rows:
        table.add_row(*(_cell(row[column]) for column in columns))
    return table


def _cell(value: Any) -> str:
    if value is None:
        return ""
    return f"{value:,.6g}" if isinstance(value, float) else str(value)
