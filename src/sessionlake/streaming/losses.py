"""What is gone that should be there: noticed before a job writes on over the hole, and by `sessionlake doctor`."""

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
from sessionlake.streaming.checkpoint import RECOVERED, last_committed, planned, way_on
from sessionlake.streaming.generations import Generations, require_whole
from sessionlake.streaming.guards import is_filled, refuse_fresh_checkpoint
from sessionlake.streaming.sharded import stored_states

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Of the files that are gone, as many are named.
_NAMED = 3
# What to do about a table of bronze's that nothing else has the rows of.
ELSEWHERE = "put it back from a backup; without one, capture into another home or other schemas"


def first_loss(*checks: Callable[[], object]) -> str | None:
    """What the first of the checks that finds a loss says of it; None if none does."""
    for check in checks:
        try:
            check()
        except LossError as loss:
            return loss.what
    return None


def has_committed(settings: Settings, layer: str) -> bool:
    """Whether the layer's checkpoint tells of a committed batch, in any of its generations."""
    return any(Path(settings.checkpoint(layer)).glob("**/commits/[0-9]*"))


def refuse_lost_ledger(spark: SparkSession | None, settings: Settings, layer: str) -> None:
    """Stops a job that has committed batches of which the ledger has none: it would balance, and know nothing of them.

    Raises:
        LossError: naming the checkpoint that tells of the batches; or the sums are gone of entries that were removed.
    """
    lake = Lake(settings)
    there = lake.exists(spark, LEDGER)
    cut = read_heads(lake.reader(spark)).get(LEDGER) if there else None
    if cut is not None and cut.removed and stored_sums(lake.reader(spark)).removed_before is None:
        raise LossError(
            f"{cut.summary}, and {POSITIONS}, which has their only sums, is gone", fix="Put it back from a backup"
        )
    if not has_committed(settings, layer):
        return
    batches = f"though {layer} has committed batches ({settings.checkpoint(layer)})"
    if not there:
        raise LossError(f"{LEDGER} is gone, {batches}", fix=mended(LEDGER))
    refuse_lost_files(spark, lake, LEDGER)
    if lacks_batches(spark, lake, layer):
        remedy = mended(LEDGER) if layer in RECOVERED else way_on(layer)
        raise LossError(f"{LEDGER} has no batch of {layer}, {batches}", fix=remedy)
    # Of these layers each batch has a row, so that the last must be there.
    first_batch = handover.known_first_batch(settings, layer) if layer in {SILVER, GOLD} else None
    if first_batch is not None:
        refuse_old_ledger(lake.reader(spark), settings, layer, first_batch)


def refuse_old_ledger(reader: TableReader, settings: Settings, layer: str, first_batch: int) -> None:
    """Stops a job whose last committed batch the ledger has not, though its row comes first: it was set back.

    Raises:
        LossError: saying where it ends.
    """
    checkpoint = settings.checkpoint(layer)
    app_id, committed = Generations(checkpoint, layer).survey()[0], last_committed(checkpoint)
    if app_id is None or committed is None:  # of a checkpoint that is damaged, others tell
        return
    recorded, done = last_batch(reader, layer, app_id), first_batch + committed
    if recorded is None or recorded < done:
        ends = "no batch" if recorded is None else f"batches up to {recorded}"
        lost = f"{LEDGER} has {ends} of {layer}, which has committed batch {done} ({checkpoint})"
        raise LossError(lost, fix=mended(LEDGER))


def lacks_batches(spark: SparkSession | None, lake: Lake, layer: str) -> bool:
    """Whether the ledger has no batch of a layer that has begun."""
    return last_batch(lake.reader(spark), layer) is None and has_begun(spark, lake, layer)


def has_begun(spark: SparkSession | None, lake: Lake, layer: str) -> bool:
    """Whether a layer has taken in anything, by its checkpoint, its tables or the ledger."""
    noted = has_committed(lake.settings, layer) or is_filled(spark, lake, layer)
    return noted or last_batch(lake.reader(spark), layer) is not None


