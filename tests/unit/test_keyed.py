"""A processor with a key: what it makes of a key's rows, in whatever order they come."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa
import pytest
from deltalake import write_deltalake
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from sessionlake.errors import ConfigError
from sessionlake.operations.maintenance import list_streams_reading_table
from sessionlake.processors import KeyedProcessor, Processor
from sessionlake.processors.api import Message, Record
from sessionlake.processors.by_class import _ERROR, _KeyRecordsFunction
from sessionlake.processors.job import require_loadable_processor
from sessionlake.processors.keyed import KeyedProcessorTable
from sessionlake.processors.load import ProcessorClassReference, create_processor_class_reference
from sessionlake.processors.testing import Sent, run, run_keyed
from sessionlake.settings.model import CaptureSettings, ProcessorSettings, Settings


@dataclass
class Last:
    ts: int | None = None


class Pauses(KeyedProcessor[Last]):
    """How long it was between a key's rows, and how long its last row is alone."""

    state = Last
    output: ClassVar = {"pause": "bigint", "last": "bigint"}

    def on_row(self, state: Last, row: Mapping[str, Any]) -> Iterable[Record]:
        if state.ts is not None:
            yield {"pause": row["ts"] - state.ts}
        state.ts = row["ts"]

    def on_end(self, state: Last) -> Iterable[Record]:
        yield {"last": state.ts}


ROWS = st.lists(st.tuples(st.sampled_from(["a", "b", None]), st.integers(0, 99)), unique=True)


@given(ROWS)
def test_a_keys_records_follow_from_its_rows_in_their_order(found: list[tuple[str | None, int]]):
    made = run_keyed(Pauses(), [{"who": who, "ts": ts} for who, ts in found], ["who"], ["ts"])
    expected = {}
    for who in {who for who, _ in found if who is not None}:
        times = sorted(ts for name, ts in found if name == who)
        expected[who,] = [{"pause": b - a} for a, b in pairwise(times)] + [{"last": times[-1]}]
    assert made == expected


def test_an_order_that_leaves_two_rows_alike_is_reported():
    class Firsts(Pauses):
        def on_row(self, state: Last, row: Mapping[str, Any]) -> Iterable[Record]:
            state.ts = row["n"] if state.ts is None else state.ts
            return ()

    rows = [{"who": "a", "ts": 1, "n": n} for n in range(2)]
    with pytest.raises(AssertionError, match="Firsts depends on the order in which rows come"):
        run_keyed(Firsts(), rows, ["who"], ["ts"])


def test_a_class_of_sessions_cannot_have_a_key_nor_one_with_a_key_be_without(tmp_path: Path):
    own = ProcessorSettings(name="own", target="sessionlake.examples.logins:Logins", key=("row_id",))
    with pytest.raises(ConfigError, match=r"is not a subclass of sessionlake.processors.KeyedProcessor"):
        require_loadable_processor(Settings(home=tmp_path, processors=(own,)), "own")
    with pytest.raises(ConfigError, match=r"is not a subclass of sessionlake.processors.Processor"):
        ProcessorClassReference("own", f"{__name__}:Pauses").load_processor()
    assert ProcessorClassReference("own", f"{__name__}:Pauses").load_keyed_processor().output == Pauses.output


ORDERED = ProcessorSettings(name="own", target=f"{__name__}:Pauses", key=("who",), order=("ts",))
MADE_OF = pa.table({"who": ["a", "b", "a", "a"], "ts": [3, 1, 1, 2]})


def test_a_group_of_keys_is_gone_through_key_by_key_in_order():
    made = build_groups(ORDERED)(MADE_OF).to_pylist()
    assert [(row["who"], row["ordinal"], row["pause"], row["last"]) for row in made] == [
        ("a", 0, 1, None),
        ("a", 1, 1, None),
        ("a", 2, None, 3),
        ("b", 0, None, 1),
    ]


def test_the_limit_is_of_one_call_however_many_rows_a_key_comes_to_have():
    own = ORDERED.model_copy(update={"max_records_per_call": 1})
    assert build_groups(own)(MADE_OF)[_ERROR].null_count == 4
    own = own.model_copy(update={"target": f"{__name__}:Twice"})
    said = 'key {"who": "a"}: OverflowError: more than 1 records of one call, the limit of max_records_per_call'
    assert build_groups(own)(MADE_OF)[_ERROR].to_pylist() == [said]


