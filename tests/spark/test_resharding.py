"""Another number of shards: silver, gold and processors go on from the states that they have."""

from __future__ import annotations

import random
from contextlib import suppress
from itertools import count
from operator import eq
from pathlib import Path
from shutil import rmtree
from typing import Any

import pytest

from sessionlake.cli.reshard import reshard_all_layers
from sessionlake.delta.lake import Lake
from sessionlake.delta.schemas.names import DISTINCT_VALUES, GOLD, LEDGER, MESSAGES, RESTATEMENTS, SILVER
from sessionlake.errors import ClaimedByOtherProcessError, LakeError, UsageError
from sessionlake.gold import job as gold
from sessionlake.gold.declared.tables import list_declared_averages, list_declared_gold_tables
from sessionlake.gold.fold.state import GoldShardState, decode_states
from sessionlake.gold.verify.tables import verify_gold
from sessionlake.operations.pipeline import Layer, claim_layers
from sessionlake.operations.rebuild.processors import preview_processor_rebuild
from sessionlake.operations.rebuild.verify import verify_silver_tables
from sessionlake.operations.recover import gold as recover
from sessionlake.operations.resharding.layers import count_shards_of_states, list_sharded_layers
from sessionlake.operations.resharding.reshard import reshard_layers
from sessionlake.processors import job as processors
from sessionlake.settings.model import (
    CaptureSettings,
    GoldSettings,
    ProcessorSettings,
    Settings,
    SilverSettings,
    TopicOverrideSettings,
)
from sessionlake.settings.section import Integrity, OnViolation
from sessionlake.silver import job
from sessionlake.silver.merge.merger import TableMerger
from sessionlake.silver.states import compute_shard_of_session, read_state_frame
from sessionlake.streaming import handover
from sessionlake.streaming.operation import RESHARD
from sessionlake_lab.truth import KafkaMessage
from spark.test_gold import SECOND, Feed, change
from support.checkpoints import lose_last_commit
from support.lakes import assert_silver_is_the_truth, rows_of, write_bronze
from support.streams import COLUMNS, LIGHT, MAX_BYTES, StreamMaker, cut

RULES = tuple(
    TopicOverrideSettings(
        pattern=rf"capture\.{integrity}", integrity=integrity, on_violation=OnViolation.RECORD, lateness="2 s"
    )
    for integrity in Integrity
)
BY_TOPIC = [{"name": "by_topic", "keys": ["topic", "metric"], "points": 3}]
LAYERS = [SILVER, "processor-top", GOLD]


def of_shards(settings: Settings, silver: int, gold: int) -> Settings:
    """The same, configured with other numbers."""
    own = settings.gold.model_copy(update={"shards": gold})
    return settings.model_copy(update={"silver": SilverSettings(shards=silver), "gold": own})


@pytest.fixture
def settings(location: dict[str, Any]) -> Settings:
    # Gold soon forgets sessions, of which its states have hashes left.
    capture = CaptureSettings(
        columns=COLUMNS, max_message_bytes=MAX_BYTES, by_topic=RULES, gap_timeout="5 s", session_timeout="5 s"
    )
    made = Settings(
        **location,
        capture=capture,
        gold=GoldSettings.model_validate({"averages": BY_TOPIC}),
        processors=(ProcessorSettings(name="top", target="sessionlake.examples.top_of_book:TopOfBook"),),
    )
    return of_shards(made, 4, 4)


def batches(number: int) -> list[list[KafkaMessage]]:
    rnd = random.Random(9)
    cuts = [list(cut(rnd, StreamMaker(rnd, LIGHT, [f"capture.{i}"]).make(70), number)) for i in Integrity]
    return [[message for part in parts for message in part] for parts in zip(*cuts, strict=True)]


def arrive(spark: Any, settings: Settings, *messages: list[KafkaMessage]) -> None:
    lake = Lake(settings)
    lake.create_or_update_tables(spark, [MESSAGES])
    for batch in messages:
        write_bronze(spark, lake, batch)


