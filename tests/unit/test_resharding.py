"""States brought into another number of shards: whoever goes on with them goes on as if it had always been that one."""

from __future__ import annotations

from itertools import pairwise, product
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sessionlake.errors import LakeError
from sessionlake.gold.fold.pack import SEPARATOR
from sessionlake.gold.fold.resharding import GoldResharder, NewShardsByOwnerHash
from sessionlake.gold.fold.shard import TrackedAverageTable
from sessionlake.gold.fold.state import (
    ForgottenSeriesOwners,
    GoldShardState,
    decode_states,
    encode_states,
    hash_owner_names,
)
from sessionlake.integrity.rules import JudgingRuleLookup
from sessionlake.integrity.state import ShardState
from sessionlake.integrity.state_difference import find_first_state_difference
from sessionlake.integrity.stream_times import StreamTimesAtBatchEnds
from sessionlake.operations.resharding.judging import SessionStateResharder
from sessionlake.operations.resharding.reshard import _ReshardPlan
from sessionlake.processors.load import ProcessorClassReference
from sessionlake.processors.session import ProcessorLimits, create_loaded_processor
from sessionlake.processors.shard import MessageProcessor
from sessionlake.processors.shard_state import ProcessorShardState, read_stored_shard_count
from sessionlake.processors.testing import Result, _add_fold_results, _fold_batches
from sessionlake.settings.model import Settings
from sessionlake.settings.section import Integrity
from sessionlake.silver.fold.pack import ShardMessagePacker
from sessionlake.silver.fold.process import split_shard_state
from sessionlake.silver.fold.shard import SilverFold
from sessionlake.silver.job import sum_partition_counts
from sessionlake.silver.stream_times import list_stream_times_after_batch
from sessionlake.streaming.journal import OperationJournal, refuse_interrupted_operations
from sessionlake.streaming.operation import RESHARD
from sessionlake.streaming.payloads import build_message_decode_rules
from sessionlake_lab.truth import KafkaMessage
from support.folding import Folder, of_silver, of_truth, raw_table, resharded, shard_of, truth_of
from support.seeds import examples, long_beyond, seeds
from support.streams import cut
from unit import test_law, test_processor_law
from unit.test_points import HOUR, METRICS, SERIES, Change, Gold, by_hand, held, histories

SEEDS = 1
MORE = 12
HOLDING = (Integrity.ORDER, Integrity.WINDOW, Integrity.ONCE)
EXAMPLES = examples(usual=15, in_all=300)


@pytest.mark.parametrize(
    ("seed", "integrity"),
    long_beyond(
        {*product(range(SEEDS), (Integrity.ORDER, Integrity.WINDOW, Integrity.ONCE))}, product(range(MORE), Integrity)
    ),
)
def test_silver_goes_on_from_other_shards_as_if_it_had_always_had_them(seed: int, integrity: str) -> None:
    rnd, messages = test_law.stream(seed)
    rules, interval = test_law.capture(integrity, rnd.choice(["isolate", "record"]), seed), test_law.interval(seed)
    numbers = [rnd.randint(1, 7) for _ in range(3)]
    batches, moments = list(cut(rnd, messages, 6)), sorted(rnd.sample(range(1, 6), 2))
    moved = Folder(rules, numbers[0], rnd, interval=interval)
    for number, (first, behind) in zip(numbers, pairwise([0, *moments, len(batches)]), strict=True):
        moved.reshard(number)  # at first of no state at all
        others = Folder(rules, number, rnd, interval=interval)  # with these shards from the beginning
        for batch in batches[:first]:
            others.batch(batch)
        for batch in [[], *batches[first:behind]]:
            for shard, state in others.states().items() if first else ():
                assert find_first_state_difference(moved.states()[shard], state) is None
            moved.batch(batch)
            others.batch(batch)
    test_law.assert_same_states(moved, others)
    test_law.assert_same(of_silver(moved.silver), of_truth(truth_of(messages, rules, interval)))


