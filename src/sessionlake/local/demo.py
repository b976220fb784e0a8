"""The demo: broker, sensors with faults, and all three layers, live for a minute; then every table verified."""

from __future__ import annotations

import shutil
import socket
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.live import Live
from rich.table import Table

from sessionlake.config import Integrity, OnViolation, Settings
from sessionlake.errors import SessionlakeError
from sessionlake.lake.ledger import LedgerEntry
from sessionlake.lake.tables import Lake
from sessionlake.local import broker
from sessionlake.local.query import select, table_of
from sessionlake.local.simulate import SimulationReport, run_simulation
from sessionlake.local.verify import verify
from sessionlake.pipeline import Pipeline
from sessionlake.runtime.spark import spark_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from sessionlake.local.truth import Tables

# Enough of each to be seen among some 40,000 messages.
FAULTS = {"duplicates": 0.0005, "gaps": 0.0001, "reorder": 0.002, "late": 0.0005, "malformed": 0.0005}
ANSWERS = {
    "Where prices swung most within a minute (gold.metrics_1m)": (
        "SELECT topic, session_id, row_id, window_start, round(max - min, 2) AS swing, points FROM gold.metrics_1m "
        "WHERE metric = 'price' ORDER BY swing DESC, row_id LIMIT 5"
    ),
    "The latest rolling averages (gold.rolling_average)": (
        "SELECT topic, row_id, timestamp_millis(ts) AS at, value, round(average, 3) AS average, points "
        "FROM gold.rolling_average WHERE metric = 'price' ORDER BY ts DESC, row_id LIMIT 5"
    ),
}
out = Console(highlight=False)


def run_demo(settings: Settings, *, seconds: int, rate: int, seed: int) -> int:
    """Runs it and returns the exit code: 0 if every session table is exact.

    Everything of it lives in `<home>/demo`, which each run makes anew, with a broker of its own on a free port.
    """
    begun = time.monotonic()
    own = _own_settings(settings)
    _clear(own)
    progress = _Progress(rate * seconds)
    with _running_broker(own):
        with progress.shown():
            report, spark = _live(own, progress, seconds=seconds, rate=rate, seed=seed)
        out.print(
            f"{report.produced.messages:,} messages went in; comparing every session table with the ground truth ..."
        )
        code = _verify(spark, own)
    if not code:
        _answers(own)
        _next_steps(own)
    out.print(f"[dim]{time.monotonic() - begun:.0f} s in all[/]")
    return code


def _own_settings(settings: Settings) -> Settings:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    capture = {"integrity": Integrity.STRICT, "on_violation": OnViolation.ISOLATE, "by_topic": ()}
    kafka = {"bootstrap_servers": address, "options": {}, "topic_pattern": r"capture\..+"}
    return settings.model_copy(
        update={
            "home": settings.home / "demo",
            "checkpoints": None,
            "kafka": settings.kafka.model_copy(update=kafka),
            "capture": settings.capture.model_copy(update=capture),
        }
    )


def _clear(own: Settings) -> None:
    # A broker of a demo that was killed may still hold the folder.
    broker.down(own)
    shutil.rmtree(own.home, ignore_errors=True)


@contextmanager
def _running_broker(own: Settings) -> Iterator[None]:
    out.print("starting Kafka and Spark ...")
    broker.up(own)
    try:
        yield
    finally:
        broker.down(own)


class _Progress:
    """What has gone in and come out, told by the simulator and by each commit."""

    def __init__(self, expected: int) -> None:
        self._expected = expected
        self._sent = 0
        self._taken: Counter[str] = Counter()
        self._rows = 0
        self._begun = time.monotonic()
        self.phase = "starting"

    def sent(self, messages: int) -> None:
        self._sent = messages

    def committed(self, entry: LedgerEntry) -> None:
        self._taken[entry.layer] += entry.messages
        self._rows += sum(output.rows for output in entry.outputs if output.table == "silver.session_rows")

    @contextmanager
    def shown(self) -> Iterator[None]:
        if not out.is_terminal:
            yield
            return
        with Live(self, console=out, refresh_per_second=4, transient=True):
            yield

    def __rich__(self) -> Table:
        elapsed = max(time.monotonic() - self._begun, 0.001)
        table = Table(title=f"{self.phase}, {elapsed:.0f} s", title_justify="left", title_style="bold")
        for name in ("", "messages", "lag", "per second"):
            table.add_column(name, justify="right" if name else "left")
        table.add_row("sensors -> Kafka", f"{self._sent:,}", "", f"{self._sent / elapsed:,.0f}")
        previous = self._sent
        for layer, label in (
            ("bronze", "bronze.messages"),
            ("silver", "silver.session_changes"),
            ("silver_tables", "silver.session_rows"),
        ):
            taken = self._taken[layer]
            table.add_row(label, f"{taken:,}", f"{max(previous - taken, 0):,}", f"{taken / elapsed:,.0f}")
            previous = taken
        table.add_row("rows merged", f"{self._rows:,}", "", f"{self._rows / elapsed:,.0f}")
        return table