def run(spark: Any, settings: Settings, *layers: str) -> None:
    """These layers, or all, to the end of what is there."""
    if SILVER in (layers or LAYERS):
        job.start(spark, settings, once=True).wait()
        TableMerger(spark, settings).merge_all_pending_batches()
    if GOLD in (layers or LAYERS):
        gold.start(spark, settings, once=True).wait()
    if "processor-top" in (layers or LAYERS):
        processors.start(spark, settings, "top", once=True).wait()


def numbers(spark: Any, settings: Settings) -> list[int | None]:
    """How many shards the states of each layer are of, and as many there are."""
    for layer in list_sharded_layers(settings):
        shards = count_shards_of_states(spark, settings, layer)
        if shards is None:
            continue
        found = [row["shard"] for row in read_state_frame(spark, settings, layer).select("shard").collect()]
        assert sorted(found) == list(range(shards))
    return [count_shards_of_states(spark, settings, layer) for layer in list_sharded_layers(settings)]


def stored(spark: Any, settings: Settings) -> list[tuple[Any, ...]]:
    """Silver's states, by shard."""
    return sorted(map(tuple, read_state_frame(spark, settings).collect()))


def assert_gold_is_exact(spark: Any, settings: Settings) -> None:
    """What its states are for, and a product of the changes that it has read."""
    distinct = [one for one in list_declared_gold_tables(settings) if one.table_name == DISTINCT_VALUES]
    found = verify_gold(spark, settings, [*list_declared_averages(settings), *distinct])
    assert [one.first_difference for one in found] == [None] * 5
    assert all(one.expected_rows for one in found if one.table != RESTATEMENTS)


def assert_as_if_nothing_had_been(spark: Any, settings: Settings, messages: list[list[KafkaMessage]]) -> None:
    """Every table is right, every state, no message was taken in twice, and each layer is one query."""
    assert_silver_is_the_truth(spark, settings, [message for batch in messages for message in batch])
    found = verify_silver_tables(spark, settings)
    assert (found.is_exact, found.states is not None and found.states.skipped) == (True, None)
    assert_gold_is_exact(spark, settings)
    for layer in LAYERS:
        entries = rows_of(spark, Lake(settings), LEDGER, ("layer", eq, layer))
        assert len({entry["app_id"] for entry in entries}) == 1
        assert sorted(entry["batch_id"] for entry in entries) == list(range(len(entries)))


def test_a_session_is_looked_for_in_the_shard_that_has_it_until_the_states_are_moved(
    spark: Any, settings: Settings
) -> None:
    handover.prepare_handover(settings, handover.Handover(0, 0, 4, "r"), [])
    handover.activate_handover(spark, settings, "r")
    other = of_shards(settings, 3, 4)
    there, found = ([compute_shard_of_session(spark, one, "t", f"s{n}") for n in range(6)] for one in (settings, other))
    assert max(there) == 3
    assert found == there


def test_silver_goes_on_from_other_shards_once_its_states_are_moved(spark: Any, settings: Settings) -> None:
    first, second = parts = batches(2)
    arrive(spark, settings, first)
    run(spark, settings, SILVER)
    other = of_shards(settings, 7, 4)
    with pytest.raises(LakeError, match=r"Set silver.shards back to [0-9]+, or move .* with `sessionlake reshard 7`"):
        run(spark, other, SILVER)
    assert reshard_layers(spark, other, 7) == [SILVER]
    arrive(spark, other, second)
    run(spark, other, SILVER)
    assert count_shards_of_states(spark, other, SILVER) == 7
    assert_silver_is_the_truth(spark, other, [message for batch in parts for message in batch])


