"""The demo: broker, sensors with faults, and all three layers, live for a minute; then every table verified."""

from __future__ import annotations

import fcntl
import shutil
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml
from rich.console import Console

from sessionlake.cli.query import fetch
from sessionlake.cli.show import console_on, table_of, text_of
from sessionlake.delta.lake import Lake
from sessionlake.errors import MachineError
from sessionlake.history.report.page import write_report
from sessionlake.local import broker, class_archive
from sessionlake.local.broker_config import free_port
from sessionlake.local.home import require_home
from sessionlake.local.signals import StopFlag
from sessionlake.operations.pipeline import Layer, Pipeline
from sessionlake.protocol.payload import PayloadFormat
from sessionlake.settings.model import DEFAULT_FILE, Integrity, OnViolation, PayloadSettings, Settings
from sessionlake.spark.session import spark_session, stop_spark
from sessionlake.streaming.errors import read_at_once
from sessionlake_lab.cli.demo_late import LatePoints, send_late_points
from sessionlake_lab.cli.demo_view import Progress
from sessionlake_lab.compare import verify
from sessionlake_lab.simulate.readback import truth_from_broker
from sessionlake_lab.simulate.run import SimulationReport, run_simulation

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from sessionlake_lab.truth import Tables

# Enough of each to be seen among some 40,000 messages.
FAULTS = {"duplicates": 0.0005, "gaps": 0.0001, "reorder": 0.002, "late": 0.0005, "malformed": 0.0005}
ANSWERS = {
    "How the sessions fare (silver.sessions)": (
        "SELECT topic, count(*) AS sessions, count_if(status = 'ended') AS ended, count_if(status = 'broken') AS "
        "broken, sum(messages) AS messages FROM silver.sessions GROUP BY topic ORDER BY topic"
    ),
    "Where prices swung most within a minute (gold.metrics_1m)": (
        "SELECT topic, session_id, row_id, date_format(window_start, 'HH:mm') AS minute, round(max - min, 2) AS swing, "
        "points FROM gold.metrics_1m WHERE metric = 'price' ORDER BY swing DESC, row_id LIMIT 5"
    ),
    "Farthest from their rolling average (gold.rolling_average)": (
        "SELECT topic, row_id, date_format(timestamp_millis(ts), 'HH:mm:ss') AS at, round(value, 3) AS value, "
        "round(average, 3) AS average, points FROM gold.rolling_average "
        "WHERE metric = 'price' ORDER BY abs(value - average) DESC, row_id LIMIT 5"
    ),
}
NEXT = (
    "status",
    'query "SELECT reason, count(*) AS messages FROM silver.quarantine GROUP BY reason ORDER BY messages DESC"',
    "session show {session}",
)
_LOOK_SECONDS = 0.25
# As shells give the exit code of a process that a signal ended.
_SIGNALLED = 128
_NAMED = 3
_SHOWN_DIFFERENCES = 5


class _InterruptedError(Exception):
    """Ctrl-C or SIGTERM came; everything is wound up on the way out."""


def run_demo(settings: Settings, *, seconds: float = 45, rate: float = 1000, seed: int = 0) -> int:
    """Runs it and returns the exit code: 0 if every session table is exact, 128 and the signal if one came.

    Everything of it lives in `<home>/demo`, which each run makes anew, with a broker of its own on a free port.

    Raises:
        MachineError: another demo runs in this home.
        SessionlakeError: what stopped the broker, the sensors or a layer.
    """
    begun, out = time.monotonic(), console_on(sys.stdout)
    own = _own_settings(settings)
    scenario = {"duration": seconds, "rate": rate, "seed": seed, **FAULTS}
    with _alone(settings), StopFlag() as stop:
        try:
            with read_at_once():
                code = _Demo(own, out, stop, scenario).play()
        except _InterruptedError:
            out.print(f"interrupted; nothing is left running, and what was committed stays in {_short(own.home)}")
            return _SIGNALLED + stop.signal
        finally:
            stop_spark()
    out.print(f"{time.monotonic() - begun:.0f} s in all", style="dim")
    return code


