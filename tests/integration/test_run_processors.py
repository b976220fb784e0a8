"""Processors beside the layers, over a real broker: one that fails stops alone."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

from sessionlake.delta.lake import Lake
from sessionlake.errors import ProcessorError, SessionlakeError
from sessionlake.operations.pipeline import Layer, run_until_stopped
from sessionlake.settings.model import ProcessorSettings, Settings
from support.lakes import rows_of
from support.waiting import eventually

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]
SECONDS = 120
FAILING = """
from sessionlake.examples.top_of_book import TopOfBook

class Failing(TopOfBook):
    def on_message(self, state, message):
        raise RuntimeError("not this one")
"""


def processors() -> tuple[ProcessorSettings, ...]:
    whole = "sessionlake.examples.top_of_book:TopOfBook"
    return (
        ProcessorSettings(name="failing", target="failing_top:Failing"),
        ProcessorSettings(name="top", target=whole, table="gold.top_of_book"),
    )


def count(spark: Any, settings: Settings, table: str) -> int:
    return len(rows_of(spark, Lake(settings), table))


@pytest.mark.soak
def test_a_processor_that_fails_among_all_stops_alone_and_is_reported_at_once_and_at_the_end(
    broker_settings: Settings, spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "failing_top.py").write_text(FAILING)
    monkeypatch.chdir(tmp_path)
    topic = f"{tmp_path.name}.t"
    columns = {"side": "string", "price": "double", "qty": "int"}
    capture = broker_settings.capture.model_copy(update={"columns": columns})
    kafka = broker_settings.kafka.model_copy(update={"topic_pattern": topic})
    mine = broker_settings.model_copy(update={"capture": capture, "kafka": kafka, "processors": processors()})
    producer = Producer({"bootstrap.servers": mine.kafka.bootstrap_servers})
    for seq in range(3):
        rows = [{"id": "b", "side": "bid", "price": seq, "qty": 1}]
        body = {"type": "update" if seq else "snapshot", "seq": seq, "ts": seq, "rows": rows}
        producer.produce(topic, json.dumps(body).encode(), b"s", 0, timestamp=1000 + seq)
    assert producer.flush(30) == 0

    stop, told = threading.Event(), []
    ended: list[SessionlakeError] = []

    def live() -> None:
        try:
            run_until_stopped(spark, mine, Layer.ALL, stop, on_failure=told.append)
        except SessionlakeError as error:
            ended.append(error)

    thread = threading.Thread(target=live)
    thread.start()
    reached = {"silver.session_rows": 1, "gold.top_of_book": 3}

    def runs() -> None:
        assert thread.is_alive(), ended

    eventually(
        lambda: told and all(count(spark, mine, table) >= n for table, n in reached.items()), SECONDS, meanwhile=runs
    )
    stop.set()
    thread.join(60)
    assert [type(error) for error in told] == [ProcessorError]
    assert "processor failing failed: session 's', topic" in str(told[0])
    assert ended == told
    bids = rows_of(spark, Lake(mine), "gold.top_of_book")
    assert sorted(row["bid"] for row in bids) == [0, 1, 2]