def refuse_lost_tables(spark: SparkSession | None, lake: Lake, layer: str, tables: Iterable[str]) -> None:
    """Stops a layer that has taken in anything and lacks one of its tables: it would begin it anew, with a hole.

    Raises:
        LossError: naming the table.
    """
    for table in tables:
        if not lake.exists(spark, table) and has_begun(spark, lake, layer):
            raise LossError(f"{table} is gone, though {layer} has taken in messages", fix=mended(table, ELSEWHERE))


def refuse_lost_topics(spark: SparkSession | None, lake: Lake) -> None:
    """Returns if `ops.topics` is there, and has every topic that bronze has taken in messages of, if it has any.

    Raises:
        LossError: it is gone, or lacks one.
    """
    refuse_lost_tables(spark, lake, BRONZE, [TOPICS])
    known = {row.topic for row in read_topics(spark, lake)}
    refuse_unknown_topics(known, (span.topic for span in offset_spans(lake.reader(spark), BRONZE)))


def refuse_unknown_topics(known: Collection[str], taken: Iterable[str]) -> None:
    """Stops a bronze that has messages of topics of which it does not know what became: ids, shifts of offsets.

    Args:
        known: what `ops.topics` has.
        taken: what the ledger has messages of.

    Raises:
        LossError: naming some.
    """
    lost = sorted({*taken} - {*known})
    if lost:
        lacks = f"{TOPICS} has no row of {', '.join(lost[:_NAMED])}, though {BRONZE} has taken in messages"
        raise LossError(lacks, fix=mended(TOPICS, ELSEWHERE))


def refuse_lost_state(settings: Settings, layer: str) -> None:
    """Returns if every state store has the last committed batch, or nothing is committed yet.

    Raises:
        LossError: naming a folder that lacks it.
    """
    checkpoint = Path(settings.checkpoint(layer))
    batch = last_committed(checkpoint)
    if batch is None:
        return
    stores = (checkpoint / "state" / "0" / str(number) for number in range(_stores(checkpoint, batch, layer)))
    lacking = next((store for store in stores if not any(store.glob(f"{batch + 1}*"))), None)
    if lacking is not None:
        raise LossError(f"{layer}: {lacking} lacks the state of batch {batch}", fix=way_on(layer))


def refuse_lost_checkpoint(spark: SparkSession, settings: Settings, layer: str) -> None:
    """Returns if a stateful layer's checkpoint is whole, has all of its states, and is as new as the ledger.

    Raises:
        LossError: saying what is wrong.
    """
    handover.require_states(settings, layer)
    checkpoint, lake, first_batch = settings.checkpoint(layer), Lake(settings), handover.first_batch(settings, layer)
    require_whole(checkpoint, layer)
    refuse_fresh_checkpoint(spark, lake, settings, layer)
    refuse_lost_state(settings, layer)
    committed = last_committed(checkpoint)
    done = first_batch - 1 if committed is None else first_batch + committed
    app_id = Generations(checkpoint, layer).present.app_id
    recorded = None if app_id is None else last_batch(lake.reader(spark), layer, app_id)
    # A batch's ledger row comes before its checkpoint.
    if recorded is not None and recorded > done + 1:
        old = f"the checkpoint {checkpoint} ends with batch {done}, the tables hold batches up to {recorded}"
        raise LossError(old, fix=way_on(layer))
    if committed is None:
        return
    try:
        read_all_columns(stored_states(spark, checkpoint, committed))
    except Exception as error:
        raise LossError(
            f"the states in {checkpoint} cannot be read ({parse_failure(error)})", fix=way_on(layer)
        ) from error