class Processing:
    """A processor over shards whose number can change."""

    def __init__(self, seed: int, integrity: str, shards: int) -> None:
        self._rules = test_processor_law.capture(integrity, "record", seed)
        self._times, self.result = StreamTimesAtBatchEnds(), Result()
        self.states: dict[int, bytes | None] = dict.fromkeys(range(shards))

    def batch(self, messages: list[KafkaMessage]) -> None:
        shards, recorder = len(self.states), test_processor_law.Recorder()
        each = MessageProcessor(
            ProcessorClassReference("test", "Recorder"),
            self._rules.declared_columns,
            self._rules,
            ProcessorLimits(1 << 20, 1_000),
            None,
            shards,
        )
        each.loaded = create_loaded_processor("test", recorder, each.limits)
        packed = ShardMessagePacker(
            build_message_decode_rules(self._rules), shards, earlier_times=self._times
        ).pack_message_block(raw_table(messages, shards))
        fold = SilverFold(self._rules.declared_columns, self._rules, processor=each)
        reports = _add_fold_results(self.result, "test", list(_fold_batches(fold, [packed], self.states)))
        self._times = self._times.add_stream_times(
            list_stream_times_after_batch(sum_partition_counts([*reports]), reports)
        )

    def reshard(self, shards: int) -> None:
        self.states = dict(resharded(SessionStateResharder(JudgingRuleLookup(self._rules), shards), self.states))

    def remembered(self) -> list[tuple[ProcessorShardState, dict[tuple[str, int], int]]]:
        found = []
        for state in self.states.values():
            judging, memory = split_shard_state(state)
            assert memory is None or read_stored_shard_count(memory) == len(self.states)
            clock = ShardState.decode_shard_state(judging, self._rules.declared_columns).clock
            found.append((ProcessorShardState.decode_processor_state(memory), clock.stream_times_by_partition))
        return found


@pytest.mark.parametrize("seed", [*seeds(SEEDS, MORE), 25, 500])
def test_a_processor_goes_on_from_other_shards_with_every_state_and_timer(seed: int) -> None:
    rnd, messages = test_processor_law.stream(seed)
    integrity, (before, after) = rnd.choice(list(Integrity)), (rnd.randint(1, 5), rnd.randint(1, 7))
    batches = [batch for batch in cut(rnd, messages, 8) if batch]
    moment = rnd.randrange(1, len(batches)) if len(batches) > 1 else 1
    moved, others = Processing(seed, integrity, before), Processing(seed, integrity, after)
    for number, batch in enumerate(batches):
        if number == moment:
            moved.reshard(after)
            assert moved.remembered() == others.remembered()
        moved.batch(batch)
        others.batch(batch)
    moved.reshard(after)
    assert moved.remembered() == others.remembered()
    for found, expected in ((moved.result.rows, others.result.rows), (moved.result.errors, others.result.errors)):
        assert sorted(map(repr, found)) == sorted(map(repr, expected))
    assert moved.result.counts == others.result.counts


def reshard_gold(gold: Gold, shards: int, *, known: bool) -> None:
    """As `sessionlake reshard`, of owners that are known, or of which nobody knows where those forgotten are."""
    marked = {}
    for series in gold.series:
        rows = gold.tables[series.name].values() if known else ()
        owners = {tuple(row[name] for name in series.owner_columns) for row in rows}
        names = [owner[:2] if series.is_per_session else owner for owner in owners]
        shard = [shard_of(name[0], "".join(name[1:]).encode(), shards) for name in names]
        mark = pa.array(hash_owner_names([SEPARATOR.join(map(str, owner)) for owner in owners]), pa.uint64())
        marked[series.name] = NewShardsByOwnerHash.from_table(
            pa.table({"shard": pa.array(shard, pa.int32()), "mark": mark})
        )
    resharder = GoldResharder(METRICS, gold.fold.tracked, marked, shards)
    states = {shard: gold.states.get(shard) for shard in range(gold.shards)}
    gold.states, gold.shards = dict(resharded(resharder, states)), shards


@EXAMPLES
@given(histories(), st.integers(1, 4), st.integers(1, 5), st.sampled_from([HOUR, 20_000]), st.booleans())
def test_gold_goes_on_from_other_shards_to_the_same_rows(
    batches: list[list[Change]], before: int, after: int, idle: int, known: bool
) -> None:
    gold = Gold(before, idle, SERIES)
    for number, batch in enumerate(batches):
        if number == len(batches) // 2:
            reshard_gold(gold, after, known=known)
        gold.batch(batch)
    for series in SERIES:
        assert held(gold, series) == by_hand([c for batch in batches for c in batch], series)


@EXAMPLES
@given(histories(), st.integers(1, 4), st.integers(1, 5))
def test_gold_s_tails_are_those_of_shards_that_were_always_as_many(
    batches: list[list[Change]], before: int, after: int
) -> None:
    moved, others = Gold(before, 10 * HOUR, SERIES), Gold(after, 10 * HOUR, SERIES)
    for batch in batches:
        moved.batch(batch)
        others.batch(batch)
    reshard_gold(moved, after, known=True)
    reshard_gold(others, after, known=True)  # of shards without a state, too
    for shard in range(after):
        mine, theirs = (decode_states(gold.states[shard]) for gold in (moved, others))
        assert {name: told(mine[name]) for name in mine} == {name: told(theirs[name]) for name in theirs}
        assert [*mine] == [series.name for series in SERIES]


