"""What a million messages cost, layer by layer, and beside them the floor: one process with no guarantees at all.

    python tests/perf/bench.py [--messages 1000000] [--rounds 1] [--shape W1] [--form coinbase] [--verify] [--catalog]
        [--json FILE]

Each shape gets a home, an embedded broker and a process of its own; Spark's start is a stage like the others.
CPU seconds are those of the measured process and all its children (the JVM, Python workers), the broker's not.
`--verify` builds silver from bronze once more, as `rebuild silver` does, and compares every row.
With `--rounds 3` the same process goes on with further millions of new sessions: the last is the warm one. With
`--catalog`, a second pipeline reads the same topics, and writes to the tables of a catalog: see `stages.py`. With
`--form`, a second pipeline reads the same data in the form of another system: see `forms.py`.
"""

from __future__ import annotations

import argparse
import json
import socket
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from sessionlake.local.broker import start_broker, stop_broker
from sessionlake.settings.model import KafkaSettings, Settings
from sessionlake_lab.simulate.generate import generate_messages
from sessionlake_lab.simulate.run import build_scenario
from sessionlake_lab.simulate.sink import produce_messages

sys.path.insert(0, str(Path(__file__).parent))
from forms import TRANSLATE, in_form

SHAPES = {"W1": (500, 200), "W2": (50_000, 10)}
STAGES = ("start", "bronze", "silver", "tables", "gold", "verify")
SENSORS = 4
HERE = Path(__file__).parent


def main() -> None:
    parser = argparse.ArgumentParser(description="Measures bronze, silver and gold, and the floor.")
    parser.add_argument("--messages", type=int, default=1_000_000, help="per shape and round")
    parser.add_argument("--rounds", type=int, default=1, help="millions in a row in one process")
    parser.add_argument("--shape", choices=SHAPES, action="append", help="only this shape")
    parser.add_argument("--form", choices=TRANSLATE, action="append", help="also in this form, read by a feed")
    parser.add_argument("--verify", action="store_true", help="also time `verify silver`")
    parser.add_argument("--catalog", action="store_true", help="also into the tables of a catalog")
    parser.add_argument("--json", type=Path, help="also write the figures here")
    arguments = parser.parse_args()
    results: list[dict[str, Any]] = []
    for shape in arguments.shape or SHAPES:
        for where in ("", *(arguments.form or ()), *(["catalog"] if arguments.catalog else [])):
            with tempfile.TemporaryDirectory() as folder:
                results += measure(shape, Path(folder), arguments, where)
    show(results, arguments.messages)
    if arguments.json:
        arguments.json.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")


def measure(shape: str, folder: Path, arguments: argparse.Namespace, where: str) -> list[dict[str, Any]]:
    """Floor first, then the pipeline, over the same topics.

    Args:
        where: A form, or `catalog` if the tables are in one. Empty for the simulator's form, which has a floor.
    """
    sessions, rows = SHAPES[shape]
    messages = arguments.messages
    settings = Settings(home=folder, kafka=KafkaSettings(bootstrap_servers=f"127.0.0.1:{free_port()}"))
    start_broker(settings)
    try:
        produce(settings, 0, sessions, rows, messages, where)
        name = f"{shape} {where}".strip()
        found = [{"shape": name, "round": 1, **line} for line in ([] if where else run("floor.py", settings))]
        more = [*(["verify"] if arguments.verify else []), *([where] if where else [])]
        pipeline = subprocess.Popen(
            [sys.executable, str(HERE / "stages.py"), str(settings.home), settings.kafka.bootstrap_servers, *more],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert pipeline.stdin is not None
        assert pipeline.stdout is not None
        for number in range(arguments.rounds):
            if number:
                produce(settings, number, sessions, rows, messages, where)
            pipeline.stdin.write("go\n")
            pipeline.stdin.flush()
            for line in iter(pipeline.stdout.readline, ""):
                if line.strip() == "done":
                    break
                found.append({"shape": name, "round": number + 1, **json.loads(line)})
        pipeline.stdin.close()
        if pipeline.wait():
            sys.exit(f"the pipeline ended with {pipeline.returncode} after {found[-1]['stage']} of {name}")
        return found
    finally:
        stop_broker(settings)


def produce(settings: Settings, number: int, sessions: int, rows: int, messages: int, form: str) -> None:
    options = {"sensors": SENSORS, "sessions": sessions // SENSORS, "rows": rows, "messages": messages}
    scenario = build_scenario(settings, mode="bench", prefix=f"capture.r{number}-", seed=number, **options)
    records = generate_messages(scenario, settings.capture.declared_columns)
    sent = in_form(form, records, messages) if form in TRANSLATE else records
    produce_messages(settings, sent, partitions=scenario.partitions)


def run(script: str, settings: Settings) -> list[dict[str, Any]]:
    command = [sys.executable, str(HERE / script), str(settings.home), settings.kafka.bootstrap_servers]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return [json.loads(line) for line in done.stdout.splitlines()]


def show(results: list[dict[str, Any]], messages: int) -> None:
    title = f"{messages:,} messages: CPU seconds / wall seconds / Spark jobs"
    table = Table(title=title, title_justify="left")
    table.add_column("stage")
    keys = sorted({(r["shape"], r["round"]) for r in results})
    for shape, number in keys:
        table.add_column(f"{shape}" + (f" #{number}" if number > 1 else ""), justify="right")
    cells = {(r["stage"], r["shape"], r["round"]): cell(r) for r in results}
    for stage in ("floor", *STAGES, "all", "fsync"):
        if not any(name == stage for name, _, _ in cells):
            continue
        table.add_row(stage, *(cells.get((stage, *key), "") for key in keys))
    Console(width=100).print(table)


def cell(result: dict[str, Any]) -> str:
    jobs = f" / {result['jobs']}" if result.get("jobs") else ""
    return f"{result['cpu']:.1f} / {result['wall']:.1f}{jobs}"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


if __name__ == "__main__":
    main()
