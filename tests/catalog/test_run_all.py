"""All jobs over a real broker into a catalog, and what is asked of the tables there."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable
from typing import Any

import pytest

from integration.conftest import ask  # noqa: F401 - a fixture of tests here
from integration.test_run_all import count, prefix, simulated
from sessionlake.delta.lake import Lake
from sessionlake.local.broker import BrokerStatus
from sessionlake.operations.pipeline import Layer, Pipeline, claim_layers, run_once
from sessionlake.operations.rebuild.silver import rebuild_silver_tables
from sessionlake.operations.rebuild.verify import verify_silver_tables
from sessionlake.settings.model import CaptureSettings, KafkaSettings, Settings
from sessionlake.settings.section import OnViolation
from sessionlake_lab.compare import verify_session_rows
from sessionlake_lab.simulate.readback import compute_truth_from_broker

pytestmark = [pytest.mark.broker, pytest.mark.timeout(900)]


@pytest.fixture
def mine(broker: BrokerStatus, location: dict[str, Any]) -> Settings:
    pattern = rf"{location['schemas']['bronze']}\..+"
    kafka = KafkaSettings(bootstrap_servers=broker.bootstrap_servers, topic_pattern=pattern)
    return Settings(**location, kafka=kafka, capture=CaptureSettings(on_violation=OnViolation.ISOLATE))


def environment(settings: Settings) -> dict[str, str]:
    schemas = settings.schemas.model_dump()
    own = {
        "SESSIONLAKE_HOME": str(settings.home),
        "SESSIONLAKE_CATALOG": str(settings.catalog),
        "SESSIONLAKE_KAFKA__BOOTSTRAP_SERVERS": settings.kafka.bootstrap_servers,
        "SESSIONLAKE_KAFKA__TOPIC_PATTERN": settings.kafka.topic_pattern,
        "SESSIONLAKE_CAPTURE__ON_VIOLATION": "isolate",
    }
    return os.environ | own | {f"SESSIONLAKE_SCHEMAS__{name.upper()}": schemas[name] for name in schemas}


def test_every_job_takes_in_what_there_is_and_all_that_is_asked_agrees(
    mine: Settings,
    spark: Any,
    ask: Callable[..., str],  # noqa: F811 - the fixture imported above
) -> None:
    simulated(mine)
    assert run_once(spark, mine, Layer.ALL, threading.Event())
    outcome = verify_session_rows(spark, Lake(mine), truth := compute_truth_from_broker(mine))
    assert (outcome.exact, outcome.differences) == (len(truth.session_rows), {})
    assert not (mine.home / "warehouse").exists()

    def called(*words: str) -> list[dict[str, Any]]:
        said = ask(environment(mine), *words, "--format", "json")
        return [json.loads(line) for line in said.splitlines()]

    layers = called("status")
    assert {layer["layer"]: (layer["behind"], layer["unaccounted"]) for layer in layers} == dict.fromkeys(
        ("bronze", "silver", "silver_tables", "gold"), (0, 0)
    )
    assert {finding["level"] for finding in called("doctor")} == {"ok"}
    topic, partition, session = next(iter(truth.sessions))
    place = truth.sessions[topic, partition, session]
    [traced] = called("trace", topic, str(place["partition"]), str(place["first_offset"]))
    assert traced["topic"] == topic
    rows = called("session", "show", session, "--topic", topic)
    assert len(rows) == len(truth.session_rows.get((topic, partition, session), {}))
    assert called("query", "SELECT count(*) AS n FROM silver.sessions") == [{"n": len(truth.sessions)}]
    summary = "SELECT sum(s.messages) AS n FROM gold.session_summary AS s JOIN silver.sessions USING (session_id)"
    assert called("query", summary) == [{"n": sum(one["messages"] for one in truth.sessions.values())}]
    as_of = called("query", "SELECT count(*) AS n FROM silver.sessions", "--as-of-batch", "0")
    assert as_of == [{"n": len(truth.sessions)}]


def test_live_jobs_take_in_what_comes(mine: Settings, spark: Any) -> None:
    simulated(mine, messages=500)
    assert run_once(spark, mine, Layer.ALL, threading.Event())
    before = count(spark, mine, "ops.ledger")
    simulated(mine, messages=500, seed=1)
    with Pipeline(spark, mine) as pipeline:
        pipeline.wait_until_all_available_processed()
    assert count(spark, mine, "ops.ledger") > before
    assert verify_session_rows(spark, Lake(mine), compute_truth_from_broker(mine)).differences == {}


def test_silver_is_verified_rebuilt_and_goes_on(mine: Settings, spark: Any) -> None:
    simulated(mine, messages=500)
    for layer in (Layer.BRONZE, Layer.SILVER):
        assert run_once(spark, mine, layer, threading.Event())
    assert verify_silver_tables(spark, mine).is_exact
    with claim_layers(spark, mine, Layer.ALL, "rebuilds silver"):
        assert rebuild_silver_tables(spark, mine).messages == count(spark, mine, "bronze.messages")
    simulated(mine, messages=500, seed=1)
    assert run_once(spark, mine, Layer.ALL, threading.Event())
    assert verify_session_rows(spark, Lake(mine), compute_truth_from_broker(mine)).differences == {}
    assert prefix(mine).startswith("place")
