"""How much code one must enter to follow one thing that the package does.

    python tests/perf/trace_modules.py [--modules]

Each scenario runs once, and every call on the main thread is seen. What runs in Spark's threads and workers is not.

- modules: the modules of `sessionlake` of which a function was called, without `sessionlake.settings`.
- returns: how often a reader comes back to a module that was entered before. A call counts if it goes from one module
  into another that an earlier call had entered. Each pair of calling and called module counts once, so a loop adds
  nothing. That a function ends is no call.
- calls: all calls from one module into another, loops included.

The caller is the nearest function of `sessionlake` that is under way, even if a library's function is between. What a
module does while it is imported counts nowhere, and what one scenario has cached, the next computes again.
`--modules` also lists the modules in order of first entry.
"""

from __future__ import annotations

import argparse
import json
import socket
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from types import FrameType
from typing import Any

import pyarrow as pa
from rich.console import Console
from rich.table import Table

from sessionlake.bronze.job import start_kafka_job as start_bronze
from sessionlake.cli.forget import forget_session
from sessionlake.cli.rebuild import verify_silver
from sessionlake.delta.lake import Lake
from sessionlake.delta.schemas.names import SESSIONS
from sessionlake.gold.job import start as start_gold
from sessionlake.local.broker import start_broker, stop_broker
from sessionlake.settings.model import CaptureSettings, KafkaSettings, Settings
from sessionlake.silver.fold.pack import ShardMessagePacker
from sessionlake.silver.fold.schemas import SilverPayloadKind, decode_report
from sessionlake.silver.fold.shard import SilverFold
from sessionlake.silver.fold.unpack import unpack_rows
from sessionlake.silver.job import start as start_silver
from sessionlake.silver.merge.merger import TableMerger
from sessionlake.spark.session import get_or_start_spark_session, stop_spark
from sessionlake.streaming.payloads import build_message_decode_rules
from sessionlake_lab.simulate.run import run_simulation

PACKAGE = "sessionlake"
LEFT_OUT = "sessionlake.settings"
OF_PROCESS = "sessionlake.local"
"""Its caches belong to the process, such as the folder of temporary files."""