class _Demo:
    """One run: everything that it starts it also stops, however it ends."""

    def __init__(self, own: Settings, out: Console, stop: StopFlag, scenario: dict[str, Any]) -> None:
        self._own, self._out, self._stop, self._scenario = own, out, stop, scenario
        self._progress = Progress()
        self._connected = threading.Event()
        self._late: LatePoints | None = None

    def play(self) -> int:
        """Live phase, verification, answers; returns the exit code."""
        own, out = self._own, self._out
        sensors: _Background | None = None
        try:
            with self._progress.shown(out):
                sensors = _Background(self._sense)  # beside Spark's own start
                spark = spark_session(own, app="demo", recording=True)
                self._stop.install_handlers()
                report = self._live(spark, sensors)
            _leave_settings(own)
            out.print(f"{report.produced.messages:,} messages went in; comparing every session table with the truth …")
            truth = _Background(lambda: truth_from_broker(own))
            self._wait_for(truth)
        finally:
            self._stop.set()
            if sensors is not None:
                sensors.join()
            broker.down(own)
        if not _exact(spark, own, truth.value, out):
            return 1
        for title, sql in ANSWERS.items():
            self._heed()
            out.print(table_of(*fetch(spark, own, sql), title=title))
        for title, columns, rows in self._late.shown(spark, own) if self._late else ():
            out.print(table_of(columns, rows, title=title))
        self._heed()
        page = write_report(Lake(own).reader(spark), own)
        _next_steps(own, truth.value, page, out)
        if class_archive.find_archive() is None:
            said = "keeping the classes that Spark has loaded, so that its next start is shorter (once) …"
            out.print(said, style="dim")
            class_archive.write_archive(spark)
        return 0

    def _sense(self) -> SimulationReport:
        broker.up(self._own)
        self._connected.set()
        return run_simulation(self._own, stop=self._stop, on_progress=self._progress.sent, **self._scenario)

    def _live(self, spark: SparkSession, sensors: _Background) -> SimulationReport:
        """Runs the layers until the sensors are done and every table has everything."""
        while not self._connected.is_set() and sensors.is_alive():
            self._heed()
            time.sleep(_LOOK_SECONDS)
        sensors.check()
        with Pipeline(spark, self._own, on_commit=self._progress.committed) as pipeline:
            self._progress.phase = "live"
            self._wait_for(sensors, pipeline)
            self._progress.phase = "the sensors are done, the layers catch up"
            self._wait_for(_Background(pipeline.drain), pipeline)
            self._progress.phase = "two points come late"
            self._late = send_late_points(spark, self._own)
            self._wait_for(_Background(pipeline.drain), pipeline)
        report: SimulationReport = sensors.value
        return report

    def _wait_for(self, work: _Background, pipeline: Pipeline | None = None) -> None:
        while work.is_alive():
            self._heed()
            if pipeline is not None:
                pipeline.check()
                latest = pipeline.queries[Layer.GOLD].query.lastProgress
                if latest is not None:
                    self._progress.gold(latest["batchId"], latest["numInputRows"])
            work.join(_LOOK_SECONDS)
        self._heed()
        work.check()

    def _heed(self) -> None:
        if self._stop.signal:
            raise _InterruptedError


class _Background(threading.Thread):
    """Work in a thread; what it raises is raised again where it is asked for."""

    def __init__(self, work: Callable[[], Any]) -> None:
        super().__init__(name="demo", daemon=True)
        self._work = work
        self._error: BaseException | None = None
        self.value: Any = None
        self.start()

    def run(self) -> None:
        try:
            self.value = self._work()
        except BaseException as error:  # noqa: BLE001 - raised again in the thread that asks
            self._error = error

    def check(self) -> None:
        """Raises what the work raised."""
        if self._error is not None:
            raise self._error


