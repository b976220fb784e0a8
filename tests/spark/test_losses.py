"""What is gone is noticed by doctor, and before a job writes on over it; what follows from the rest is recovered."""

from __future__ import annotations

import re
import shutil
import threading
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from itertools import islice
from operator import eq
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from sessionlake.cli import doctor
from sessionlake.cli.doctor import CheckSeverity
from sessionlake.cli.options import RecoverableLayer
from sessionlake.cli.recover import recover_layer
from sessionlake.delta.lake import Lake
from sessionlake.delta.schemas.names import (
    AVERAGES,
    CHANGES,
    DECISIONS,
    ERASURES,
    GOLD,
    LEDGER,
    MESSAGES,
    METRICS_1M,
    POSITIONS,
    PRODUCTS,
    PROGRESS,
    RESTATEMENTS,
    RETAINED,
    ROWS,
    SENSOR_AVERAGES,
    SESSIONS,
    SILVER,
    TOPICS,
)
from sessionlake.delta.storage.txn import Txn
from sessionlake.errors import DataLossError, LakeError
from sessionlake.gold import job as gold
from sessionlake.ledger import positions
from sessionlake.ledger.books import LedgerReader
from sessionlake.ledger.entries import RECOVERED, Ledger, LedgerEntry, TableOutput
from sessionlake.ledger.progress import read_last_offsets
from sessionlake.operations.pipeline import Layer, run_once
from sessionlake.operations.rebuild.replay import REPLAYED
from sessionlake.operations.rebuild.silver import rebuild_silver_tables
from sessionlake.operations.rebuild.verify import verify_silver_tables
from sessionlake.settings.model import Settings
from sessionlake.streaming import handover
from sessionlake.streaming.losses import refuse_lost_rows, refuse_unreadable_rows
from sessionlake.streaming.restored_tables import refuse_restored_tables
from sessionlake_lab.truth import KafkaMessage
from spark.test_silver_law import Pipeline, streams
from support.clocks import set_clock_back
from support.lakes import assert_silver_is_the_truth, comparable, find_table_folder, in_order, rows_of, write_rows

NOON = datetime(2026, 1, 2, 12, tzinfo=UTC)
CONTENT = tuple(table for table in REPLAYED if table != PROGRESS)  # a row for each batch
FIRST, SECOND = islice(streams(seeds=1), 2)
Damage = Callable[[Pipeline], None]