@pytest.mark.soak
def test_states_are_those_after_the_batch_before_the_one_that_was_planned_though_no_note_of_a_commit_is_left(
    spark: Any, settings: Settings
) -> None:
    first, second = parts = batches(2)
    states = []
    for part in parts:
        arrive(spark, settings, part)
        run(spark, settings, SILVER)
        states.append(stored(spark, settings))
    rmtree(Path(settings.checkpoint_path(SILVER)) / "commits")
    assert stored(spark, settings) == states[0] != states[1]
    run(spark, settings, SILVER)
    assert stored(spark, settings) == states[1]
    assert_silver_is_the_truth(spark, settings, [*first, *second])


@pytest.mark.soak
def test_states_that_no_batch_has_come_to_since_they_were_moved_are_moved_once_more(
    spark: Any, settings: Settings
) -> None:
    first, second = parts = batches(2)
    arrive(spark, settings, first[::2], first[1::2])
    run(spark, settings, SILVER)
    for shards in (1, 2):
        other = of_shards(settings, shards, 4)
        assert reshard_layers(spark, other, shards) == [SILVER]
        Lake(settings).open_delta_table(spark, MESSAGES).optimize().executeCompaction()  # a version without messages
        run(spark, other, SILVER)
    arrive(spark, other, second)
    run(spark, other, SILVER)
    assert_silver_is_the_truth(spark, other, [message for batch in parts for message in batch])


@pytest.mark.soak
def test_all_layers_go_on_from_other_shards_as_if_they_had_always_had_them(spark: Any, settings: Settings) -> None:
    first, second, third = parts = batches(3)
    arrive(spark, settings, first)
    run(spark, settings)
    arrive(spark, settings, second)
    run(spark, settings, SILVER)  # the others lag behind
    lose_last_commit(settings.checkpoint_path(SILVER))  # a batch that committed its tables and then died

    other = of_shards(settings, 7, 7)
    with pytest.raises(LakeError, match=r"Set silver.shards back to [0-9]+, or move .* with `sessionlake reshard 7`"):
        run(spark, other, SILVER)
    with pytest.raises(UsageError, match=r"silver.shards is 7 and gold.shards is 7: .* set .* to 5 first"):
        reshard_layers(spark, other, 5)
    with claim_layers(spark, other, Layer.GOLD), pytest.raises(ClaimedByOtherProcessError):
        reshard_all_layers(spark, other, 7, 0)

    said: list[str] = []
    assert reshard_layers(spark, other, 7, said.append) == LAYERS
    assert said[0] == "silver: processes what is available, with 4 shards"
    assert [line for line in said if "takes in" in line] == said[:1]
    assert numbers(spark, other) == [7, 7, 7]
    assert forgotten(spark, other) > 0
    assert reshard_layers(spark, other, 7) == []

    arrive(spark, other, third)
    run(spark, other)
    assert_as_if_nothing_had_been(spark, other, parts)


def forgotten(spark: Any, settings: Settings) -> int:
    """Of how many owners gold's states have only a hash left."""
    states = [decode_states(bytes(row["chunk"])) for row in read_state_frame(spark, settings, GOLD).collect()]
    return sum(len(GoldShardState.decode_state(one).forgotten.mark) for state in states for one in state.values())


@pytest.mark.soak
def test_gold_s_shards_that_nothing_came_to_since_have_the_states_that_they_were_handed(
    spark: Any, location: dict[str, Any]
) -> None:
    settings = Settings(**location, gold=GoldSettings.model_validate({"averages": BY_TOPIC}))
    feed, names = Feed(spark, of_shards(settings, 64, 4)), "abcdefgh"
    offset = count()
    feed.write(change(name, "r", next(offset), i * SECOND, price=float(i)) for name in names for i in range(9)).run()
    for shards in (5, 3):
        feed.settings = of_shards(settings, 64, shards)
        assert reshard_layers(spark, feed.settings, shards) == [GOLD]
        feed.write([change("a", "r", next(offset), 10 * SECOND, price=1.0)]).run()
    feed.write(change(name, "r", next(offset), 20 * SECOND, price=7.0) for name in names).run()
    feed.require_exact(*(one.table_name for one in list_declared_averages(feed.settings)))
    assert numbers(spark, feed.settings)[-1] == 3


