"""Deciding about a place: only where something stopped, while nobody has passed it, and nobody can meanwhile."""

from __future__ import annotations

import contextlib
import shutil
from datetime import datetime
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from sessionlake.cli.resolve import record_or_withdraw_decision
from sessionlake.delta.lake import Lake
from sessionlake.delta.schemas.names import DECISIONS, LEDGER
from sessionlake.errors import ClaimedByOtherProcessError, UsageError
from sessionlake.integrity.rules import DecisionKey, OperatorDecision
from sessionlake.ledger.entries import OffsetRange
from sessionlake.local.home import hold_lock_without_waiting
from sessionlake.settings.model import ProcessorSettings, Settings
from sessionlake.silver.decisions import (
    read_message_that_stopped_layer,
    read_operator_decisions,
    read_operator_decisions_in_force,
)
from sessionlake.streaming.manifest import forget_message_that_stopped_layer, record_batch_commit
from support.lakes import find_table_folder
from support.stops import entry, make_home, stop


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    """Silver has taken in the offsets 0 to 3 of session s, processor p 0 to 5."""
    busy = ProcessorSettings.model_validate({"name": "p", "class": "a:B"})
    found = Settings(home=tmp_path, processors=(busy,))
    make_home(found)
    return found


def decide(settings: Settings, offset: int | None = None, decision: OperatorDecision = OperatorDecision.SKIP) -> None:
    record_or_withdraw_decision(None, settings, "s", decision, offset=offset, topic=None, why=None)


def withdraw(settings: Settings, offset: int | None = None) -> None:
    record_or_withdraw_decision(None, settings, "s", None, offset=offset, topic=None, why="a mistake")


def known(settings: Settings) -> dict[DecisionKey, OperatorDecision]:
    return read_operator_decisions(Lake(settings).reader())


def test_the_place_at_which_silver_stopped_can_be_decided(settings):
    stop(settings, 6)
    decide(settings)
    assert known(settings) == {("t", 0, "s", 6): OperatorDecision.SKIP}


def test_so_can_the_one_at_which_a_processor_that_is_ahead_of_silver_stopped(settings):
    stop(settings, 7, "processor-p")
    decide(settings, 7, OperatorDecision.ACCEPT_GAP)
    assert known(settings) == {("t", 0, "s", 7): OperatorDecision.ACCEPT_GAP}


@pytest.mark.parametrize("decision", list(OperatorDecision))
def test_a_place_at_which_nothing_broke_is_not_decided(settings, decision):
    with pytest.raises(
        UsageError, match=r"no layer has stopped at session 's', offset 6.*silver is not known to have stop"
    ):
        decide(settings, 6, decision)
    stop(settings, 5)
    with pytest.raises(UsageError, match=r"offset 6.*: silver stopped at session 's', topic t, partition 0, offset 5"):
        decide(settings, 6, decision)
    forget_message_that_stopped_layer(settings)
    stop(settings, 7, "processor-p")
    with pytest.raises(UsageError, match=r"not known to have stopped; processor-p stopped at session 's'.*offset 7"):
        decide(settings, 6, decision)
    assert not known(settings)


def test_where_one_layer_has_gone_on_the_other_is_still_stopped(settings):
    stop(settings, 6)
    stop(settings, 6, "processor-p")
    forget_message_that_stopped_layer(settings)
    assert read_message_that_stopped_layer(settings) is None
    assert read_message_that_stopped_layer(settings, "processor-p") is not None


def test_what_silver_has_passed_is_not_decided_for_a_processor(settings):
    stop(settings, 3, "processor-p")
    with pytest.raises(UsageError, match="silver has processed offset 3"):
        decide(settings, 3)


def test_what_was_taken_in_before_it_broke_can_be_decided_but_not_skipped(settings):
    stop(settings, 2)
    with pytest.raises(
        UsageError, match="offset 2 was processed as a valid message, and judged a violation only later"
    ):
        decide(settings, 2)
    decide(settings, 2, OperatorDecision.ISOLATE)
    assert known(settings) == {("t", 0, "s", 2): OperatorDecision.ISOLATE}


def test_nothing_is_decided_about_a_batch_that_was_interrupted_between_two_tables(settings):
    with contextlib.suppress(KeyError), record_batch_commit(settings, "silver", 1, "a", [OffsetRange("t", 0, 4, 6, 3)]):
        raise KeyError
    stop(settings, 6)
    with pytest.raises(UsageError, match=r"committed offset 6\..* Run `sessionlake run silver --once`"):
        decide(settings, 6)
    stop(settings, 7)
    decide(settings, 7)


def test_nothing_is_decided_or_withdrawn_while_silver_runs(settings):
    stop(settings, 6)
    for act in (decide, withdraw):
        with (
            hold_lock_without_waiting(settings, "silver", "runs silver"),
            pytest.raises(ClaimedByOtherProcessError, match="another process runs silver"),
        ):
            act(settings, 6)


