"""Detects lost tables, files, rows, states and checkpoints: for `doctor`, and before a job continues without them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from sessionlake.delta.lake import Lake
from sessionlake.delta.schemas.names import BRONZE, GOLD, LEDGER, MESSAGES, POSITIONS, PROCESSOR_ERRORS, SILVER, TOPICS
from sessionlake.delta.schemas.tables import TABLES
from sessionlake.delta.storage.reading import TableReader
from sessionlake.errors import DataLossError, LakeError
from sessionlake.ledger.books import LedgerReader, iterate_rows_as_dicts, read_stored_sums
from sessionlake.ledger.entries import find_earliest_commit_time_after_rebuild
from sessionlake.ledger.erasures import read_erasure_receipts
from sessionlake.ledger.progress import read_last_batch_number, read_layer_offsets
from sessionlake.ledger.retained import read_removal_records_without_limits
from sessionlake.ledger.silences import IS_SILENCE
from sessionlake.ledger.topics import read_topics
from sessionlake.settings.model import Settings
from sessionlake.spark.failures import parse_spark_failure
from sessionlake.spark.frames import count_rows_reading_all_columns
from sessionlake.streaming import handover
from sessionlake.streaming.checkpoint import (
    RECOVERED,
    build_checkpoint_recovery_hint,
    read_last_committed_batch,
    read_metadata_and_offset_of_planned_batch,
)
from sessionlake.streaming.generations import CheckpointGenerations, require_intact_checkpoint
from sessionlake.streaming.guards import has_layer_data, refuse_new_checkpoint_over_data
from sessionlake.streaming.sharded import read_states_after_batch

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# An error names at most this many lost files or topics.
_NAMED = 3
# What to do about a table of bronze whose rows are stored nowhere else.
RESTORE_OR_MOVE = "restore it from a backup; without one, capture into another home or other schemas"


def find_first_loss_error(*checks: Callable[[], object]) -> str | None:
    """Runs the checks in order until one raises `DataLossError`, and returns the error's text; None if none does."""
    for check in checks:
        try:
            check()
        except DataLossError as loss:
            return loss.what
    return None


def has_committed_batch(settings: Settings, layer: str) -> bool:
    """Returns True if any generation of the layer's checkpoint has a committed batch."""
    return any(Path(settings.checkpoint_path(layer)).glob("**/commits/[0-9]*"))


def refuse_lost_ledger(spark: SparkSession | None, settings: Settings, layer: str) -> None:
    """Refuses to start if `ops.ledger` lacks committed batches of the layer, because sums of it would be wrong.

    Raises:
        DataLossError: The ledger is gone, has no batch of the layer, or ends too early. Or the sums are gone that
            replace entries which retention removed.
    """
    lake = Lake(settings)
    has_ledger = lake.exists(spark, LEDGER)
    cut = read_removal_records_without_limits(lake.reader(spark)).get(LEDGER) if has_ledger else None
    if cut is not None and cut.removed and read_stored_sums(lake.reader(spark)).removed_before is None:
        raise DataLossError(
            f"{cut.removal_description}, and {POSITIONS} is gone",
            why=f"Only {POSITIONS} has the sums of the removed entries",
            fix=f"Restore {POSITIONS} from a backup",
        )
    if not has_committed_batch(settings, layer):
        return
    batches = f"though {layer} has committed batches ({settings.checkpoint_path(layer)})"
    if not has_ledger:
        raise DataLossError(
            f"{LEDGER} is gone, {batches}",
            why="Without the ledger, sums of all batches would be wrong",
            fix=build_table_repair_hint(LEDGER),
        )
    refuse_lost_files(spark, lake, LEDGER)
    if lacks_ledger_entries(spark, lake, layer):
        remedy = build_table_repair_hint(LEDGER) if layer in RECOVERED else build_checkpoint_recovery_hint(layer)
        raise DataLossError(
            f"{LEDGER} has no batch of {layer}, {batches}",
            why="So entries of the ledger are missing, and sums of all batches would be wrong",
            fix=remedy,
        )
    # Every batch of these layers has a row in the ledger, so the last one must be there.
    first_batch = handover.read_first_batch_number_or_none(settings, layer) if layer in {SILVER, GOLD} else None
    if first_batch is not None:
        refuse_outdated_ledger(lake.reader(spark), settings, layer, first_batch)


