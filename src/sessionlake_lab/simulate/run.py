"""Runs a simulation from plain options: sends messages to Kafka and, on request, writes the ground truth to disk."""

from __future__ import annotations

import heapq
import re
import time
from dataclasses import dataclass, fields, replace
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from sessionlake.errors import MachineSetupError, UsageError
from sessionlake.protocol.payload import PayloadFormat
from sessionlake.settings.model import Settings
from sessionlake.settings.section import convert_duration_to_ms
from sessionlake_lab.simulate.generate import generate_messages
from sessionlake_lab.simulate.scenario import FaultRates, MessageMix, Scenario

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path
    from threading import Event

    from sessionlake_lab.simulate.scenario import KafkaRecord
    from sessionlake_lab.simulate.sink import ProduceResult

MODES = ("live", "burst", "bench")
# Short option names and the fields of a scenario that they set.
_SHORT = {"duration": "duration_s", "sessions": "sessions_per_sensor", "reorder": "reordered", "day": "day_s"}
_FAULTS = {item.name for item in fields(FaultRates)}
_MIX = {item.name for item in fields(MessageMix)}
_SCENARIO = {item.name for item in fields(Scenario)} - {"mix", "faults"}


@dataclass(frozen=True)
class SimulationReport:
    """Result of a simulation.

    Attributes:
        scenario: The scenario.
        produced: What was written to Kafka.
        truth: Folder of the ground truth; None if it was not requested.
    """

    scenario: Scenario
    produced: ProduceResult
    truth: Path | None = None

    def to_dict(self) -> dict[str, Any]:
        """Returns the report as plain values, for `--format json`."""
        offsets = sorted(self.produced.offsets.items())
        return {
            "messages": self.produced.messages,
            "value_bytes": self.produced.value_bytes,
            "seconds": round(self.produced.seconds, 3),
            "messages_per_second": round(self.produced.messages_per_second),
            "stopped": self.produced.stopped,
            "sessions": self.scenario.session_count,
            "seed": self.scenario.seed,
            "start_ms": self.scenario.start_ms,
            "offsets": [
                {"topic": topic, "partition": partition, "first": first, "end": end}
                for (topic, partition), (first, end) in offsets
            ],
            "truth": str(self.truth) if self.truth else None,
        }


def run_simulation(
    settings: Settings,
    *,
    mode: str = "live",
    truth: Path | None = None,
    stop: Event | None = None,
    on_progress: Callable[[int], None] | None = None,
    **options: Any,
) -> SimulationReport:
    """Builds a scenario from options and sends its messages to the configured Kafka.

    Args:
        settings: Settings with the broker's address, declared columns, lateness and limits.
        mode: A mode of `build_scenario`. Only `live` sends in real time.
        truth: Folder to write the expected silver tables to, computed from all messages in the topics.
        stop: An event that ends the simulation early. Ctrl-C does the same.
        on_progress: Called with the number of messages sent so far, about every thousand messages.
        options: Options of `build_scenario`.

    Raises:
        UsageError: An option is unknown or out of range, or bronze would not read the topics.
        BrokerError: Kafka cannot be reached or rejects messages.
        MachineSetupError: The Kafka client is not installed.
    """
    scenario = build_scenario(settings, mode=mode, **options)
    return send_scenario(settings, scenario, pace=mode == "live", truth=truth, stop=stop, on_progress=on_progress)


def send_scenario(
    settings: Settings,
    scenario: Scenario,
    *,
    pace: bool = False,
    truth: Path | None = None,
    stop: Event | None = None,
    on_progress: Callable[[int], None] | None = None,
    others: Iterable[KafkaRecord] = (),
) -> SimulationReport:
    """Sends a scenario's messages to the configured Kafka.

    Args:
        settings: Settings with the broker's address and the declared columns.
        scenario: The scenario.
        pace: True to send in real time.
        truth: Folder to write the expected silver tables to, computed from all messages in the topics.
        stop: An event that ends the simulation early. Ctrl-C does the same.
        on_progress: Called with the number of messages sent so far, about every thousand messages.
        others: Messages of other sources in order of time, which are sent between those of the scenario.

    Raises:
        UsageError: Bronze would not read the topics, or `capture.format` is not JSON.
        BrokerError: Kafka cannot be reached or rejects messages.
        MachineSetupError: The Kafka client is not installed.
    """
    _require_topics_match_pattern(settings, scenario)
    if settings.capture.format is not PayloadFormat.JSON:
        raise UsageError(
            f"the simulator writes JSON, but capture.format is {settings.capture.format}",
            fix="Set capture.format to json",
        )
    try:
        from sessionlake_lab.simulate import sink  # imported late, since a Databricks runtime has no Kafka client
    except ModuleNotFoundError as error:
        if error.name != "confluent_kafka":
            raise
        raise MachineSetupError(
            "the simulator needs a Kafka client", fix="Run `pip install 'sessionlake[local]'`"
        ) from None
    of_sensors = generate_messages(scenario, settings.capture.declared_columns)
    messages = heapq.merge(of_sensors, others, key=attrgetter("timestamp"))
    produced = sink.produce_messages(
        settings, messages, partitions=scenario.partitions, pace=pace, stop=stop, on_progress=on_progress
    )
    if truth is not None:
        _write_expected_tables(settings, truth)
    return SimulationReport(scenario, produced, truth)