class Twice(Pauses):
    def on_end(self, state: Last) -> Iterable[Record]:
        return [{"last": state.ts}] * 2


def test_rows_that_the_order_does_not_tell_apart_stop_the_batch():
    rows = pa.table({"who": ["a", "b", "a"], "ts": [1, 1, 1]})
    said = 'key {"who": "a"}: ValueError: two rows are equal in ts: `order` must distinguish them'
    assert build_groups(ORDERED)(rows)[_ERROR].to_pylist() == [said]


def test_changes_of_two_sessions_are_reported_apart_though_their_positions_are_not():
    """Under `window`, what was held back is applied at positions that another session's may have, too."""

    def up(seq: int, ts: int, kind: str = "update") -> dict[str, Any]:
        return {"type": kind, "seq": seq, "ts": ts, "rows": [{"id": "r", "x": seq}]}

    messages = [
        *(Sent("a", up(seq, 2_000, "update" if seq else "snapshot"), 1_000 + seq) for seq in range(3)),
        *(Sent("b", up(seq, 2_000, "update" if seq else "snapshot"), 1_003 + seq) for seq in range(2)),
        *(Sent(session, up(seq, 900_000), 1_005 + n) for n, (session, seq) in enumerate([("a", 3), ("b", 2)])),
    ]
    capture = CaptureSettings(columns={"x": "bigint"}, integrity="window", lateness=timedelta(minutes=1))
    rows = [row | {"_ts": row["ts"]} for row in run(Places(), messages, capture=capture).rows]
    order = ProcessorSettings.model_fields["order"].default
    assert len({tuple(row[name] for name in order if name != "session_id") for row in rows}) < len(rows)
    assert len({tuple(row[name] for name in order) for row in rows}) == len(rows)


class Places(Processor[Last]):
    state = Last
    output: ClassVar = {"ts": "bigint"}

    def on_message(self, state: Last, message: Message) -> Iterable[Record]:
        del state
        yield {"ts": message.ts}


@pytest.mark.parametrize(
    ("key", "said"),
    [
        (("price",), "key: the column price is of type double"),
        (("tags",), r"key: the column tags is of type array<string>"),
        (("who", "who"), "key: the column 'who' is declared twice"),
        (("ordinal",), r"column 'ordinal': silver\.own has a column of this name itself"),
        (("whose",), "has no column whose"),
    ],
)
def test_a_key_that_cannot_tell_rows_apart_is_refused(tmp_path: Path, key: tuple[str, ...], said: str):
    settings = Settings(home=tmp_path)
    rows = {"who": ["a"], "price": [1.0], "tags": [["x"]], "ordinal": [1], "ts": [1]}
    write_deltalake(tmp_path / "warehouse/silver/own_source", pa.table(rows))
    own = ProcessorSettings(name="own", target="a:B", key=key, source="silver.own_source", order=("ts",))
    with pytest.raises(ConfigError, match=said):
        KeyedProcessorTable(None, settings, own)


@pytest.mark.parametrize("given", [{"key": ("who",), "topics": "a"}, {"order": ("ts",)}, {"source": "silver.own"}])
def test_a_setting_that_would_say_nothing_is_refused(tmp_path: Path, given: dict[str, Any]):
    own = ProcessorSettings(name="own", target="a:B", **given)
    with pytest.raises(ValidationError, match=f"own: only a processor with(out)? a `key` can have {[*given][-1]}"):
        Settings(home=tmp_path, processors=(own,))


def build_groups(own: ProcessorSettings) -> _KeyRecordsFunction:
    return _KeyRecordsFunction(create_processor_class_reference(own), own, (("who", "string"), ("ordinal", "int")))


def test_its_source_is_kept_until_it_has_read_it_and_bronze_is_not(tmp_path: Path):
    own = ProcessorSettings(name="own", target="a:B", key=("row_id",))
    settings = Settings(home=tmp_path, processors=(own,))
    assert [reader.name for reader in list_streams_reading_table(settings, "bronze.messages")] == ["silver"]
    assert [reader.name for reader in list_streams_reading_table(settings, "silver.session_changes")] == [
        "processor-own",
        "gold",
    ]
