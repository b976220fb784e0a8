"""Detects lost tables, files, rows, states and checkpoints, before a job continues over the hole and for `doctor`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from sessionlake.delta.lake import Lake
from sessionlake.delta.schemas.names import BRONZE, GOLD, LEDGER, MESSAGES, POSITIONS, PROCESSOR_ERRORS, SILVER, TOPICS
from sessionlake.delta.schemas.tables import TABLES
from sessionlake.delta.storage.reading import TableReader
from sessionlake.errors import LakeError, LossError
from sessionlake.ledger.books import LedgerReader, stored_sums, to_dicts
from sessionlake.ledger.entries import earliest_after_rebuild
from sessionlake.ledger.erasures import read_receipts
from sessionlake.ledger.progress import last_batch, offset_spans
from sessionlake.ledger.retained import read_heads
from sessionlake.ledger.silences import IS_SILENCE
from sessionlake.ledger.topics import read_topics
from sessionlake.settings.model import Settings
from sessionlake.spark.failures import parse_failure
from sessionlake.spark.frames import read_all_columns
from sessionlake.streaming import handover
from sessionlake.streaming.checkpoint import RECOVERED, last_committed, read_planned, recovery_hint
from sessionlake.streaming.generations import Generations, require_intact_checkpoint
from sessionlake.streaming.guards import has_data, refuse_fresh_checkpoint
from sessionlake.streaming.sharded import read_states

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Number of lost files or topics that an error names.
_NAMED = 3
# What to do about a table of bronze whose rows are stored nowhere else.
RESTORE_OR_MOVE = "restore it from a backup; without one, capture into another home or other schemas"


def first_loss(*checks: Callable[[], object]) -> str | None:
    """Runs checks in order and returns the text of the first loss that one reports; None if none does."""
    for check in checks:
        try:
            check()
        except LossError as loss:
            return loss.what
    return None


def has_committed(settings: Settings, layer: str) -> bool:
    """Returns True if the layer's checkpoint contains a committed batch, in any of its generations."""
    return any(Path(settings.checkpoint(layer)).glob("**/commits/[0-9]*"))


def refuse_lost_ledger(spark: SparkSession | None, settings: Settings, layer: str) -> None:
    """Stops a job if the ledger lacks its committed batches: the job would run on and its totals would look right.

    Raises:
        LossError: The ledger is gone, has no batch of the layer, or ends too early. Or the sums of removed entries are
            gone.
    """
    lake = Lake(settings)
    has_ledger = lake.exists(spark, LEDGER)
    cut = read_heads(lake.reader(spark)).get(LEDGER) if has_ledger else None
    if cut is not None and cut.removed and stored_sums(lake.reader(spark)).removed_before is None:
        raise LossError(
            f"{cut.summary}, and {POSITIONS} is gone",
            why="It has the only sums of the removed entries",
            fix="Restore it from a backup",
        )
    if not has_committed(settings, layer):
        return
    batches = f"though {layer} has committed batches ({settings.checkpoint(layer)})"
    if not has_ledger:
        raise LossError(f"{LEDGER} is gone, {batches}", fix=repair_hint(LEDGER))
    refuse_lost_files(spark, lake, LEDGER)
    if lacks_batches(spark, lake, layer):
        remedy = repair_hint(LEDGER) if layer in RECOVERED else recovery_hint(layer)
        raise LossError(f"{LEDGER} has no batch of {layer}, {batches}", fix=remedy)
    # Every batch of these layers has a row in the ledger, so the last one must be there.
    first_batch = handover.first_batch_or_none(settings, layer) if layer in {SILVER, GOLD} else None
    if first_batch is not None:
        refuse_old_ledger(lake.reader(spark), settings, layer, first_batch)


def refuse_old_ledger(reader: TableReader, settings: Settings, layer: str, first_batch: int) -> None:
    """Stops a job if the ledger lacks its last committed batch: the ledger row is written first, so it was there once.

    Raises:
        LossError: The ledger was restored to an older version. The error says where it ends.
    """
    checkpoint = settings.checkpoint(layer)
    app_id, committed = Generations(checkpoint, layer).read_last_known()[0], last_committed(checkpoint)
    if app_id is None or committed is None:  # other checks report a damaged checkpoint
        return
    recorded, done = last_batch(reader, layer, app_id), first_batch + committed
    if recorded is None or recorded < done:
        ends = "no batch" if recorded is None else f"batches up to {recorded}"
        lost = f"{LEDGER} has {ends} of {layer}, which has committed batch {done} ({checkpoint})"
        raise LossError(lost, fix=repair_hint(LEDGER))


def lacks_batches(spark: SparkSession | None, lake: Lake, layer: str) -> bool:
    """Returns True if a layer has started but the ledger has no batch of it."""
    return last_batch(lake.reader(spark), layer) is None and has_started(spark, lake, layer)


