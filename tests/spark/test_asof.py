"""Time travel over real tables: the command line without a JVM, Python, SQL, and all tables as of one batch."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner, Result

from sessionlake.cli import app as cli
from sessionlake.cli.query import fetch_query_result, show_query_result_as_of
from sessionlake.cli.show import OutputFormat
from sessionlake.delta.lake import Lake
from sessionlake.delta.storage.spark_reader import SparkReader
from sessionlake.errors import LakeError, UsageError
from sessionlake.history.asof import compute_session_table, find_session, session_as_of
from sessionlake.history.batch_as_of import as_of_batch
from sessionlake.settings.model import CaptureSettings, Settings, SilverSettings, TopicOverrideSettings
from sessionlake.settings.section import Integrity, OnViolation
from sessionlake.silver import job
from sessionlake.silver.merge.merger import TableMerger
from sessionlake.silver.merge.sql_function import create_session_as_of
from sessionlake.silver.tables.as_of import SessionMoment
from sessionlake.silver.tables.snapshots import ROW_KEY
from sessionlake_lab.truth import KafkaMessage
from support.folding import plain, truth_of
from support.lakes import write_bronze
from support.streams import COLUMNS, LIGHT, StreamMaker, cut

TOPICS = {f"capture.{integrity}": integrity for integrity in (Integrity.STRICT, Integrity.ONCE, Integrity.WINDOW)}


class Captured:
    """A home that has two batches: one merged, the last not yet."""

    def __init__(self, spark: Any, home: Path) -> None:
        rules = tuple(TopicOverrideSettings(pattern=t, integrity=i, lateness="2 s") for t, i in TOPICS.items())
        capture = CaptureSettings(columns=COLUMNS, on_violation=OnViolation.RECORD, gap_timeout="5 s", by_topic=rules)
        silver = SilverSettings(shards=2, snapshot_interval="5 s")
        self.spark, self.settings = spark, Settings(home=home, capture=capture, silver=silver)
        self.lake, rnd = Lake(self.settings), random.Random(3)
        self.lake.create_or_update_tables(spark, ["bronze.messages"])
        streams = [list(cut(rnd, StreamMaker(rnd, LIGHT, [topic]).make(60), 2)) for topic in TOPICS]
        self.batches = [[message for part in parts for message in part] for parts in zip(*streams, strict=True)]
        self.messages = [message for batch in self.batches for message in batch]
        for number, batch in enumerate(self.batches):
            write_bronze(spark, self.lake, batch)
            job.start(spark, self.settings, once=True).wait()
            if not number:
                TableMerger(spark, self.settings).merge_all_pending_batches()

    def truth(self, messages: list[KafkaMessage]) -> dict[tuple[str, int, str], dict[str, Any]]:
        return truth_of(messages, self.settings.capture).session_rows

    def lane(self, topic: str, partition: int) -> list[KafkaMessage]:
        return [m for m in self.messages if (m.topic, m.partition) == (topic, partition)]


@pytest.fixture(scope="module")
def captured(spark: Any, tmp_path_factory: pytest.TempPathFactory) -> Captured:
    return Captured(spark, tmp_path_factory.mktemp("asof") / "home")


def by_id(rows: list[dict[str, Any]]) -> dict[str, Any]:
    return {row["row_id"]: {k: v for k, v in row.items() if k not in ROW_KEY} for row in rows}


def test_python_and_sql_give_the_table_that_the_messages_up_to_a_moment_make(captured: Captured) -> None:
    spark, settings = captured.spark, captured.settings
    sessions = sorted(captured.truth(captured.messages))
    rnd = random.Random(1)
    for topic, partition, session in rnd.sample(sessions, 3):
        lane = captured.lane(topic, partition)
        for count in rnd.sample(range(1, len(lane) + 1), 1):
            expected = captured.truth(lane[:count]).get((topic, partition, session), {})
            try:
                found = session_as_of(settings, session, topic, partition=partition, offset=lane[count - 1].offset)
            except LakeError:  # it has not begun
                assert expected == {}
                continue
            assert repr(sorted(by_id(plain(found)).items())) == repr(sorted(expected.items()))
    reader = SparkReader(captured.lake.storage, spark)
    for topic in [*TOPICS][:1]:
        partition, session = next(key for of, *key in sessions if of == topic)
        now = max(message.timestamp for message in captured.lane(topic, partition)) - 1
        local = session_as_of(settings, session, topic, partition=partition, ts=now)
        sql = "SELECT * FROM session_as_of('{}', timestamp_millis({})) WHERE topic = '{}' AND partition = {}"
        names, rows = fetch_query_result(spark, settings, sql.format(session, now, topic, partition))
        in_sql = by_id([dict(zip(names, row, strict=True)) for row in rows])
        assert repr(sorted(in_sql.items())) == repr(sorted(by_id(plain(local)).items()))
    known = find_session(reader, settings, session, topic, partition)
    assert plain(compute_session_table(reader, settings, known, SessionMoment(ts=now))) == plain(local)
    for known_by in (captured.lake.reader(), reader):
        with pytest.raises(
            UsageError, match=r"session 'x' is unknown\. Name a session that exists, such as .* \(capture\."
        ):
            find_session(known_by, settings, "x")


def test_every_table_is_read_as_of_the_last_merge_up_to_a_batch(
    captured: Captured, capsys: pytest.CaptureFixture[str]
) -> None:
    spark, settings = captured.spark, captured.settings
    first = captured.truth(captured.batches[0])
    rows = sum(map(len, first.values()))
    point = as_of_batch(spark, settings, 0)
    assert point.batch == 0
    assert point.read_table(spark, "silver.session_rows").count() == rows
    later = as_of_batch(spark, settings, 1)  # which is not merged yet
    changes = later.read_table(spark, "silver.session_changes").count()
    assert (later.batch, changes) == (0, len(truth_of(captured.batches[0], settings.capture).session_changes))
    sql = "SELECT 'silver.session_rows' AS name, count(*) AS rows FROM silver.session_rows -- silver.session_rows"
    assert show_query_result_as_of(spark, settings, sql, 0, OutputFormat.JSON) == 0
    assert json.loads(capsys.readouterr().out) == {"name": "silver.session_rows", "rows": rows}
    for batch in (2, -1):
        with pytest.raises(LakeError, match="committed the batches 0 to 1"):
            as_of_batch(spark, settings, batch)
    with pytest.raises(UsageError, match=r"bronze\.messages cannot be read as of a batch"):
        show_query_result_as_of(spark, settings, "SELECT * FROM bronze.messages", 0, OutputFormat.JSON)


def call(captured: Captured, monkeypatch: pytest.MonkeyPatch, *words: str) -> Result:
    config = captured.settings.home.parent / "sessionlake.yml"
    content = captured.settings.model_dump(mode="json", include={"home", "silver"})
    rules = captured.settings.capture
    content["capture"] = {"columns": rules.columns, "on_violation": rules.on_violation.value}
    content["silver"] = {"shards": 2}
    config.write_text(yaml.safe_dump(content), encoding="utf-8")
    monkeypatch.setattr("sessionlake.cli.context.call_with_spark", None)  # these answers need none
    return CliRunner().invoke(cli.app, ["--config", str(config), *words])


def test_the_command_line_shows_a_session_now_and_then(captured: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    keys = sorted(captured.truth(captured.messages))
    topic, partition, session = next(key for key in keys if key[0] == "capture.strict")
    lane = captured.lane(topic, partition)
    moments = {"--offset": str(lane[-1].offset), "--ts": str(max(m.timestamp for m in lane))}
    expected = sorted(captured.truth(lane)[topic, partition, session])
    named = (
        "--topic",
        topic,
        "--partition",
        str(partition),
        "--format",
        "json",
        "--",
        session,
    )  # its id may look like an option
    for option, value in moments.items():
        result = call(captured, monkeypatch, "session", "as-of", option, value, *named)
        assert [json.loads(line)["row_id"] for line in result.stdout.splitlines()] == expected
    shown = call(captured, monkeypatch, "session", "show", *named)
    merged = captured.truth(captured.batches[0]).get((topic, partition, session), {})
    assert [json.loads(line)["row_id"] for line in shown.stdout.splitlines()] == sorted(merged)


@pytest.mark.parametrize(
    ("words", "text", "code"),
    [
        (["--offset", "99999"], "silver has judged offsets up to", 1),
        (["--ts", "2999-01-01"], "stream time has not reached 2999-01-01 00:00:00.000Z", 1),
        (["--ts", "0"], "has no table yet at", 1),
        (["--seq", "0"], "has no table yet at seq", 1),
        (["--ts", "yesterday"], "Write it in ISO 8601, as in", 2),
        (["--ts", "0", "--seq", "1"], "exactly one moment is needed, but these were given: --ts, --seq", 2),
        ([], "Give one of --ts TIME, --seq SEQ and --offset OFFSET", 2),
    ],
)
def test_a_moment_that_is_not_known_is_reported_with_what_is(
    captured: Captured, monkeypatch: pytest.MonkeyPatch, words: list[str], text: str, code: int
) -> None:
    keys = sorted(captured.truth(captured.messages))
    topic, partition, session = next(key for key in keys if key[0] == "capture.strict")
    place = ("--topic", topic, "--partition", str(partition))
    result = call(captured, monkeypatch, "session", "as-of", *place, *words, "--", session)
    assert (result.exit_code, result.stdout) == (code, "")
    assert text in result.stderr


@pytest.mark.soak
def test_declared_columns_may_have_the_names_of_the_function_s_own_words(spark: Any, tmp_path: Path) -> None:
    names = ("at", "cut", "as_of", "of_session", "writes", "base")
    settings = Settings(home=tmp_path, capture=CaptureSettings(columns=dict.fromkeys(names, "string")))
    TableMerger(spark, settings)
    assert create_session_as_of(spark, Lake(settings)) == "session_as_of"
    found = spark.sql("SELECT * FROM session_as_of('s', timestamp'2026-01-01')")
    assert found.columns[3:-6] == list(names)
    assert found.count() == 0