def build_scenario(settings: Settings, *, mode: str = "live", **options: Any) -> Scenario:
    """Builds a scenario from plain options.

    Args:
        settings: Settings with lateness and the size of the largest message.
        mode: `live`: stream time starts now. `burst`: the same messages, with stream time ending now. `bench`: the
            scenario of `Scenario.create_benchmark`, with a fixed start time; it accepts `messages` and no duration.
        options: Any field of `Scenario`, `MessageMix` or `FaultRates`, or its short name (`duration`, `sessions` of
            each sensor, `reorder`, `day`). None means the default.

    Raises:
        UsageError: An option is unknown or out of range. The text names it and the allowed values.
    """
    if mode not in MODES:
        raise UsageError(f"simulate: unknown mode {mode!r}", fix=f"Use one of {', '.join(MODES)}")
    given = {_SHORT.get(name, name): value for name, value in options.items() if value is not None}
    total = given.pop("messages", None)
    _require_known_options(given)
    limits: dict[str, Any] = {
        "lateness_s": convert_duration_to_ms(settings.capture.lateness) / 1000,
        "max_message_bytes": settings.capture.max_message_bytes,
        "future_skew_s": convert_duration_to_ms(settings.capture.max_future_skew) / 1000,
    }
    base = _build_bench_scenario(given, total) if mode == "bench" else Scenario(**limits)
    mix = replace(base.mix, **{name: value for name, value in given.items() if name in _MIX})
    faults = replace(base.faults, **{name: value for name, value in given.items() if name in _FAULTS})
    plain = {name: value for name, value in given.items() if name in _SCENARIO}
    scenario = replace(base, **{**limits, **plain}, mix=mix, faults=faults)
    if total is not None:
        scenario = replace(scenario, duration_s=total / scenario.rate)
    if mode == "bench" or "start_ms" in given:
        return scenario
    now = time.time_ns() // 1_000_000
    return replace(scenario, start_ms=now if mode == "live" else now - round(scenario.duration_s * 1000))


def _build_bench_scenario(options: dict[str, Any], total_messages: int | None) -> Scenario:
    sensors = options.get("sensors", 4)
    sessions = options.get("sessions_per_sensor", 125) * sensors
    shape = {name: options[name] for name in ("rows", "seed", "rate") if name in options}
    return replace(
        Scenario.create_benchmark(sessions=sessions, messages=total_messages or 1_000_000, **{"rows": 200, **shape}),
        sensors=sensors, sessions_per_sensor=sessions // sensors,
    )  # fmt: skip


def _require_known_options(options: dict[str, Any]) -> None:
    known = _SCENARIO | _MIX | _FAULTS | {"messages", *_SHORT}
    for name in options:
        if name not in known:
            raise UsageError(f"simulate: unknown option {name!r}", fix=f"Use one of {', '.join(sorted(known))}")


def _require_topics_match_pattern(settings: Settings, scenario: Scenario) -> None:
    example = f"{scenario.prefix}chamber-00"
    if not re.fullmatch(settings.kafka.topic_pattern, example):
        raise UsageError(
            f"simulate: bronze would not read topic {example}, because kafka.topic_pattern is "
            f"{settings.kafka.topic_pattern!r}",
            fix="Give a --prefix that the pattern matches",
        )


def _write_expected_tables(settings: Settings, folder: Path) -> None:
    from sessionlake_lab import truth as judge
    from sessionlake_lab.simulate.readback import compute_truth_from_broker

    judge.write_expected_tables(compute_truth_from_broker(settings), folder)