class DiedError(BaseException):
    """Stands for a process that is killed."""


@pytest.mark.soak
def test_a_resharding_that_dies_anywhere_changes_nothing_or_is_finished(
    spark: Any, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second, third = parts = batches(3)
    arrive(spark, settings, first)
    run(spark, settings)
    former, died = settings, list[str]()

    def dying(name: str) -> None:
        if name not in died:
            died.append(name)
            raise DiedError

    for number, batch in ((2, second), (5, third)):  # gathered, then spread; of a handover's states, too
        other = of_shards(settings, number, number)
        with monkeypatch.context() as patch:
            for module in ("streaming.handover", "operations.resharding.reshard"):
                patch.setattr(f"sessionlake.{module}.inject_fault_if_requested", dying)
            while "before:reshard.journal" not in died:
                with pytest.raises(DiedError):
                    reshard_layers(spark, other, number)
            assert not RESHARD.find_journal_file(other).exists()
            assert numbers(spark, former)[0] == former.silver.shards
            with pytest.raises(DiedError):
                reshard_layers(spark, other, number)
            with pytest.raises(LakeError, match=f"a resharding was interrupted, .* Run `sessionlake reshard {number}`"):
                run(spark, former, GOLD)
            with pytest.raises(UsageError, match=f"a resharding to {number} was interrupted"):
                reshard_layers(spark, other, number + 1)
            done = None
            while done is None:
                with suppress(DiedError):
                    done = reshard_layers(spark, other, number)
        assert done == LAYERS
        assert {"after:silver.prepared", "after:silver.swapped", "after:gold.held", "after:gold.resharded"} <= {*died}
        assert not RESHARD.find_journal_file(other).exists()
        assert numbers(spark, other) == [number] * 3
        former, died = other, []
        if number == 2:
            continue  # nothing has run between the two
        arrive(spark, other, second, batch)
        run(spark, other)
    assert_as_if_nothing_had_been(spark, former, parts)
    assert not preview_processor_rebuild(spark, former, "top")


@pytest.mark.soak
def test_one_layer_moves_alone_and_gold_that_is_emptied_begins_with_the_shards_it_has_now(
    spark: Any, settings: Settings
) -> None:
    first, second = parts = batches(2)
    arrive(spark, settings, first)
    run(spark, settings, SILVER)
    mixed = of_shards(settings, 9, 4)
    assert reshard_layers(spark, mixed, 9) == [SILVER]
    found = verify_silver_tables(spark, mixed)
    assert (found.is_exact, found.states and found.states.skipped) == (True, None)
    assert reshard_layers(spark, mixed, 4) == []
    run(spark, mixed)
    mixed = of_shards(settings, 9, 3)
    for layer in LAYERS[1:]:
        with pytest.raises(
            LakeError, match=r"Set silver.shards back to [0-9]+, or move .* with `sessionlake reshard [38]`"
        ):
            run(spark, of_shards(settings, 8, 3), layer)
    assert reshard_layers(spark, mixed, 3) == [GOLD]
    assert recover.recover_gold(spark, mixed) == ()
    assert handover.read_active_handover(mixed, GOLD) is not None
    recover.empty_gold(spark, mixed)
    assert handover.read_active_handover(mixed, GOLD) is None
    assert reshard_layers(spark, of_shards(settings, 9, 5), 5) == [GOLD]  # of which there are no states
    mixed = of_shards(settings, 9, 5)
    arrive(spark, mixed, second)
    run(spark, mixed)
    assert numbers(spark, mixed) == [9, 9, 5]
    assert_silver_is_the_truth(spark, mixed, [message for batch in parts for message in batch])
    assert_gold_is_exact(spark, mixed)