@contextmanager
def _alone(settings: Settings) -> Iterator[None]:
    """Keeps two demos of one home apart; clears what an earlier one left, its broker included if it was killed."""
    home = require_home(settings)
    with (home / "demo.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise MachineError(
                f"a demo is running in {home}: wait for its end, or name another home with SESSIONLAKE_HOME"
            ) from None
        own = _own_settings(settings)
        broker.down(own)
        shutil.rmtree(own.home, ignore_errors=True)
        yield


def _own_settings(settings: Settings) -> Settings:
    address = f"127.0.0.1:{free_port()}"
    capture: dict[str, object] = {"integrity": Integrity.STRICT, "on_violation": OnViolation.ISOLATE, "by_topic": ()}
    capture |= {"format": PayloadFormat.JSON, "payload": PayloadSettings()}  # as the sensors that it plays
    kafka = {"bootstrap_servers": address, "options": {}, "topic_pattern": r"capture\..+"}
    return settings.model_copy(
        update={
            "home": settings.home / "demo",
            "catalog": None,
            "checkpoints": None,
            "kafka": settings.kafka.model_copy(update=kafka),
            "capture": settings.capture.model_copy(update=capture),
            "processors": (),  # made for other columns
        }
    )


def _leave_settings(own: Settings) -> None:
    """Leaves in the demo's home what its tables were judged by: commands over it use the same."""
    told = own.capture.model_dump(mode="json", include={"columns", "integrity", "on_violation"})
    text = yaml.safe_dump({"capture": told}, sort_keys=False)
    (own.home / DEFAULT_FILE).write_text(f"# What the demo's tables were judged by.\n{text}", encoding="utf-8")


def _exact(spark: SparkSession, own: Settings, truth: Tables, out: Console) -> bool:
    outcome = verify(spark, Lake(own), truth)
    said = f"{outcome.exact} of {outcome.sessions} session tables exact"
    if not outcome.differences:
        out.print(text_of(said, "bold green").append_text(text_of(f"; {_summary(truth)}", "not bold default")))
        return True
    out.print(text_of(said, "bold red").append_text(text_of("; the first differences:", "not bold default")))
    for (topic, partition, session), difference in list(outcome.differences.items())[:_SHOWN_DIFFERENCES]:
        out.print(f"  {topic} {partition} {session}: {difference}")
    return False


def _summary(truth: Tables) -> str:
    events = Counter((event["event"], event["action"]) for event in truth.integrity_events)
    isolated = sorted({event["session_id"] for event in truth.integrity_events if event["action"] == "isolated"})
    reasons = Counter(str(row["reason"]) for row in truth.quarantine).most_common()
    names = f": {', '.join(isolated[:_NAMED])}{', …' if len(isolated) > _NAMED else ''}" if isolated else ""
    kept = ", ".join(f"{count} {reason}" for reason, count in reasons[:_NAMED])
    return (
        f"{events['duplicate', 'dropped']} duplicates dropped; {len(isolated)} sessions isolated{names}; "
        f"{len(truth.quarantine)} messages in quarantine ({kept}{', …' if len(reasons) > _NAMED else ''})"
    )


def _next_steps(own: Settings, truth: Tables, page: Path, out: Console) -> None:
    command = f"SESSIONLAKE_HOME={_short(own.home)} {_program()}"
    session = max(truth.sessions.values(), key=lambda row: row["messages"])["session_id"]
    out.print(f"What they hold, on one page: {_short(page)}", soft_wrap=True)
    out.print("The tables stay. Next:")
    for words in NEXT:
        out.print(f"  {command} {words.format(session=session)}", soft_wrap=True)


def _short(path: Path) -> str:
    """The path as one would type it here."""
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else str(path)


def _program() -> str:
    """How this command line was called: its name if the shell finds it, else its path."""
    called = Path(sys.argv[0])
    if called.name == "__main__.py":
        return f"{_short(Path(sys.executable))} -m sessionlake"
    return called.name if shutil.which(called.name) == str(called.absolute()) else _short(called.absolute())