def _live(
    own: Settings, progress: _Progress, *, seconds: int, rate: int, seed: int
) -> tuple[SimulationReport, SparkSession]:
    """Runs sensors and layers together until the sensors are done and every table has everything."""
    stop = threading.Event()
    sensors = _Sensors(own, progress, stop, {"duration": seconds, "rate": rate, "seed": seed, **FAULTS})
    sensors.start()
    pipeline: Pipeline | None = None
    try:
        spark = spark_session(own, app="demo")
        pipeline = Pipeline(spark, own, on_commit=progress.committed)
        pipeline.start()
        progress.phase = "live"
        while sensors.is_alive():
            sensors.join(0.25)
            pipeline.check()
        progress.phase = "the sensors are done, the layers catch up"
        pipeline.drain()
        return sensors.result(), spark
    finally:
        stop.set()
        sensors.join()
        if pipeline is not None:
            pipeline.stop()


class _Sensors(threading.Thread):
    """The simulator in a thread; what it raised is raised where its result is asked for."""

    def __init__(self, own: Settings, progress: _Progress, stop: threading.Event, options: dict[str, Any]) -> None:
        super().__init__(name="sensors", daemon=True)
        self._own, self._progress, self._stop_event, self._options = own, progress, stop, options
        self._report: SimulationReport | None = None
        self._error: BaseException | None = None

    def run(self) -> None:
        try:
            self._report = run_simulation(
                self._own, stop=self._stop_event, on_progress=self._progress.sent, **self._options
            )
        except BaseException as error:  # noqa: BLE001 - raised again in the thread that asks
            self._error = error

    def result(self) -> SimulationReport:
        if self._error is not None:
            raise self._error
        if self._report is None:
            raise SessionlakeError("the sensors ended without a report")
        return self._report


def _verify(spark: SparkSession, own: Settings) -> int:
    from sessionlake.local.simulate.readback import truth_from_broker

    truth = truth_from_broker(own)
    outcome = verify(spark, Lake(own), truth)
    if outcome.differences:
        out.print(f"[bold red]{outcome.exact} of {outcome.sessions} session tables exact[/]")
        for (topic, session), difference in list(outcome.differences.items())[:5]:
            out.print(f"  {topic} {session}: {difference}")
        return 1
    out.print(f"[bold green]{outcome.exact} of {outcome.sessions} session tables exact[/]; {_summary(truth)}")
    return 0


def _summary(truth: Tables) -> str:
    events = Counter((event["event"], event["action"]) for event in truth.integrity_events)
    isolated = sorted({event["session_id"] for event in truth.integrity_events if event["action"] == "isolated"})
    reasons = Counter(str(row["reason"]) for row in truth.quarantine)
    parts = [f"{events['duplicate', 'dropped']} duplicates dropped", f"{len(isolated)} sessions isolated"]
    if isolated:
        parts[-1] += f": {', '.join(isolated[:3])}{' ...' if len(isolated) > 3 else ''}"  # noqa: PLR2004 - a line's worth
    kept = ", ".join(f"{count} {reason}" for reason, count in reasons.most_common(4))
    return "; ".join([*parts, f"{sum(reasons.values())} messages in quarantine ({kept}, ...)"])


def _answers(own: Settings) -> None:
    for title, sql in ANSWERS.items():
        frame = select(own, sql)
        out.print(table_of(frame.columns, [row.asDict() for row in frame.collect()], title))


def _next_steps(own: Settings) -> None:
    home = f"SESSIONLAKE_HOME={own.home}"
    out.print("The tables stay. Next:")
    for command in (
        "status",
        'query "SELECT status, count(*) FROM silver.sessions GROUP BY status"',
        'query "SELECT reason, count(*) FROM silver.quarantine GROUP BY reason"',
    ):
        out.print(f"  {home} .venv/bin/sessionlake {command}", soft_wrap=True)
