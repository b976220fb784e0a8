"""What the simulated sensors send: their own quantities, in their units, within their ranges and on their steps."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from sessionlake.protocol.columns import Column, parse_columns
from sessionlake_lab.simulate.generate import generate_messages
from sessionlake_lab.simulate.scenario import MessageMix, Scenario
from sessionlake_lab.simulate.sensors import FAMILIES, SENSOR_COLUMNS, SensorFamily

SENSORS = parse_columns(SENSOR_COLUMNS)
CALM = replace(MessageMix(), anomalies=0, undeclared=0, unusual=0)


def readings_of(family: str, columns: Sequence[Column] = SENSORS) -> list[dict[str, Any]]:
    scenario = Scenario(rate=500, duration_s=10, rows=20, mix=CALM)
    messages = (
        json.loads(m.value) for m in generate_messages(scenario, columns) if m.topic.startswith(f"capture.{family}")
    )
    return [row for message in messages for row in message.get("rows", ())]


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_a_sensor_sends_its_own_quantities_under_their_names(family: SensorFamily):
    rows = readings_of(family.name)
    assert {name for row in rows for name in row} == {"id", "status", *family.metrics}


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_a_reading_is_within_the_range_of_its_quantity_and_on_its_step(family: SensorFamily):
    for name, quantity in family.metrics.items():
        values = [row[name] for row in readings_of(family.name) if row.get(name) is not None]
        assert len(values) > 100
        assert quantity.low <= min(values) <= max(values) <= quantity.high
        assert np.allclose(np.rint(np.array(values) / quantity.step) * quantity.step, values)


def test_a_thermometer_reads_near_twenty_degrees():
    values = [row["temperature"] for row in readings_of("chamber") if row.get("temperature") is not None]
    assert 15 < min(values) < 20 < max(values) < 25


def test_prices_of_an_order_book_are_on_a_tick_of_five_hundredths():
    prices = [row["price"] for row in readings_of("depth") if row.get("price") is not None]
    assert {round(price * 100) % 5 for price in prices} == {0}


def test_without_columns_of_their_own_all_sensors_fill_the_declared_ones():
    columns = parse_columns({"a": "double", "b": "int", "c": "double"})
    for family in FAMILIES:
        assert {name for row in readings_of(family.name, columns) for name in row} == {"id", "a", "b", "c"}


def test_a_run_id_makes_session_ids_that_do_not_depend_on_the_start():
    keys = [
        {
            m.key
            for m in generate_messages(
                Scenario(rate=100, duration_s=3, rows=3, start_ms=start, run_id="demo0"), SENSORS
            )
        }
        for start in (0, 1_700_000_000_000)
    ]
    assert keys[0] == keys[1]
    assert b"chamber-00-demo0-0000" in keys[0]