def told(stored: bytes) -> tuple[object, ...]:
    """A state, whatever the order of its owners and rows."""
    state = GoldShardState.decode_state(stored)
    rows, owners, width = state.rows.to_pylist(), state.owners.name.to_pylist(), len(state.metrics)
    of_owner = zip(
        owners, *(getattr(state.owners, name).tolist() for name in ("partition", "seen", "newest")), strict=True
    )
    of_row = ((row, owners[owner]) for row, owner in zip(rows, state.owner.tolist(), strict=True))
    tail = zip(
        *(getattr(state.tail, name).tolist() for name in ("key", "ts", "position", "ordinal", "value")), strict=True
    )
    points = ((rows[key // width], state.metrics[key % width], *rest) for key, *rest in tail)
    older = zip(range(len(state.older)), state.older.some.tolist(), state.older.ts.tolist(), strict=True)
    gone = ((rows[key // width], key % width, some, ts) for key, some, ts in older)
    return state.rebuild_id, *(sorted(part) for part in (of_owner, of_row, points, gone)), state.forgotten.mark.tolist()


def test_what_a_table_was_made_again_of_goes_to_the_new_shard_of_each_though_its_shard_has_no_state() -> None:
    series, names = SERIES[0], [f"capture.a{SEPARATOR}{name}" for name in "abcdefgh"]
    marks = hash_owner_names(names)
    former, new = [[shard_of("capture.a", name[-1:].encode(), n) for name in names] for n in (3, 4)]
    rows = pa.table({"shard": pa.array(former, pa.int32()), "newest": range(8), "mark": pa.array(marks, pa.uint64())})
    rows = rows.sort_by("mark")
    kept = TrackedAverageTable(series, "made", lambda shard: rows.filter(pc.field("shard") == shard))
    marked = NewShardsByOwnerHash.from_table(
        pa.table({"shard": pa.array(new, pa.int32()), "mark": pa.array(marks, pa.uint64())})
    )
    # One shard has a state, of a making before.
    stale = encode_states({series.name: GoldShardState.create_empty("before", METRICS).encode_state()})
    states = resharded(GoldResharder(METRICS, (kept,), {series.name: marked}, 4), {0: stale, 1: None, 2: None})
    for shard, stored in states.items():
        state = GoldShardState.decode_state(decode_states(stored)[series.name])
        mine = [number for number, target in enumerate(new) if target == shard]
        found, newest = state.forgotten.find_forgotten_owners([names[number] for number in mine])
        assert (state.rebuild_id, len(state.forgotten.mark)) == ("made", len(mine))
        assert (found.all(), newest.tolist()) == (True, mine)


def test_of_two_with_one_hash_both_shards_have_what_was_known_and_of_a_stranger_all_have() -> None:
    forgotten = ForgottenSeriesOwners(np.array([3, 5, 9], np.uint64), np.array([30, 50, 90]))
    marked = NewShardsByOwnerHash.from_table(
        pa.table({"shard": pa.array([1, 0, 2], pa.int32()), "mark": pa.array([5, 3, 5], pa.uint64())})
    )
    found = marked.split_by_shard(forgotten, 4)
    assert {shard: part.mark.tolist() for shard, part in found.items()} == {0: [3, 9], 1: [5, 9], 2: [5, 9], 3: [9]}
    assert found[1].newest.tolist() == [50, 90]
    assert marked.split_by_shard(forgotten.select_owners(np.array([1])), 4).keys() == {1, 2}


def test_while_one_is_interrupted_nothing_starts_that_relies_on_states(tmp_path: Path) -> None:
    settings = Settings(home=tmp_path)
    assert OperationJournal.read_journal(settings, RESHARD, _ReshardPlan) is None
    refuse_interrupted_operations(settings)
    journal = OperationJournal.create_journal(settings, RESHARD, _ReshardPlan("a", 7, ["silver"]))
    assert OperationJournal.read_journal(settings, RESHARD, _ReshardPlan) == journal
    for layer in (None, "bronze", "silver", "gold", "processor-p"):
        with pytest.raises(LakeError, match=r"a resharding was interrupted, .* Run `sessionlake reshard 7`"):
            refuse_interrupted_operations(settings, layer)
    journal.remove_journal()
    refuse_interrupted_operations(settings)
