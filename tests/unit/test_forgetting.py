"""One session forgotten: what is left is what a stream would have given of which its messages were always erased."""

from __future__ import annotations

import json
import random
import shutil
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, cast

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from sessionlake.delta.lake import Lake
from sessionlake.delta.schemas.properties import CHANGE_FEED
from sessionlake.errors import LakeError
from sessionlake.integrity.state import ShardState
from sessionlake.integrity.state_difference import find_first_state_difference
from sessionlake.operations.forgetting.publications import (
    find_oldest_version_needed_by_publications,
    require_publications_can_send,
)
from sessionlake.protocol.arrow import split_session_key
from sessionlake.protocol.erased import ERASED_KEY
from sessionlake.protocol.parse import find_reason_to_refuse_key
from sessionlake.settings.model import GoldSettings, Settings
from sessionlake.settings.section import Integrity
from sessionlake_lab.truth import KafkaMessage
from support.folding import Folder, Row
from support.lakes import find_table_folder
from support.streams import LIGHT, WILD, StreamMaker, cut
from unit.test_law import capture, interval

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SHARDS = 3
Session = tuple[str, str]


def erased(message: KafkaMessage) -> KafkaMessage:
    return message._replace(key=ERASED_KEY, value=None)


def is_of(message: KafkaMessage, session: Session) -> bool:
    return (message.topic, message.key) == (session[0], session[1].encode())


def of_others(rows: list[Row], session: Session) -> Counter[str]:
    return Counter(repr(row) for row in rows if (row["topic"], row["session_id"]) != session)


def folder(integrity: str, seed: int) -> Folder:
    rules = capture(integrity, "isolate", seed)
    return Folder(rules, SHARDS, random.Random(seed), interval=interval(seed))


@pytest.mark.parametrize("integrity", list(Integrity))
@pytest.mark.parametrize("seed", range(2))
def test_a_state_without_the_session_goes_on_as_that_of_a_stream_in_which_it_never_was(
    seed: int, integrity: str
) -> None:
    rnd = random.Random(seed)
    messages = StreamMaker(rnd, [LIGHT, WILD][seed % 2]).make(90)
    keys = [(m.topic, m.key.decode()) for m in messages if m.key and find_reason_to_refuse_key(m.key) is None]
    session, batches = rnd.choice(keys), list(cut(rnd, messages, 6))
    gone = [[erased(m) if is_of(m, session) else m for m in batch] for batch in batches]
    forgetting, never = folder(integrity, seed), folder(integrity, seed)
    columns = capture(integrity, "isolate", seed).declared_columns

    for whole, left in zip(batches[:3], gone[:3], strict=True):
        forgetting.batch(whole)
        never.batch(left)
    for shard, state in forgetting.states().items():
        state.replace_sessions(ShardState(), lambda topic, _, name: (topic, name) == session)
        forgetting.stored[shard] = state.encode_shard_state(columns)
        assert session not in {split_session_key(key)[::2] for key in state.keys.to_pylist()}
    for batch in [[], *gone[3:]]:
        for mine, other in zip(forgetting.states().values(), never.states().values(), strict=True):
            assert find_first_state_difference(mine, other) is None
        forgetting.batch(batch)
        never.batch(batch)

    found, expected = forgetting.silver, never.silver
    for name in ("changes", "cuts", "quarantine", "events"):
        assert of_others(getattr(found, name), session) == of_others(getattr(expected, name), session)
        assert not [row for row in getattr(expected, name) if (row["topic"], row["session_id"]) == session]
    assert {k: v for k, v in found.sessions.items() if k[::2] != session} == expected.sessions
    assert {k: v for k, v in found.rows.items() if k[::2] != session and v} == {
        k: v for k, v in expected.rows.items() if v
    }


def test_what_is_erased_is_counted_and_comes_into_no_table() -> None:
    alone = folder("none", 0)
    alone.batch([KafkaMessage("capture.a", 0, offset, 1_700_000_000_000, ERASED_KEY, None) for offset in range(3)])
    counts = alone.silver.counts["capture.a", 0]
    assert {name: count for name, count in counts.items() if count} == {"messages": 3, "parts": 3}
    assert not alone.silver.quarantine
    assert alone.ends == {("capture.a", 0): 2}


def test_the_key_with_a_value_is_a_message_whose_key_is_bad() -> None:
    alone = folder("none", 0)
    alone.batch([KafkaMessage("capture.a", 0, 0, 1_700_000_000_000, ERASED_KEY, b"{}")])
    assert [row["reason"] for row in alone.silver.quarantine] == ["bad_key"]


def checkpoint(settings: Settings, table: str, *places: int) -> None:
    """Leaves that of a publication, whose batches have ended in front of these versions."""
    folder = Path(settings.checkpoint_path(f"publish-{table}-out"))
    for batch, version in enumerate(places):
        place = json.dumps({"reservoirId": "a", "reservoirVersion": version, "index": -1, "isStartingVersion": False})
        for name, text in (("offsets", f"v1\n{{}}\n{place}"), ("commits", "v1\n{}")):
            (folder / name).mkdir(parents=True, exist_ok=True)
            (folder / name / str(batch)).write_text(text)


@pytest.mark.parametrize(
    ("places", "removal", "needed"),
    [
        ((4,), 3, 3),  # what its first batch found there is told once more from the version before 4
        ((4, 5), 4, 4),  # Spark asks once more for what is between the two
        ((4, 9), 6, 6),  # nothing of before the removal stays
        ((4, 6, 9), 5, 6),
        ((), 5, None),
    ],
)
def test_of_a_log_what_publications_go_on_with_stays_and_nothing_from_before_the_removal(
    tmp_path: Path, places: tuple[int, ...], removal: int, needed: int | None
) -> None:
    settings = Settings(home=tmp_path)
    checkpoint(settings, "gold.metrics_1m", *places)
    assert find_oldest_version_needed_by_publications(settings, "gold.metrics_1m", removal) == needed
    assert find_oldest_version_needed_by_publications(settings, "gold.metrics_1h", removal) is None


def test_a_publication_that_was_given_up_is_named_before_anything_is_removed(tmp_path: Path) -> None:
    settings = Settings(home=tmp_path)
    lake, spark = Lake(settings), cast("SparkSession", None)  # which folders do not ask
    require_publications_can_send(spark, lake, ["gold.metrics_1m"])
    checkpoint(settings, "gold.metrics_1m", 4)
    there = Path(settings.checkpoint_path("publish-gold.metrics_1m-out"))
    expected_text = (
        rf"metrics_1m-out must send .*because gold.change_feed does not name it.*remove its checkpoint {there}$"
    )
    with pytest.raises(LakeError, match=expected_text):
        require_publications_can_send(spark, lake, ["silver.session_rows", "gold.metrics_1m"])
    named = Lake(Settings(home=tmp_path, gold=GoldSettings(change_feed=("metrics_1m",))))
    with pytest.raises(LakeError, match="does not exist yet"):
        require_publications_can_send(spark, named, ["gold.metrics_1m"])
    write_deltalake(
        find_table_folder(named, "gold.metrics_1m"), pa.table({"points": [1]}), configuration={CHANGE_FEED: "true"}
    )
    require_publications_can_send(spark, named, ["gold.metrics_1m"])
    shutil.rmtree(there)
    require_publications_can_send(spark, lake, ["gold.metrics_1m"])
