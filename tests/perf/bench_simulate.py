"""How fast the simulator is: generation alone, then generation and a real broker, for both shapes of `make bench`.

    python tests/perf/bench_simulate.py [--messages 1000000] [--generate-only]

CPU seconds are this process's (librdkafka's threads included, the broker's not). Starts an embedded broker of its own.
"""

from __future__ import annotations

import argparse
import collections
import json
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from bench import free_port

from sessionlake.local.broker import start_broker, stop_broker
from sessionlake.settings.model import KafkaSettings, Settings
from sessionlake_lab.simulate.generate import generate_messages
from sessionlake_lab.simulate.scenario import FaultRates, Scenario
from sessionlake_lab.simulate.sink import produce_messages

SHAPES = {"W1: 500 sessions x 200 rows": (500, 200), "W2: 50,000 sessions x 10 rows": (50_000, 10)}


def main() -> None:
    parser = argparse.ArgumentParser(description="Measures the simulator.")
    parser.add_argument("--messages", type=int, default=1_000_000, help="per shape")
    parser.add_argument("--generate-only", action="store_true", help="without a broker")
    arguments = parser.parse_args()
    scenarios = {
        name: Scenario.create_benchmark(sessions=sessions, rows=rows, messages=arguments.messages)
        for name, (sessions, rows) in SHAPES.items()
    }
    scenarios["live content, every fault at 0.1%"] = Scenario(
        rate=100_000, duration_s=arguments.messages / 100_000, faults=FaultRates.create_with_equal_rates(0.001)
    )
    columns = Settings().capture.declared_columns
    for name, scenario in scenarios.items():
        report(name, "generate", lambda scenario=scenario: count(generate_messages(scenario, columns)))
    if arguments.generate_only:
        return
    with tempfile.TemporaryDirectory() as folder:
        settings = Settings(home=Path(folder), kafka=KafkaSettings(bootstrap_servers=f"127.0.0.1:{free_port()}"))
        start_broker(settings)
        try:
            for number, (name, scenario) in enumerate(scenarios.items()):
                mine = Scenario(**{**vars(scenario), "prefix": f"capture.bench{number}-"})
                report(
                    name,
                    "produce",
                    lambda mine=mine: (
                        produce_messages(settings, generate_messages(mine, columns), partitions=2).messages
                    ),
                )
        finally:
            stop_broker(settings)


def report(name: str, what: str, work: Callable[[], int]) -> None:
    """Runs it once and prints one JSON line."""
    wall, cpu = time.perf_counter(), time.process_time()
    messages = work()
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    line = {
        "shape": name,
        "what": what,
        "messages": messages,
        "wall_s": round(wall, 2),
        "cpu_s": round(cpu, 2),
        "per_second": round(messages / wall),
        "load": round(os.getloadavg()[0], 1),
    }
    print(json.dumps(line), flush=True)  # noqa: T201 - the result is the output


def count(messages: Iterator[object]) -> int:
    """Length of an iterator, keeping nothing of it."""
    last = collections.deque(enumerate(messages, 1), maxlen=1)
    return last[0][0] if last else 0


if __name__ == "__main__":
    main()
