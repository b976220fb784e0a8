"""Declared columns that were taken away or have another type: a start refuses them, and a rebuild makes the tables."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from sessionlake.cli.rebuild import rebuild_silver, verify_silver
from sessionlake.delta.lake import Lake
from sessionlake.delta.schemas.names import AVERAGES, CHANGES, PRODUCTS, ROWS, SNAPSHOTS
from sessionlake.errors import ConfigError, LakeError
from sessionlake.gold import job as gold
from sessionlake.operations.forgetting.forget import SessionForgetter
from sessionlake.operations.pipeline import Layer
from sessionlake.operations.rebuild.processors import rebuild_processor
from sessionlake.operations.rebuild.replay import REPLAYED, SessionSelection
from sessionlake.operations.rebuild.silver import SilverRebuildResult, rebuild_silver_tables
from sessionlake.operations.resharding.reshard import reshard_layers
from sessionlake.processors import keyed
from sessionlake.settings.model import CaptureSettings, GoldSettings, ProcessorSettings, Settings
from sessionlake.streaming.source_columns import find_changed_source_column
from sessionlake_lab.truth import KafkaMessage
from spark.test_processors import KEYED, Counted, counted  # noqa: F401 - counted is a fixture
from spark.test_silver_law import Pipeline, streams, topic_of
from support.lakes import assert_silver_is_the_truth, comparable, in_order, rows_of
from support.streams import COLUMNS, LIGHT, Fact, StreamMaker

OTHER = {"extra": "bigint", "whole": "double"} | {
    name: sql for name, sql in COLUMNS.items() if name not in {"whole", "price", "tiny"}
}
"""Two taken away, one of another type, one added."""
REFUSED = r"silver\.session_changes: column price \(double\) is in the table but not in capture\.columns"
WAY_ON = "Run `sessionlake rebuild silver`, which builds all of silver from bronze with the declared columns"


def declare(pipeline: Any, columns: dict[str, str]) -> None:
    """Other columns, from now on."""
    capture = pipeline.settings.capture.model_copy(update={"columns": columns})
    pipeline.settings = pipeline.settings.model_copy(update={"capture": capture})
    pipeline.lake = Lake(pipeline.settings)


class DeathError(BaseException):
    """As if the process had been killed."""


@pytest.fixture
def deaths(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[str]]:
    """Has whatever is done from now on die once at each fault point whose name contains one of some words."""

    def die_at(*words: str) -> list[str]:
        died: list[str] = []

        def inject_fault_if_requested(name: str) -> None:
            if name not in died and any(word in name for word in words):
                died.append(name)
                raise DeathError(name)

        for module in ("operations.rebuild.silver", "operations.rebuild.endings", "delta.commit"):
            monkeypatch.setattr(f"sessionlake.{module}.inject_fault_if_requested", inject_fault_if_requested)
        return died

    return die_at


def finished(pipeline: Pipeline) -> SilverRebuildResult:
    """Rebuilds silver, however often that dies."""
    while True:
        try:
            return rebuild_silver_tables(pipeline.spark, pipeline.settings)
        except DeathError:
            with pytest.raises(LakeError, match="Run `sessionlake rebuild silver`"):
                pipeline.stream()


def few(count: int) -> Iterator[list[Fact]]:
    """Two streams, of which one holds messages back, in two batches."""
    rnd = random.Random(3)
    made = [StreamMaker(rnd, LIGHT, [topic_of(i, "record", 0)]).make(count) for i in ("window", "once")]
    for half in (slice(None, count // 2), slice(count // 2, None)):
        yield [message for messages in made for message in messages[half]]


def read_up_to(checkpoint: Path, version: int) -> str:
    """The checkpoint of a stream that has read a table up to a version."""
    (checkpoint / "offsets").mkdir(parents=True)
    (checkpoint / "offsets" / "0").write_text(
        f'v1\n{{}}\n{{"reservoirId":"a","reservoirVersion":{version + 1},"index":-1}}'
    )
    return str(checkpoint)


def test_columns_taken_away_of_another_type_and_added_are_refused_then_made_of_bronze_and_gone_on_with(
    spark: Any, location: dict[str, Any], tmp_path: Path
) -> None:
    pipeline, (first, second) = Pipeline(spark, location), few(30)
    pipeline.arrive(first)
    pipeline.stream()
    read = read_up_to(tmp_path / "checkpoint", pipeline.lake.last_commit(spark, CHANGES).version)
    declare(pipeline, OTHER)
    settings = pipeline.settings
    for refused in (
        pipeline.stream,
        lambda: verify_silver(spark, settings, print),
        lambda: reshard_layers(spark, settings, settings.silver.shards),
    ):
        with pytest.raises(LakeError, match=f"{REFUSED}.*{WAY_ON}"):
            refused()
    with pytest.raises(LakeError, match=f"{REFUSED}, so single sessions cannot be rebuilt"):
        rebuild_silver_tables(spark, settings, selection=SessionSelection(first[0].topic))

    assert find_changed_source_column(spark, pipeline.lake, CHANGES, read) is None
    done = rebuild_silver_tables(spark, settings)
    assert find_changed_source_column(spark, pipeline.lake, CHANGES, read) == "price (double)"
    assert (done.comparison, done.empties_gold, str(done.columns)) == (None, True, REFUSED.replace("\\", ""))
    pipeline.arrive(second)
    pipeline.stream()
    pipeline.merge()
    assert_silver_is_the_truth(spark, settings, [*first, *second], ledger=False)


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_killed_at_each_fault_point_of_its_publication_it_comes_to_what_a_fresh_home_has(
    spark: Any, location: dict[str, Any], tmp_path: Path, deaths: Callable[..., list[str]]
) -> None:
    pipeline, fresh = Pipeline(spark, location), Pipeline(spark, {"home": tmp_path / "fresh"})
    *batches, last = streams(seeds=1, batches=3)
    for batch in batches:
        pipeline.arrive(batch)
        fresh.arrive(batch)
    pipeline.stream()
    pipeline.merge()
    gold.start(spark, pipeline.settings, once=True).wait()
    properties = properties_of(pipeline)
    for one in (pipeline, fresh):
        declare(one, OTHER)
    with pytest.raises(LakeError, match=f"{REFUSED}.*{WAY_ON}"):
        gold.start(spark, pipeline.settings, once=True)
    # In a catalog, a few of them.
    died = deaths(*(EVERY_PLACE if pipeline.settings.catalog is None else SOME_PLACES))
    finished(pipeline)
    assert all(any(word in name for name in died) for word in SOME_PLACES)
    assert properties_of(pipeline) == properties

    assert_equal(pipeline, fresh, batches)
    for one in (pipeline, fresh):
        one.arrive(last)
    assert_equal(pipeline, fresh, [*batches, last])
    for one in (pipeline, fresh):
        gold.start(spark, one.settings, once=True).wait()
    for table in (AVERAGES, *PRODUCTS):
        assert in_order(comparable(spark, pipeline.lake, table)) == in_order(comparable(spark, fresh.lake, table))
    assert verify_silver(spark, pipeline.settings, print)


EVERY_PLACE = ("publish", "gold.aside", "empty", "ops.ledger")
SOME_PLACES = (f"before:publish:{CHANGES}", f"after:publish:{ROWS}", "gold.aside", "before:publish:swap")


def properties_of(pipeline: Pipeline) -> dict[str, dict[str, str]]:
    """Of each table of silver: its change feed, what its files have the least and greatest of, how it is clustered."""
    return {table: pipeline.lake.storage.read_properties(pipeline.spark, table) for table in REPLAYED}


def assert_equal(pipeline: Pipeline, fresh: Pipeline, batches: list[list[Fact]]) -> None:
    """Silver, brought to the end of what has come, is what a home is that never had other columns, and the truth."""
    for one in (pipeline, fresh):
        one.stream()
        one.merge()
    content, expected = pipeline.content(), fresh.content()
    del content["session_progress"], expected["session_progress"]  # a row for each batch
    assert content == expected
    for table in (CHANGES, ROWS, SNAPSHOTS):
        found, wanted = (
            list(one.lake.storage.read_column_types(one.spark, table).items()) for one in (pipeline, fresh)
        )
        assert found == wanted
    facts = [fact for batch in batches for fact in batch]
    assert_silver_is_the_truth(pipeline.spark, pipeline.settings, facts, ledger=False)


@pytest.mark.soak
def test_processors_are_reported_to_be_rebuilt_and_go_on_with_the_columns_that_are_declared_now(
    counted: Counted,  # noqa: F811 - the fixture imported above
) -> None:
    spark = counted.spark
    own = ProcessorSettings(name="changes", target="keyed_of_doubles:Changes", key=("topic", "row_id"))
    (counted.folder / "keyed_of_doubles.py").write_text(
        KEYED.format(wanted="True").replace('"x": "bigint"', '"x": "double"')
    )
    processors = (*counted.settings.processors, own)
    counted.settings = counted.settings.model_copy(update={"processors": processors})
    row = '{{"type":"snapshot","seq":{seq},"ts":{seq},"rows":[{{"id":"r","x":{x}}}]}}'
    counted.arrive(("s", row.format(seq=0, x=1), 0), ("s", row.format(seq=1, x=2), 1))
    for layer in (Layer.SILVER, Layer.PROCESSOR):
        counted.run(layer)
    declare(counted, {"x": "double", "more": "string"})
    with pytest.raises(LakeError, match=r"with a column x \(bigint\).*`sessionlake rebuild processor:counted`"):
        counted.run()
    assert not rebuild_processor(spark, counted.settings, "counted").different
    rebuild_silver_tables(spark, counted.settings)
    with pytest.raises(
        LakeError, match=r"changes had a column x \(bigint\) when.*`sessionlake rebuild processor:changes`"
    ):
        counted.run()
    keyed.rebuild_table(spark, counted.settings, own)
    counted.arrive(("s", row.format(seq=2, x=2.5), 2))
    for layer in (Layer.SILVER, Layer.PROCESSOR):
        counted.run(layer)
    assert [row[1] for row in counted.rows()] == [0, 1, 2]
    found = rows_of(spark, counted.lake, "silver.changes")
    assert sorted(row["x"] for row in found if row["x"] is not None) == [1.0, 2.0, 2.5]
    assert not keyed.preview_keyed_table_rebuild(spark, counted.settings, own)


@pytest.mark.soak
def test_a_session_is_not_forgotten_of_a_silver_that_has_other_columns(spark: Any, location: dict[str, Any]) -> None:
    pipeline, (first, _) = Pipeline(spark, location), few(20)
    pipeline.arrive(first)
    pipeline.stream()
    declare(pipeline, OTHER)
    session = next(fact for fact in first if isinstance(fact, KafkaMessage) and fact.key)
    with pytest.raises(LakeError, match=f"{REFUSED}.*{WAY_ON}"):
        SessionForgetter(spark, pipeline.settings).forget_session((session.key or b"").decode(), session.topic)
    declare(pipeline, COLUMNS)
    SessionForgetter(spark, pipeline.settings).forget_session((session.key or b"").decode(), session.topic)


def test_a_configuration_that_names_a_column_which_is_gone_is_refused_before_anything_is_rebuilt(
    tmp_path: Path,
) -> None:
    join = {"reference": "sites", "keys": {"site": "status"}}
    reference = {"name": "sites", "keys": {"site": "string"}, "columns": {"place": "string"}}
    for declared, columns, expected_text in (
        ({"status": "string"}, ["price"], "columns: price is not a column of"),
        (
            {"qty": "bigint"},
            ["qty"],
            "join.keys: the key site of the reference table sites has the type string, but there is no column status",
        ),
    ):
        enriched = {"name": "placed", "columns": columns, "join": [join]}
        of_gold = GoldSettings.model_validate({"references": [reference], "enriched": [enriched]})
        settings = Settings(home=tmp_path, capture=CaptureSettings(columns=declared), gold=of_gold)
        with pytest.raises(ConfigError, match=f"gold.enriched.placed.{expected_text}"):
            rebuild_silver(None, settings, None, SessionSelection(), print)
