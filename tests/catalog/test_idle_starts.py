"""A start with nothing to do runs few Spark jobs: each is a round trip to the cluster."""

from __future__ import annotations

import threading
from datetime import UTC, datetime
from typing import Any

import pytest

from integration.test_run_all import simulated
from sessionlake.local.broker import BrokerStatus
from sessionlake.operations.pipeline import Layer, run_once
from sessionlake.settings.model import CaptureSettings, GoldSettings, KafkaSettings, Settings, SilverSettings
from sessionlake.settings.section import OnViolation

JOBS = {Layer.BRONZE: 14, Layer.SILVER: 13, Layer.GOLD: 10}


def jobs_of_a_start(spark: Any, settings: Settings, layer: Layer) -> int:
    """As many as of a new process, which knows no version of any table yet."""
    scheduler = spark.sparkContext._jsc.sc().dagScheduler()
    spark._jvm.org.apache.spark.sql.delta.DeltaLog.clearCache()
    before = scheduler.nextJobId()
    run_once(spark, settings, layer, threading.Event())
    return int(scheduler.nextJobId() - before)


@pytest.mark.soak
def test_a_start_with_nothing_to_do_runs_few_spark_jobs(
    spark: Any, broker: BrokerStatus, location: dict[str, Any]
) -> None:
    kafka = KafkaSettings(bootstrap_servers=broker.bootstrap_servers, topic_pattern=r"idle\..+")
    capture, silver, gold = (
        CaptureSettings(on_violation=OnViolation.ISOLATE),
        SilverSettings(shards=2),
        GoldSettings(shards=2),
    )
    settings = Settings(**location, kafka=kafka, capture=capture, silver=silver, gold=gold)
    simulated(settings, messages=200)
    begun = datetime.now(UTC)
    for layer in JOBS:
        run_once(spark, settings, layer, threading.Event())
    found = {layer: jobs_of_a_start(spark, settings, layer) for layer in JOBS}
    if datetime.now(UTC).hour != begun.hour:  # once an hour, bronze stores when it last saw each topic
        found[Layer.BRONZE] = jobs_of_a_start(spark, settings, Layer.BRONZE)
    assert found == JOBS  # of fewer, lower it