def refuse_outdated_ledger(reader: TableReader, settings: Settings, layer: str, first_batch: int) -> None:
    """Refuses to start if the ledger lacks the last batch that the layer's checkpoint has committed.

    A batch is written to the ledger before the checkpoint commits it. So the ledger has lost the batch.

    Args:
        reader: Reads the ledger.
        settings: The settings of the lake.
        layer: The layer.
        first_batch: The layer's number of the first batch in its checkpoint, which Spark counts as 0.

    Raises:
        DataLossError: The ledger was restored to an older version. The error names its last batch.
    """
    checkpoint = settings.checkpoint_path(layer)
    app_id, committed = (
        CheckpointGenerations(checkpoint, layer).read_last_known_app_id_and_batch()[0],
        read_last_committed_batch(checkpoint),
    )
    if app_id is None or committed is None:  # other checks report a damaged checkpoint
        return
    recorded, done = read_last_batch_number(reader, layer, app_id), first_batch + committed
    if recorded is None or recorded < done:
        ends = "no batch" if recorded is None else f"batches up to {recorded}"
        lost = f"{LEDGER} has {ends} of {layer}, which has committed batch {done} ({checkpoint})"
        raise DataLossError(lost, fix=build_table_repair_hint(LEDGER))


def lacks_ledger_entries(spark: SparkSession | None, lake: Lake, layer: str) -> bool:
    """Returns True if the layer has processed messages but the ledger has no batch of the layer."""
    return read_last_batch_number(lake.reader(spark), layer) is None and has_layer_started(spark, lake, layer)


def has_layer_started(spark: SparkSession | None, lake: Lake, layer: str) -> bool:
    """Returns True if the layer has processed messages, as its checkpoint, its tables or the ledger show."""
    noted = has_committed_batch(lake.settings, layer) or has_layer_data(spark, lake, layer)
    return noted or read_last_batch_number(lake.reader(spark), layer) is not None


def refuse_lost_tables(spark: SparkSession | None, lake: Lake, layer: str, tables: Iterable[str]) -> None:
    """Refuses to start a layer that has processed messages and now lacks a table.

    The table would be created again without its earlier rows.

    Args:
        spark: The Spark session; None if tables are read without Spark.
        lake: The lake.
        layer: The layer.
        tables: The tables that must exist.

    Raises:
        DataLossError: A table is gone. The error names it.
    """
    for table in tables:
        if not lake.exists(spark, table) and has_layer_started(spark, lake, layer):
            raise DataLossError(
                f"the table {table} is gone, though {layer} has processed messages",
                why="A new table would lack all earlier rows",
                fix=build_table_repair_hint(table, RESTORE_OR_MOVE),
            )


def require_recorded_topics(spark: SparkSession | None, lake: Lake) -> None:
    """Checks that `ops.topics` has a row for every topic with messages in bronze.

    Before bronze's first start there is nothing to check.

    Raises:
        DataLossError: The table is gone or lacks a topic.
    """
    refuse_lost_tables(spark, lake, BRONZE, [TOPICS])
    known = {row.topic for row in read_topics(spark, lake)}
    refuse_unknown_topics(known, (span.topic for span in read_layer_offsets(lake.reader(spark), BRONZE)))


def refuse_unknown_topics(known_topics: Collection[str], topics_with_messages: Iterable[str]) -> None:
    """Refuses to start bronze if a topic with messages has no row in `ops.topics`, which has its id and offset shift.

    Args:
        known_topics: The topics in `ops.topics`.
        topics_with_messages: The topics of which the ledger counts messages.

    Raises:
        DataLossError: Topics are missing. The error names some of them.
    """
    lost = sorted({*topics_with_messages} - {*known_topics})
    if lost:
        lacks = f"{TOPICS} has no row of {', '.join(lost[:_NAMED])}, though {BRONZE} has processed messages of it"
        raise DataLossError(lacks, fix=build_table_repair_hint(TOPICS, RESTORE_OR_MOVE))