def _stores(checkpoint: Path, batch: int, layer: str) -> int:
    """How many state stores a stream has: settled by its first batch, and noted by Spark with each.

    Raises:
        LossError: the note is not whole.
    """
    try:
        metadata, _ = planned(checkpoint, batch)
        return int(metadata["conf"]["spark.sql.shuffle.partitions"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        lost = f"{checkpoint} does not say how many state stores it has ({error!r})"
        raise LossError(lost, fix=way_on(layer)) from None


def refuse_lost_files(spark: SparkSession | None, lake: Lake, table: str) -> None:
    """Returns if every file that the table's present version names is there, as far as that can be seen.

    Raises:
        LossError: naming some that are gone.
    """
    lost = lake.storage.lost_files(spark, table)
    if lost:
        named = ", ".join(sorted(lost)[:_NAMED]) + (f", and {len(lost) - _NAMED} more" if len(lost) > _NAMED else "")
        raise LossError(
            f"{table} names files that are gone ({named})", fix=mended(table, "put them back from a backup")
        )


def require_logs(spark: SparkSession, lake: Lake, tables: Iterable[str]) -> None:
    """Returns if each of these tables is either not there, or has a log that can be read.

    Raises:
        LakeError: naming one that has not: whether to remove it is not for a program to decide.
    """
    for table in tables:
        if not lake.exists(spark, table):
            continue
        try:
            _ = lake.read(spark, table).schema
            lake.storage.lost_files(spark, table)
        except Exception as error:
            raise LakeError(
                f"the log of {table} cannot be read ({parse_failure(error)}): if that is so for good, remove the table "
                f"({lake.identifier(table)}) and run this again, which makes it anew"
            ) from error


def refuse_unreadable(spark: SparkSession, lake: Lake, tables: Iterable[str]) -> None:
    """Returns if every row of these tables can be read.

    Raises:
        LossError: naming one that is not there, or cannot be read.
    """
    for table in tables:
        if not lake.exists(spark, table):
            raise LossError(f"{table} is gone", fix=mended(table))
        refuse_lost_files(spark, lake, table)
        try:
            read_all_columns(lake.read(spark, table))
        except Exception as error:
            raise LossError(f"{table} cannot be read ({parse_failure(error)})", fix=mended(table)) from error


def refuse_lost_rows(spark: SparkSession | None, lake: Lake, tables: Iterable[str]) -> Counter[str]:
    """Returns if the lake's own tables are there, and those that only grow hold what the ledger says was written.

    Args:
        tables: that only grow.

    Returns:
        How many rows of each table are gone rightly: see `gone_rows`.

    Raises:
        LossError: naming one that is not, or does not.
    """
    reader, booked = lake.reader(spark), Counter[str]()
    for row in to_dicts(LedgerReader(reader, "outputs").current()):
        for output in row["outputs"]:
            booked[output["table"]] += output["rows"]
    for table in booked.keys() & TABLES.keys():
        if booked[table] and not lake.exists(spark, table):
            raise LossError(f"{table} is gone", fix=mended(table))
    gone = gone_rows(reader)
    for table in tables:
        silent = sum(part.num_rows for part in reader.batches(table, IS_SILENCE)) if table == MESSAGES else 0
        rows, removed = reader.count(table) - silent, gone.get(table, 0)
        # A batch between its tables and its ledger row is not booked yet: more is no loss, less is.
        if rows < booked[table] - removed:
            booking = f"{booked[table]}{less(removed)}"
            lost = f"{table} holds {rows} rows, the ledger says {booking}: rows were removed by hand"
            raise LossError(lost, fix=mended(table, "restore the table (Delta's time travel: RESTORE TABLE)"))
    return gone


def gone_rows(reader: TableReader) -> Counter[str]:
    """How many rows of each table retention has removed, or were a forgotten session's: noted before they are gone."""
    found = Counter({table: cut.gone for table, cut in read_heads(reader).items()})
    known = read_receipts(reader)
    if known:
        since = earliest_after_rebuild(reader, SILVER)
        for erasure in known:
            if erasure.begun_at >= since:  # what was rebuilt since never had them
                found.update(erasure.removed)
    return found


def less(removed: int) -> str:
    """What to add to a number of rows of which some were removed."""
    return f", less {removed} that maintain.retention or `sessionlake forget` removed" if removed else ""


def mended(table: str, otherwise: str = "put it back from a backup") -> str:
    """What to do about one of the lake's own tables of which something is lost."""
    layer = table.partition(".")[0]
    if table == LEDGER:
        return f"`sessionlake recover ledger` makes it anew from the tables; or {otherwise}"
    if layer in {SILVER, GOLD} and table != PROCESSOR_ERRORS:
        return f"`sessionlake recover {layer}` {RECOVERED[layer]}; or {otherwise}"
    return f"{otherwise[0].upper()}{otherwise[1:]}"