class Calls:
    """Calls between modules, in order.

    Attributes:
        modules: in order of first entry.
        returns: pairs of calling and called module, where the called one was entered before by another.
        count: all calls from one module into another.
    """

    def __init__(self) -> None:
        self.modules: list[str] = []
        self.returns: list[tuple[str, str]] = []
        self.count = 0
        self._pairs: set[tuple[str, str]] = set()
        self._importing = 0

    def add(self, caller: str, called: str) -> None:
        """Takes note of a call; an empty caller is the scenario itself."""
        if caller == called:
            return
        self.count += 1
        if called not in self.modules:
            self.modules.append(called)
        elif (caller, called) not in self._pairs:
            self.returns.append((caller, called))
        self._pairs.add((caller, called))

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Sees the calls that this thread makes in the block."""
        sys.setprofile(self._see)
        try:
            yield
        finally:
            sys.setprofile(None)

    def _see(self, frame: FrameType, event: str, _: object) -> None:
        if event not in {"call", "return"} or not (called := module_of(frame)):
            return
        if frame.f_code.co_name == "<module>":
            self._importing += 1 if event == "call" else -1
        elif event == "call" and not self._importing:
            self.add(caller_of(frame), called)


def module_of(frame: FrameType) -> str:
    """The module of the package that a function is of; empty for all others."""
    name = str(frame.f_globals.get("__name__", ""))
    inside = f"{name}.".startswith(f"{PACKAGE}.") and not f"{name}.".startswith(f"{LEFT_OUT}.")
    return name if inside else ""


def caller_of(frame: FrameType) -> str:
    """The module of the nearest function of the package that has led to the call; empty if there is none."""
    above = frame.f_back
    while above and not module_of(above):
        above = above.f_back
    return module_of(above) if above else ""


def main() -> None:
    parser = argparse.ArgumentParser(description="Counts the modules that one enters to follow one thing.")
    parser.add_argument("--modules", action="store_true", help="also list the modules, in order of first entry")
    arguments = parser.parse_args()
    capture = Settings(home=Path()).capture
    found = {"one message": traced(lambda: one_message(capture))[0]}
    with tempfile.TemporaryDirectory() as folder:
        found |= on_a_home(Path(folder))
    show(found, modules=arguments.modules)


def traced(work: Callable[[], Any]) -> tuple[Calls, Any]:
    """The calls that the work makes, and what it returns."""
    for name, module in [*sys.modules.items()]:
        if name.startswith(f"{PACKAGE}.") and not name.startswith(OF_PROCESS):
            for value in vars(module).values():
                getattr(value, "cache_clear", int)()
    calls = Calls()
    with calls.watched():
        result = work()
    return calls, result


def one_message(capture: CaptureSettings) -> None:
    """Decodes, judges and folds one JSON message, without Spark."""
    body = {"type": "snapshot", "seq": 0, "ts": 1_700_000_000_000, "rows": [{"id": "r0", "price": 1.0, "qty": 1}]}
    now = datetime.fromtimestamp(1_700_000_000, UTC)
    time = pa.timestamp("us", tz="UTC")
    raw = pa.table(
        {
            "shard": pa.array([0], pa.int32()),
            "topic": ["capture.a"],
            "partition": pa.array([0], pa.int32()),
            "offset": [0],
            "timestamp": pa.array([now], time),
            "key": [b"session"],
            "value": [json.dumps(body).encode()],
            "ingested_at": pa.array([now], time),
        }
    )
    chunks = [
        row["chunk"]
        for row in ShardMessagePacker(build_message_decode_rules(capture), 1).pack_message_block(raw).to_pylist()
    ]
    _, payloads = SilverFold(capture.declared_columns, capture)(0, None, chunks)
    changes = [payload for kind, payload in payloads if kind == SilverPayloadKind.CHANGES]
    [report] = [decode_report(payload) for kind, payload in payloads if kind == SilverPayloadKind.REPORT]
    assert unpack_rows(changes, 0).num_rows == report.rows[SilverPayloadKind.CHANGES]


def on_a_home(folder: Path) -> dict[str, Calls]:
    """Every other scenario, over one small batch from a broker of its own."""
    settings = Settings(home=folder, kafka=KafkaSettings(bootstrap_servers=f"127.0.0.1:{free_port()}"))
    start_broker(settings)
    try:
        run_simulation(settings, mode="bench", prefix="capture.", sensors=1, sessions=2, rows=5, messages=200)
        return through_layers(get_or_start_spark_session(settings), settings)
    finally:
        stop_spark()
        stop_broker(settings)


def through_layers(spark: Any, settings: Settings) -> dict[str, Calls]:
    """A start ends with its query's start: what the query does then is not seen."""
    found = {}
    for layer, start in (("bronze", start_bronze), ("silver", start_silver), ("gold", start_gold)):
        found[f"start of {layer}"], query = traced(lambda start=start: start(spark, settings, once=True))
        query.wait()
        if layer == "silver":
            TableMerger(spark, settings).merge_all_pending_batches()
    found["verify silver"], exact = traced(lambda: verify_silver(spark, settings, lambda _: None))
    assert exact
    session = Lake(settings).read(spark, SESSIONS).orderBy("session_id").first()["session_id"]
    found["forget"], _ = traced(lambda: forget_session(spark, settings, session, None, 0))
    return found


def show(found: dict[str, Calls], *, modules: bool) -> None:
    table = Table("scenario")
    for column in ("modules", "returns", "calls"):
        table.add_column(column, justify="right")
    for scenario, calls in found.items():
        table.add_row(scenario, f"{len(calls.modules)}", f"{len(calls.returns)}", f"{calls.count:,}")
    console = Console(width=100)
    console.print(table)
    for scenario, calls in found.items() if modules else ():
        console.print(f"\n{scenario}", *calls.modules, sep="\n  ", highlight=False)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


if __name__ == "__main__":
    main()