def refuse_lost_state(settings: Settings, layer: str) -> None:
    """Checks that every state store in the layer's checkpoint has the state of the last committed batch.

    Before the first committed batch there is nothing to check.

    Raises:
        DataLossError: A state store lacks the batch. The error names the store's folder.
    """
    checkpoint = Path(settings.checkpoint_path(layer))
    batch = read_last_committed_batch(checkpoint)
    if batch is None:
        return
    stores = (
        checkpoint / "state" / "0" / str(number) for number in range(_count_state_stores(checkpoint, batch, layer))
    )
    lacking = next((store for store in stores if not any(store.glob(f"{batch + 1}*"))), None)
    if lacking is not None:
        raise DataLossError(
            f"{layer}: the state store {lacking} has no state of batch {batch}, the last that was committed",
            why="The layer cannot resume without it",
            fix=build_checkpoint_recovery_hint(layer),
        )


def refuse_lost_checkpoint(spark: SparkSession, settings: Settings, layer: str) -> None:
    """Checks that a layer's checkpoint is intact and as new as the ledger, and that all its states can be read.

    Raises:
        DataLossError: The checkpoint fails one of these checks. The error says which.
    """
    handover.require_handover_states(settings, layer)
    checkpoint, lake, first_batch = (
        settings.checkpoint_path(layer),
        Lake(settings),
        handover.read_first_batch_number(settings, layer),
    )
    require_intact_checkpoint(checkpoint, layer)
    refuse_new_checkpoint_over_data(spark, lake, settings, layer)
    refuse_lost_state(settings, layer)
    committed = read_last_committed_batch(checkpoint)
    done = first_batch - 1 if committed is None else first_batch + committed
    app_id = CheckpointGenerations(checkpoint, layer).current_generation.app_id
    recorded = None if app_id is None else read_last_batch_number(lake.reader(spark), layer, app_id)
    # A batch is in the ledger before it is committed in the checkpoint.
    if recorded is not None and recorded > done + 1:
        old = f"the checkpoint {checkpoint} ends with batch {done}, the tables hold batches up to {recorded}"
        raise DataLossError(old, fix=build_checkpoint_recovery_hint(layer))
    if committed is None:
        return
    try:
        count_rows_reading_all_columns(read_states_after_batch(spark, checkpoint, committed))
    except Exception as error:
        raise DataLossError(
            f"{layer}: the states in the checkpoint {checkpoint} cannot be read ({parse_spark_failure(error)})",
            why="The layer cannot resume without them",
            fix=build_checkpoint_recovery_hint(layer),
        ) from error