def has_started(spark: SparkSession | None, lake: Lake, layer: str) -> bool:
    """Returns True if a layer has processed any messages, by its checkpoint, its tables or the ledger."""
    noted = has_committed(lake.settings, layer) or has_data(spark, lake, layer)
    return noted or last_batch(lake.reader(spark), layer) is not None


def refuse_lost_tables(spark: SparkSession | None, lake: Lake, layer: str, tables: Iterable[str]) -> None:
    """Stops a layer that has processed messages and lacks one of its tables: a new table would have a hole.

    Raises:
        LossError: A table is gone. The error names it.
    """
    for table in tables:
        if not lake.exists(spark, table) and has_started(spark, lake, layer):
            raise LossError(
                f"{table} is gone, though {layer} has processed messages", fix=repair_hint(table, RESTORE_OR_MOVE)
            )


def refuse_lost_topics(spark: SparkSession | None, lake: Lake) -> None:
    """Returns if bronze has not started, or `ops.topics` has a row of every topic with messages in bronze.

    Raises:
        LossError: The table is gone or lacks a topic.
    """
    refuse_lost_tables(spark, lake, BRONZE, [TOPICS])
    known = {row.topic for row in read_topics(spark, lake)}
    refuse_unknown_topics(known, (span.topic for span in offset_spans(lake.reader(spark), BRONZE)))


def refuse_unknown_topics(known: Collection[str], taken: Iterable[str]) -> None:
    """Stops bronze if it lacks what it must remember of a topic with messages: its ids and shifts of offsets.

    Args:
        known: The topics in `ops.topics`.
        taken: The topics that the ledger has messages of.

    Raises:
        LossError: Topics are missing. The error names some of them.
    """
    lost = sorted({*taken} - {*known})
    if lost:
        lacks = f"{TOPICS} has no row of {', '.join(lost[:_NAMED])}, though {BRONZE} has processed messages of it"
        raise LossError(lacks, fix=repair_hint(TOPICS, RESTORE_OR_MOVE))


def refuse_lost_state(settings: Settings, layer: str) -> None:
    """Returns if every state store has the last committed batch, or nothing was committed yet.

    Raises:
        LossError: A store lacks the batch. The error names its folder.
    """
    checkpoint = Path(settings.checkpoint(layer))
    batch = last_committed(checkpoint)
    if batch is None:
        return
    stores = (checkpoint / "state" / "0" / str(number) for number in range(_stores(checkpoint, batch, layer)))
    lacking = next((store for store in stores if not any(store.glob(f"{batch + 1}*"))), None)
    if lacking is not None:
        raise LossError(f"{layer}: {lacking} lacks the state of batch {batch}", fix=recovery_hint(layer))


def refuse_lost_checkpoint(spark: SparkSession, settings: Settings, layer: str) -> None:
    """Returns if a stateful layer's checkpoint is intact, has all its states, and is as new as the ledger.

    Raises:
        LossError: One of these is not so. The error says which.
    """
    handover.require_states(settings, layer)
    checkpoint, lake, first_batch = settings.checkpoint(layer), Lake(settings), handover.first_batch(settings, layer)
    require_intact_checkpoint(checkpoint, layer)
    refuse_fresh_checkpoint(spark, lake, settings, layer)
    refuse_lost_state(settings, layer)
    committed = last_committed(checkpoint)
    done = first_batch - 1 if committed is None else first_batch + committed
    app_id = Generations(checkpoint, layer).current.app_id
    recorded = None if app_id is None else last_batch(lake.reader(spark), layer, app_id)
    # A batch is in the ledger before it is committed in the checkpoint.
    if recorded is not None and recorded > done + 1:
        old = f"the checkpoint {checkpoint} ends with batch {done}, the tables hold batches up to {recorded}"
        raise LossError(old, fix=recovery_hint(layer))
    if committed is None:
        return
    try:
        read_all_columns(read_states(spark, checkpoint, committed))
    except Exception as error:
        raise LossError(
            f"the states in {checkpoint} cannot be read ({parse_failure(error)})", fix=recovery_hint(layer)
        ) from error