def test_a_decision_is_withdrawn_and_made_again_as_often_as_one_likes(settings):
    stop(settings, 6)
    for decision in (OperatorDecision.SKIP, OperatorDecision.ISOLATE, OperatorDecision.SKIP):
        decide(settings, 6, decision)
        assert known(settings) == {("t", 0, "s", 6): decision}
        with pytest.raises(UsageError, match=rf"already recorded: {decision}\. To replace it, first take it back"):
            decide(settings, 6, OperatorDecision.ACCEPT_GAP)
        withdraw(settings)
        assert known(settings) == {}
    words = ["skip-message", "withdrawn", "isolate", "withdrawn", "skip-message", "withdrawn"]
    rows = Lake(settings).reader().read_arrow_table(DECISIONS).sort_by("decided_at")
    assert rows["decision"].to_pylist() == words
    assert rows["why"].to_pylist()[1] == "a mistake"


def test_what_counts_is_the_last_word_though_the_clock_was_set_back(settings, monkeypatch):
    stop(settings, 6)
    decide(settings, 6)
    with monkeypatch.context() as patch:
        patch.setattr("sessionlake.silver.decisions.datetime", SlowClock)
        withdraw(settings)
    assert known(settings) == {}


def test_a_place_is_decided_again_though_the_table_was_set_back(settings):
    stop(settings, 6)
    decide(settings)
    DeltaTable(find_table_folder(Lake(settings), DECISIONS)).restore(0)
    assert known(settings) == {}
    decide(settings, decision=OperatorDecision.ISOLATE)
    assert known(settings) == {("t", 0, "s", 6): OperatorDecision.ISOLATE}


class SlowClock(datetime):
    @classmethod
    def now(cls, tz=None) -> datetime:
        return datetime(2020, 1, 1, tzinfo=tz)


def test_only_a_decision_that_is_there_can_be_withdrawn(settings):
    with pytest.raises(UsageError, match="session 's', offset 6: there is no decision to withdraw"):
        withdraw(settings, 6)


def test_of_several_the_one_to_withdraw_is_named(settings):
    for offset in (6, 7):
        stop(settings, offset)
        decide(settings)
    with pytest.raises(
        UsageError,
        match=r"several decisions: .*, partition 0, offset 6; session 's', topic t, partition 0, offset 7\. Choose one",
    ):
        withdraw(settings)
    withdraw(settings, 6)
    assert set(known(settings)) == {("t", 0, "s", 7)}


def test_a_decision_that_silver_has_followed_cannot_be_withdrawn(settings):
    stop(settings, 6)
    decide(settings, 6)
    row = pa.Table.from_pylist([entry("silver", 5, [6], batch=1)])  # of what was held back: its offset came earlier
    write_deltalake(find_table_folder(Lake(settings), LEDGER), row, mode="append")
    with pytest.raises(UsageError, match="offset 6: silver has acted on the decision, so it cannot be withdrawn"):
        withdraw(settings, 6)


def test_a_decision_that_silver_has_followed_counts_though_the_table_has_lost_it(settings):
    stop(settings, 6)
    reader, table = Lake(settings).reader(), find_table_folder(Lake(settings), DECISIONS)
    shutil.copytree(table, table.with_name("before"))
    decide(settings, 6, OperatorDecision.SKIP)
    other = entry("silver", 5, [6], batch=1)
    other["decisions"][0]["decision"] = "skip-message"
    write_deltalake(find_table_folder(Lake(settings), LEDGER), pa.Table.from_pylist([other]), mode="append")
    shutil.rmtree(table)
    table.with_name("before").rename(table)
    assert known(settings) == {}
    stop(settings, 8)
    decide(settings, 8, OperatorDecision.ISOLATE)
    followed = {("t", 0, "s", 0): OperatorDecision.ISOLATE, ("t", 0, "s", 6): OperatorDecision.SKIP}
    assert read_operator_decisions_in_force(reader) == followed | {("t", 0, "s", 8): OperatorDecision.ISOLATE}


@pytest.mark.parametrize("layer", ["silver", "processor-p"])
def test_neither_can_one_whose_place_a_layer_has_passed(settings, layer):
    stop(settings, 6)
    decide(settings, 6)
    forget_message_that_stopped_layer(settings)
    write_deltalake(
        find_table_folder(Lake(settings), LEDGER), pa.Table.from_pylist([entry(layer, 8, batch=1)]), mode="append"
    )
    with pytest.raises(UsageError, match=f"{layer} has processed it"):
        withdraw(settings)


def test_one_about_what_was_taken_in_before_it_broke_can(settings):
    stop(settings, 2)
    stop(settings, 2, "processor-p")
    decide(settings, 2, OperatorDecision.ISOLATE)
    withdraw(settings)
    assert known(settings) == {}


def test_nothing_is_withdrawn_while_a_batch_is_half_committed(settings):
    stop(settings, 6)
    decide(settings, 6)
    with contextlib.suppress(KeyError), record_batch_commit(settings, "silver", 1, "a", [OffsetRange("t", 0, 4, 5, 2)]):
        raise KeyError
    with pytest.raises(
        UsageError, match=r"interrupted while it committed a batch\..* Run `sessionlake run silver --once`"
    ):
        withdraw(settings)