def _count_state_stores(checkpoint: Path, batch: int, layer: str) -> int:
    """Returns the number of state stores of a stream, which Spark writes into the log entry of every batch.

    Args:
        checkpoint: The folder of the checkpoint.
        batch: Spark's number of the batch.
        layer: The layer's name, for the error's text.

    Raises:
        DataLossError: Spark's log entry is damaged.
    """
    try:
        metadata, _ = read_metadata_and_offset_of_planned_batch(checkpoint, batch)
        return int(metadata["conf"]["spark.sql.shuffle.partitions"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        lost = f"{checkpoint} does not say how many state stores it has ({error!r})"
        raise DataLossError(lost, fix=build_checkpoint_recovery_hint(layer)) from None


def refuse_lost_files(spark: SparkSession | None, lake: Lake, table: str) -> None:
    """Checks that all files of the table's current version exist, if this process can read the table's storage.

    Raises:
        DataLossError: Files are gone. The error names some of them.
    """
    lost = lake.storage.find_missing_files(spark, table)
    if lost:
        named = ", ".join(sorted(lost)[:_NAMED]) + (f", and {len(lost) - _NAMED} more" if len(lost) > _NAMED else "")
        raise DataLossError(
            f"{table} needs files that do not exist any more: {named}",
            fix=build_table_repair_hint(table, "restore them from a backup"),
        )


def require_readable_logs(spark: SparkSession, lake: Lake, tables: Iterable[str]) -> None:
    """Checks that the Delta log of each of these tables can be read. Tables that do not exist are skipped.

    Raises:
        LakeError: A log cannot be read. The error asks the operator to decide whether to remove the table.
    """
    for table in tables:
        if not lake.exists(spark, table):
            continue
        try:
            _ = lake.read(spark, table).schema
            lake.storage.find_missing_files(spark, table)
        except Exception as error:
            raise LakeError(
                f"the log of {table} cannot be read: {parse_spark_failure(error)}",
                fix=f"Run the command again. If the error stays, remove the table ({lake.to_sql_identifier(table)}) "
                "and run the command again, which makes the table from the start",
            ) from error


def refuse_unreadable_rows(spark: SparkSession, lake: Lake, tables: Iterable[str]) -> None:
    """Checks that every row of these tables can be read, by reading all of them.

    Raises:
        DataLossError: A table is gone or cannot be read. The error names it.
    """
    for table in tables:
        if not lake.exists(spark, table):
            raise DataLossError(f"the table {table} is gone", fix=build_table_repair_hint(table))
        refuse_lost_files(spark, lake, table)
        try:
            count_rows_reading_all_columns(lake.read(spark, table))
        except Exception as error:
            raise DataLossError(
                f"the rows of {table} cannot be read ({parse_spark_failure(error)})", fix=build_table_repair_hint(table)
            ) from error


def refuse_lost_rows(spark: SparkSession | None, lake: Lake, tables: Iterable[str]) -> Counter[str]:
    """Checks that the lake's tables exist, and that append-only ones have as many rows as the ledger counts.

    Args:
        spark: The Spark session; None if tables are read without Spark.
        lake: The lake.
        tables: The append-only tables whose rows are counted.

    Returns:
        By table, the number of rows that retention or `forget` has removed.

    Raises:
        DataLossError: A table is gone or has too few rows. The error names it.
    """
    reader, booked = lake.reader(spark), Counter[str]()
    for row in iterate_rows_as_dicts(LedgerReader(reader, "outputs").read_entries_since_rebuild()):
        for output in row["outputs"]:
            booked[output["table"]] += output["rows"]
    for table in booked.keys() & TABLES.keys():
        if booked[table] and not lake.exists(spark, table):
            raise DataLossError(
                f"the table {table} is gone, though the ledger has batches that wrote to it",
                fix=build_table_repair_hint(table),
            )
    gone = count_removed_rows_by_table(reader)
    for table in tables:
        silent = sum(part.num_rows for part in reader.read_batches(table, IS_SILENCE)) if table == MESSAGES else 0
        rows, removed = reader.count_rows(table) - silent, gone.get(table, 0)
        # A batch can be in its tables before it is in the ledger. So extra rows are no loss; missing rows are.
        if rows < booked[table] - removed:
            expected_rows = f"{booked[table]}{describe_removed_rows(removed)}"
            raise DataLossError(
                f"{table} has {rows} rows, but by the ledger it should have {expected_rows}: rows were removed by hand",
                fix=build_table_repair_hint(table, "restore the table (Delta's time travel: RESTORE TABLE)"),
            )
    return gone


def count_removed_rows_by_table(reader: TableReader) -> Counter[str]:
    """Returns, by table, how many rows retention and `forget` have removed since the table was last rebuilt."""
    found = Counter({table: cut.max_missing_rows for table, cut in read_removal_records_without_limits(reader).items()})
    known = read_erasure_receipts(reader)
    if known:
        since = find_earliest_commit_time_after_rebuild(reader, SILVER)
        for erasure in known:
            if erasure.begun_at >= since:  # tables that were rebuilt after the erasure never had these rows
                found.update(erasure.removed_rows_by_table)
    return found


def describe_removed_rows(removed: int) -> str:
    """Returns a text to append to a number of rows: how many were removed on purpose. It is empty if `removed` is 0."""
    return f", less {removed} that maintain.retention or `sessionlake forget` removed" if removed else ""


def build_table_repair_hint(table: str, otherwise: str = "restore it from a backup") -> str:
    """Returns what the operator can do about a lost or damaged table, as text.

    Args:
        table: The table's two-level name.
        otherwise: The advice if the table cannot be built again from other tables, starting in lower case.
    """
    layer = table.partition(".")[0]
    if table == LEDGER:
        return f"Run `sessionlake recover ledger`, which builds it again from the tables; or {otherwise}"
    if layer in {SILVER, GOLD} and table != PROCESSOR_ERRORS:
        return f"Run `sessionlake recover {layer}`, which {RECOVERED[layer]}; or {otherwise}"
    return f"{otherwise[0].upper()}{otherwise[1:]}"