def _stores(checkpoint: Path, batch: int, layer: str) -> int:
    """Returns the number of state stores of a stream. Its first batch fixes it; Spark notes it with every batch.

    Raises:
        LossError: Spark's note is damaged.
    """
    try:
        metadata, _ = read_planned(checkpoint, batch)
        return int(metadata["conf"]["spark.sql.shuffle.partitions"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        lost = f"{checkpoint} does not say how many state stores it has ({error!r})"
        raise LossError(lost, fix=recovery_hint(layer)) from None


def refuse_lost_files(spark: SparkSession | None, lake: Lake, table: str) -> None:
    """Returns if every file of the table's current version exists, as far as this process can see.

    Raises:
        LossError: Files are gone. The error names some of them.
    """
    lost = lake.storage.lost_files(spark, table)
    if lost:
        named = ", ".join(sorted(lost)[:_NAMED]) + (f", and {len(lost) - _NAMED} more" if len(lost) > _NAMED else "")
        raise LossError(
            f"{table} needs files that are gone: {named}", fix=repair_hint(table, "restore them from a backup")
        )


def require_logs(spark: SparkSession, lake: Lake, tables: Iterable[str]) -> None:
    """Returns if each of these tables either does not exist or has a log that can be read.

    Raises:
        LakeError: A log cannot be read. A program must not decide whether to remove that table.
    """
    for table in tables:
        if not lake.exists(spark, table):
            continue
        try:
            _ = lake.read(spark, table).schema
            lake.storage.lost_files(spark, table)
        except Exception as error:
            raise LakeError(
                f"the log of {table} cannot be read: {parse_failure(error)}",
                fix=f"Run this again. If the error stays, remove the table ({lake.identifier(table)}) and run this "
                "again, which makes it from the start",
            ) from error


def refuse_unreadable(spark: SparkSession, lake: Lake, tables: Iterable[str]) -> None:
    """Returns if every row of these tables can be read.

    Raises:
        LossError: A table is gone or cannot be read. The error names it.
    """
    for table in tables:
        if not lake.exists(spark, table):
            raise LossError(f"{table} is gone", fix=repair_hint(table))
        refuse_lost_files(spark, lake, table)
        try:
            read_all_columns(lake.read(spark, table))
        except Exception as error:
            raise LossError(f"{table} cannot be read ({parse_failure(error)})", fix=repair_hint(table)) from error


def refuse_lost_rows(spark: SparkSession | None, lake: Lake, tables: Iterable[str]) -> Counter[str]:
    """Returns if the lake's own tables exist, and the append-only ones hold what the ledger says was written.

    Args:
        spark: The session; None if tables are read without Spark.
        lake: The lake.
        tables: The append-only tables to count.

    Returns:
        The number of rows of each table that were removed on purpose, as `removed_rows` counts them.

    Raises:
        LossError: A table is gone or has too few rows. The error names it.
    """
    reader, booked = lake.reader(spark), Counter[str]()
    for row in to_dicts(LedgerReader(reader, "outputs").current()):
        for output in row["outputs"]:
            booked[output["table"]] += output["rows"]
    for table in booked.keys() & TABLES.keys():
        if booked[table] and not lake.exists(spark, table):
            raise LossError(f"{table} is gone", fix=repair_hint(table))
    gone = removed_rows(reader)
    for table in tables:
        silent = sum(part.num_rows for part in reader.batches(table, IS_SILENCE)) if table == MESSAGES else 0
        rows, removed = reader.count(table) - silent, gone.get(table, 0)
        # A batch can be in its tables before it is in the ledger. So extra rows are no loss; missing rows are.
        if rows < booked[table] - removed:
            booking = f"{booked[table]}{removed_note(removed)}"
            raise LossError(
                f"{table} holds {rows} rows, but the ledger says {booking}: rows were removed by hand",
                fix=repair_hint(table, "restore the table (Delta's time travel: RESTORE TABLE)"),
            )
    return gone


def removed_rows(reader: TableReader) -> Counter[str]:
    """Returns how many rows of each table retention or forgetting has removed. Both are recorded before the removal."""
    found = Counter({table: cut.gone for table, cut in read_heads(reader).items()})
    known = read_receipts(reader)
    if known:
        since = earliest_after_rebuild(reader, SILVER)
        for erasure in known:
            if erasure.begun_at >= since:  # tables that were rebuilt later never contained these rows
                found.update(erasure.removed)
    return found


def removed_note(removed: int) -> str:
    """Returns the text to add to a number of rows of which some were removed on purpose."""
    return f", less {removed} that maintain.retention or `sessionlake forget` removed" if removed else ""


def repair_hint(table: str, otherwise: str = "restore it from a backup") -> str:
    """Returns what to do about a loss in one of the lake's own tables.

    Args:
        table: The table.
        otherwise: What to do if the table cannot be built from others, in lower case.
    """
    layer = table.partition(".")[0]
    if table == LEDGER:
        return f"Run `sessionlake recover ledger`, which builds it again from the tables; or {otherwise}"
    if layer in {SILVER, GOLD} and table != PROCESSOR_ERRORS:
        return f"Run `sessionlake recover {layer}`, which {RECOVERED[layer]}; or {otherwise}"
    return f"{otherwise[0].upper()}{otherwise[1:]}"