@pytest.fixture(scope="module")
def whole(spark: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home with some messages in silver."""
    home = tmp_path_factory.mktemp("whole") / "home"
    pipeline = Pipeline(spark, {"home": home})
    pipeline.arrive(FIRST)
    pipeline.stream()
    pipeline.merge()
    assert faults(pipeline.settings) == set()
    return home


@pytest.fixture
def run(spark: Any, location: dict[str, Any], whole: Path) -> Pipeline:
    """A copy of it, to be damaged."""
    shutil.copytree(whole, location["home"])
    return Pipeline(spark, location)


def faults(settings: Settings) -> set[str]:
    """What doctor finds wrong with the tables and checkpoints."""
    return {finding.check for finding in doctor._run_table_checks(settings) if finding.level is CheckSeverity.FAIL}


def recovered(run: Pipeline, lost: RecoverableLayer) -> str:
    """Recovers, and returns what was said."""
    said: list[str] = []
    recover_layer(run.spark, run.settings, lost, said.append)
    return "\n".join(said)


def assert_goes_on_exactly(run: Pipeline, coming: list[KafkaMessage] = SECOND) -> None:
    """More messages come, and all tables are what they would be by themselves."""
    assert faults(run.settings) == set()
    run.arrive(coming)
    run.stream()
    run.merge()
    assert_silver_is_the_truth(run.spark, run.settings, [*FIRST, *SECOND], ledger=False)


@pytest.mark.soak
def test_a_ledger_that_is_gone_is_not_begun_again_but_made_again_from_the_tables(spark: Any, run: Pipeline) -> None:
    before = read_last_offsets(run.lake.reader(spark), "silver")
    ledger = find_table_folder(run.lake, LEDGER)
    away = shutil.move(ledger, run.settings.home / "away")
    assert faults(run.settings) == {"ledger"}
    with pytest.raises(
        LakeError, match=r"ops\.ledger is gone, though silver has committed.*sessionlake recover ledger"
    ):
        run_once(spark, run.settings, Layer.SILVER, threading.Event())
    assert not ledger.exists()
    run.lake.create_or_update_tables(spark, [LEDGER])  # by another layer, say
    with pytest.raises(LakeError, match=r"ops\.ledger has no batch of silver, though"):
        run_once(spark, run.settings, Layer.SILVER, threading.Event())

    shutil.rmtree(ledger)
    shutil.move(away, ledger)
    next(ledger.glob("*.parquet")).unlink()
    assert faults(run.settings) == {"files", "ledger"}
    said = recovered(run, RecoverableLayer.LEDGER)
    assert "found: ops.ledger needs files that are gone" in said
    assert f"{len(FIRST)} messages in {MESSAGES} were missing in" in said
    assert "every row is equal to the former one" in said
    reader = run.lake.reader(spark)
    assert read_last_offsets(reader, "bronze") == read_last_offsets(reader, "silver") == before
    [bronze] = rows_of(spark, run.lake, LEDGER, ("layer", eq, "bronze"))
    assert (bronze["source"], bronze["messages"]) == (RECOVERED, len(FIRST))
    assert recovered(run, RecoverableLayer.LEDGER) == "found: a readable ledger that ends with the last batches"
    assert_goes_on_exactly(run)


@pytest.mark.soak  # a ledger that is gone is made anew by the same command
def test_a_ledger_that_was_set_back_is_noticed_and_made_again(spark: Any, run: Pipeline) -> None:
    version = run.lake.last_commit(spark, LEDGER).version
    for part in (SECOND[:9], SECOND[9:]):
        run.arrive(part)
        run.stream()
    run.merge()
    DeltaTable(find_table_folder(run.lake, LEDGER)).restore(version)
    assert "ledger" in faults(run.settings)
    expected_text = r"ops\.ledger has batches up to \d of silver, which has committed batch \d"
    with pytest.raises(LakeError, match=f"{expected_text}.*sessionlake recover ledger"):
        run_once(spark, run.settings, Layer.SILVER, threading.Event())
    assert re.search(f"found: {expected_text}", recovered(run, RecoverableLayer.LEDGER))
    assert_goes_on_exactly(run, [])


def checkpoint(run: Pipeline, *below: str) -> Path:
    return Path(run.settings.checkpoint_path("silver"), *below)


def torn(*below: str) -> Damage:
    def damage(run: Pipeline) -> None:
        file = checkpoint(run, *below)
        file.write_bytes(file.read_bytes()[:7])
        file.with_name(f".{file.name}.crc").unlink(missing_ok=True)

    return damage


def everything_but_bronze(run: Pipeline) -> None:
    """The checkpoint, the files of a table, and all of another."""
    shutil.rmtree(checkpoint(run))
    for file in find_table_folder(run.lake, CHANGES).glob("*.parquet"):
        file.unlink()
    shutil.rmtree(find_table_folder(run.lake, ROWS))


@pytest.mark.soak
def test_silver_without_checkpoint_and_tables_is_made_once_more_from_bronze(run: Pipeline) -> None:
    everything_but_bronze(run)
    assert {"files", "tables", "layers"} <= faults(run.settings)
    said = recovered(run, RecoverableLayer.SILVER)
    assert re.search(
        r"found: the checkpoint \S+ of silver is new or was removed, but the layer's tables already hold data", said
    )
    assert re.search(r"found: silver.session_changes needs files that do not exist any more: part-", said)
    assert "nothing was compared" in said
    assert "no loss; nothing was changed" in recovered(run, RecoverableLayer.SILVER)
    assert_goes_on_exactly(run)


def a_state(run: Pipeline) -> None:
    """Of one shard."""
    shutil.rmtree(max((checkpoint(run, "state", "0")).glob("[0-9]*")))


def a_torn_state(run: Pipeline) -> None:
    file = max(checkpoint(run, "state", "0", "0").glob("1*"))
    torn(*file.relative_to(checkpoint(run)).parts)(run)


def a_merged_table(run: Pipeline) -> None:
    shutil.rmtree(find_table_folder(run.lake, ROWS))


def the_note_of_a_half_committed_batch(run: Pipeline) -> None:
    checkpoint(run).with_name("silver.json").write_text("{")


def its_last_batches(run: Pipeline) -> int:
    """The checkpoint is put back from a backup that is older than the tables; how many messages came since."""
    old = shutil.copytree(checkpoint(run), checkpoint(run).with_name("old"))
    for message in SECOND[:2]:
        run.arrive([message])
        run.stream()
    shutil.rmtree(checkpoint(run))
    old.rename(checkpoint(run))
    return 2


@pytest.mark.soak
@pytest.mark.parametrize(
    ("damage", "found"),
    [
        (torn("metadata"), "metadata cannot be read"),
        (torn("offsets", "0"), "offsets/0 is not whole JSON"),
        (a_state, "has no state of batch 0"),
        (a_torn_state, "the states in the checkpoint .* cannot be read"),
        (a_merged_table, r"silver.session_rows is gone"),
        (the_note_of_a_half_committed_batch, "silver.json cannot be read"),
        (its_last_batches, "ends with batch 0, the tables hold batches up to 2"),
    ],
)
def test_each_loss_of_silver_is_found_and_made_good(
    run: Pipeline, damage: Callable[[Pipeline], int | None], found: str
) -> None:
    came = damage(run) or 0
    assert re.search(f"found: .*{found}", recovered(run, RecoverableLayer.SILVER))
    assert "no loss; nothing was changed" in recovered(run, RecoverableLayer.SILVER)
    assert_goes_on_exactly(run, SECOND[came:])
    assert verify_silver_tables(run.spark, run.settings).is_exact


@pytest.mark.soak
def test_a_table_whose_log_cannot_be_read_is_not_removed_but_named(run: Pipeline) -> None:
    log = max((find_table_folder(run.lake, CHANGES) / "_delta_log").glob("*.json"))
    log.write_text("{torn")
    with pytest.raises(LakeError, match=r"the log of silver\.session_changes cannot be read.* remove the table"):
        recovered(run, RecoverableLayer.SILVER)
    shutil.rmtree(find_table_folder(run.lake, CHANGES))
    assert "found: silver.session_changes is gone" in recovered(run, RecoverableLayer.SILVER)
    assert_goes_on_exactly(run)


def test_states_that_are_gone_are_noticed(run: Pipeline) -> None:
    for gone in (a_state, lambda run: shutil.rmtree(checkpoint(run, "state"))):
        gone(run)
        [finding] = [found for found in doctor._run_table_checks(run.settings) if found.level is CheckSeverity.FAIL]
        assert (finding.check, "`sessionlake recover silver`" in finding.detail) == ("states", True)


def test_over_a_home_doctor_needs_no_spark(run: Pipeline, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sessionlake.spark.session.get_or_start_spark_session", power_cut)
    assert faults(run.settings) == set()
    next(find_table_folder(run.lake, MESSAGES).glob("*.parquet")).unlink()
    assert faults(run.settings) == {"files"}


@pytest.mark.soak
def test_gold_without_its_checkpoint_and_files_is_computed_again(
    spark: Any, run: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    gold.start(spark, run.settings, once=True).wait()
    before = [in_order(comparable(spark, run.lake, table)) for table in (AVERAGES, *PRODUCTS)]
    assert all(before)
    assert "no loss" in recovered(run, RecoverableLayer.GOLD)
    shutil.rmtree(Path(run.settings.checkpoint_path("gold"), "state"))
    next(find_table_folder(run.lake, METRICS_1M).glob("*.parquet")).unlink()
    assert faults(run.settings) == {"states", "files"}
    with monkeypatch.context() as dying:
        dying.setattr("sessionlake.operations.rebuild.endings.delete_all_rows", power_cut)
        with pytest.raises(PowerCutError):
            recovered(run, RecoverableLayer.GOLD)
    with pytest.raises(
        LakeError, match=r"is new or was removed, but the layer's tables already.*sessionlake recover gold"
    ):
        gold.start(spark, run.settings, once=True)
    set_clock_back(monkeypatch, hours=1)  # so it is emptied before what it has was committed
    assert "gold is emptied" in recovered(run, RecoverableLayer.GOLD)
    set_clock_back(monkeypatch, hours=2)  # and filled before it is emptied
    for _ in range(2):
        gold.start(spark, run.settings, once=True).wait()
    assert [in_order(comparable(spark, run.lake, table)) for table in (AVERAGES, *PRODUCTS)] == before
    assert faults(run.settings) == set()


@pytest.mark.soak
def test_a_state_that_was_handed_over_and_is_gone_is_noticed_and_made_again(spark: Any, run: Pipeline) -> None:
    rebuild_silver_tables(spark, run.settings)
    handed = handover.find_active_handover_folder(run.settings)
    state = min(handed.glob("*.state"))
    state.unlink()
    assert faults(run.settings) == {"states"}
    with pytest.raises(LakeError, match=rf"{re.escape(str(state))} is gone\. Run `sessionlake recover silver`"):
        run_once(spark, run.settings, Layer.SILVER, threading.Event())
    assert f"found: silver: {state} is gone" in recovered(run, RecoverableLayer.SILVER)
    (handed / "handover.json").write_text("{torn")
    assert "handover.json is damaged" in recovered(run, RecoverableLayer.SILVER)
    assert_goes_on_exactly(run)


@pytest.mark.soak
def test_a_recovery_of_the_ledger_that_died_as_silver_was_published_is_finished_by_the_next(
    run: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    next(find_table_folder(run.lake, LEDGER).glob("*.parquet")).unlink()
    with monkeypatch.context() as dying:
        dying.setattr(handover, "activate_handover", power_cut)
        with pytest.raises(PowerCutError):
            recovered(run, RecoverableLayer.LEDGER)
    assert "the interrupted rebuild from bronze.messages" in recovered(run, RecoverableLayer.LEDGER)
    assert recovered(run, RecoverableLayer.LEDGER) == "found: a readable ledger that ends with the last batches"
    assert_goes_on_exactly(run)


def set_back(run: Pipeline, table: str) -> None:
    """By RESTORE to the version before its latest rows came."""
    delta = DeltaTable(find_table_folder(run.lake, table))
    commits = run.lake.storage.latest_commits(None, table, delta.version() + 1)
    delta.restore(max(commit.version for commit in commits if commit.changes) - 1)


def older(run: Pipeline, home: Path, table: str) -> None:
    """By a copy of a home of before."""
    shutil.rmtree(find_table_folder(run.lake, table))
    shutil.copytree(
        find_table_folder(Lake(run.settings.model_copy(update={"home": home})), table),
        find_table_folder(run.lake, table),
    )


def noticed(run: Pipeline) -> str:
    """What doctor says of versions."""
    [found] = [found for found in doctor._run_table_checks(run.settings) if found.check == "versions"]
    return found.detail if found.level is CheckSeverity.FAIL else ""


@pytest.mark.parametrize("layer", [SILVER, GOLD])
@pytest.mark.parametrize("summed", [False, True])
def test_of_a_table_that_was_made_again_versions_count_from_there(
    spark: Any, settings: Settings, monkeypatch: pytest.MonkeyPatch, layer: str, summed: bool
) -> None:
    lake, table = Lake(settings), {SILVER: SESSIONS, GOLD: AVERAGES}[layer]
    lake.create_or_update_tables(spark, [table, LEDGER])
    for number, output in enumerate([TableOutput(table, 57, 1), TableOutput(CHANGES, 1, 1)]):
        Ledger(lake).write_entry(
            spark, LedgerEntry(layer, Txn("q", number), "any", datetime.now(UTC), outputs=(output,))
        )
    if summed:
        monkeypatch.setattr(positions, "_WORTHWHILE", 1)
        monkeypatch.setattr(positions, "_LAG", timedelta(0))
        assert positions.update_ledger_sums(spark, lake)
    assert LedgerReader(lake.reader(spark)).uses_sums_of_old_entries == summed
    with pytest.raises(DataLossError, match=r"it ends with version \d, and ops.ledger has a batch that left it at 57"):
        refuse_restored_tables(spark, lake, [table])
    lake.drop_table(spark, table)
    lake.create_or_update_tables(spark, [table])
    Ledger(lake).write_entry(spark, LedgerEntry(layer, Txn("q", 2), "any", datetime.now(UTC)))  # the layer has gone on
    refuse_restored_tables(spark, lake, [table])


@pytest.mark.soak
def test_a_table_that_was_set_back_is_noticed_whatever_upkeep_has_come_since(spark: Any, settings: Settings) -> None:
    lake = Lake(settings)
    lake.create_or_update_tables(spark, [SESSIONS, LEDGER])
    for name in "ab":
        write_rows(spark, lake, SESSIONS, [{"topic": "t", "session_id": name}])
    last = lake.last_commit(spark, SESSIONS).version
    spark.sql(f"RESTORE TABLE {lake.to_sql_identifier(SESSIONS)} TO VERSION AS OF {last - 1}").collect()
    for number in range(25):
        lake.set_property(spark, SESSIONS, "upkeep", str(number))
    with pytest.raises(
        DataLossError, match=rf"{SESSIONS} has lost its latest changes: version {last + 1} restored an older one"
    ):
        refuse_restored_tables(spark, lake, [SESSIONS])


def test_a_table_that_a_process_died_in_creating_is_not_there_yet_and_is_created(
    spark: Any, settings: Settings
) -> None:
    lake = Lake(settings)
    lake.create_or_update_tables(spark, [SESSIONS, LEDGER])
    for table in (POSITIONS, RETAINED, ERASURES):
        (find_table_folder(lake, table) / "_delta_log").mkdir(parents=True)
        assert not lake.exists(spark, table)
        assert not lake.reader(spark).exists(table)
    refuse_restored_tables(spark, lake, [SESSIONS])
    assert refuse_lost_rows(spark, lake, [SESSIONS]) == {}
    lake.create_or_update_tables(spark, [POSITIONS])
    assert [*lake.reader(spark).read_rows(POSITIONS)] == []


def test_a_table_of_which_rows_are_marked_as_gone_can_be_read(spark: Any, settings: Settings) -> None:
    lake = Lake(settings)
    lake.create_or_update_tables(spark, [SESSIONS])
    write_rows(spark, lake, SESSIONS, [{"topic": "t", "session_id": name} for name in "abcdefgh"])
    lake.set_property(spark, SESSIONS, "delta.enableDeletionVectors", "true")
    lake.storage.open_delta_table(spark, SESSIONS).delete("session_id = 'a'")
    assert any(find_table_folder(lake, SESSIONS).glob("deletion_vector*.bin"))
    refuse_unreadable_rows(spark, lake, [SESSIONS])


def test_a_table_that_was_set_back_is_noticed_before_anything_is_written(spark: Any, run: Pipeline) -> None:
    before = {table: run.lake.last_commit(spark, table).version for table in (MESSAGES, CHANGES, ROWS, SESSIONS)}
    for table, layer, way in (
        (MESSAGES, Layer.BRONZE, "RESTORE TABLE"),
        (CHANGES, Layer.GOLD, "sessionlake recover silver"),
        (ROWS, Layer.SILVER, "sessionlake recover silver"),
        (SESSIONS, Layer.SILVER, "sessionlake recover silver"),
    ):
        set_back(run, table)
        version = run.lake.last_commit(spark, table).version
        expected_text = (
            rf"{table} has lost its latest changes: version {version} restored .*, without version \d+\..*{way}"
        )
        assert re.search(expected_text, noticed(run))
        with pytest.raises(LakeError, match=expected_text):
            run_once(spark, run.settings, layer, threading.Event())
        assert run.lake.last_commit(spark, table).version == version
        DeltaTable(find_table_folder(run.lake, table)).restore(before[table])
        assert noticed(run) == ""


@pytest.fixture(scope="module")
def lived(spark: Any, whole: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The home, later: all layers have batches behind those of before, and somebody has decided."""
    home = tmp_path_factory.mktemp("lived") / "home"
    shutil.copytree(whole, home)
    run = Pipeline(spark, {"home": home})
    gold.start(spark, run.settings, once=True).wait()
    shutil.copytree(home, home.with_name("before"))
    run.arrive(SECOND)
    run.stream()
    run.merge()
    gold.start(spark, run.settings, once=True).wait()
    run.lake.create_or_update_tables(spark, [DECISIONS, TOPICS])
    decided = {"partition": 0, "session_id": "nobody", "offset": 0, "decision": "accept-gap"}
    decided |= {"who": "me", "decided_at": NOON}
    known = {"generation": 0, "state": "active", "topic_id": "a", "first_seen": NOON, "last_seen": NOON}
    for table, row in ((DECISIONS, decided), (TOPICS, known | {"offset_shift": 0, "partitions": []})):
        write_rows(spark, run.lake, table, [{"topic": "capture.a"} | row])
    return home


GOLD_OWN = (AVERAGES, *PRODUCTS, SENSOR_AVERAGES, RESTATEMENTS)
ELSEWHERE = {MESSAGES: Layer.BRONZE, TOPICS: Layer.BRONZE, DECISIONS: Layer.SILVER}


def figures(run: Pipeline) -> dict[str, list[str]]:
    """What silver's and gold's tables hold, whatever the batches: these decide how often an average was restated."""
    tables = {name: comparable(run.spark, run.lake, name) for name in (*CONTENT, *PRODUCTS, AVERAGES, SENSOR_AVERAGES)}
    restated = {"revision", "pane"}
    return {name: in_order(rows.drop_columns([*restated & {*rows.column_names}])) for name, rows in tables.items()}


@pytest.mark.soak
@pytest.mark.parametrize("copied", [False, True])
@pytest.mark.parametrize("table", [*ELSEWHERE, *REPLAYED, *GOLD_OWN])
def test_each_table_that_was_set_back_is_noticed_and_brought_forward_or_reported(
    spark: Any, location: dict[str, Any], lived: Path, table: str, copied: bool
) -> None:
    if copied and table in ELSEWHERE:
        pytest.skip("nothing names a version of it here: what fills it has no batch in this home")
    shutil.copytree(lived, location["home"])
    run = Pipeline(spark, location)
    newest = run.lake.last_commit(spark, table).version
    before = figures(run)
    if copied:
        older(run, lived.with_name("before"), table)
        if run.lake.last_commit(spark, table).version == newest:
            pytest.skip("no batch of late has written it")
    else:
        set_back(run, table)
    assert f"{table} has lost its latest changes" in noticed(run)
    own = table.partition(".")[0]
    with pytest.raises(LakeError, match=rf"{table} has lost its latest changes"):
        run_once(spark, run.settings, ELSEWHERE.get(table) or Layer(own), threading.Event())
    if table in ELSEWHERE:
        DeltaTable(find_table_folder(run.lake, table)).restore(newest)
    else:
        assert f"found: {table} has lost its latest changes" in recovered(run, RecoverableLayer(own))
        gold.start(spark, run.settings, once=True).wait()
    assert faults(run.settings) - {"topics"} == set()
    assert figures(run) == before


class PowerCutError(Exception):
    pass


def power_cut(*_: object) -> None:
    raise PowerCutError


@pytest.mark.parametrize("table", [MESSAGES, CHANGES])
def test_a_file_that_is_gone_is_named(run: Pipeline, table: str) -> None:
    gone = next(find_table_folder(run.lake, table).glob("*.parquet"))
    gone.unlink()
    [finding] = [found for found in doctor._run_table_checks(run.settings) if found.check == "files"]
    assert finding.level is CheckSeverity.FAIL
    assert gone.name in finding.detail
    assert ("sessionlake recover silver" in finding.detail) == (table == CHANGES)
