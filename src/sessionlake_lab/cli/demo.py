"""The demo: runs broker, two sources with faults, and all layers for a minute, then verifies the session tables."""

from __future__ import annotations

import fcntl
import shutil
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml
from rich.console import Console

from sessionlake.cli.query import fetch_query_result
from sessionlake.cli.show import create_console, create_escaped_rich_text, print_table
from sessionlake.delta.lake import Lake
from sessionlake.delta.schemas.names import EVENTS, QUARANTINE
from sessionlake.delta.storage.reading import TableReader, starts_with
from sessionlake.errors import MachineSetupError, SessionlakeError
from sessionlake.history.report.page import write_report
from sessionlake.local import broker, class_archive
from sessionlake.local.broker_config import find_free_port
from sessionlake.local.home import create_home_folder
from sessionlake.local.signals import StopFlag, was_interrupt_recorded
from sessionlake.operations.pipeline import Layer, Pipeline
from sessionlake.settings.model import DEFAULT_FILE, Settings
from sessionlake.spark.session import get_or_start_spark_session, stop_spark
from sessionlake.streaming.errors import raise_explained_errors
from sessionlake_lab.cli.demo_late import SentLatePoints, send_late_points
from sessionlake_lab.cli.demo_sources import (
    BOOK_RATE,
    PRODUCTS,
    build_capture_section,
    build_lake_settings,
    build_sensor_settings,
    verify_order_books,
)
from sessionlake_lab.cli.demo_view import DemoProgress
from sessionlake_lab.compare import verify_session_rows
from sessionlake_lab.simulate.books import BOOK_TOPIC, OrderBook, generate_order_book_messages, make_order_books
from sessionlake_lab.simulate.readback import compute_truth_from_broker
from sessionlake_lab.simulate.run import SimulationReport, build_scenario, send_scenario

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from sessionlake_lab.truth import ExpectedTables

# Rates at which each fault occurs several times among some 40,000 messages.
FAULTS = {"duplicates": 0.0005, "gaps": 0.0001, "reorder": 0.002, "late": 0.0005, "malformed": 0.0005}
ANSWERS = {
    "Sessions by topic (silver.sessions)": (
        "SELECT topic, count(*) AS sessions, count_if(status = 'ended') AS ended, count_if(status = 'broken') AS "
        "broken, sum(messages) AS messages FROM silver.sessions GROUP BY topic ORDER BY topic"
    ),
    "Largest swings of temperature within a minute, in °C (gold.metrics_1m)": (
        "SELECT session_id, row_id, date_format(window_start, 'HH:mm') AS minute, round(max - min, 2) AS swing, "
        "points FROM gold.metrics_1m WHERE metric = 'temperature' ORDER BY swing DESC, row_id LIMIT 5"
    ),
    "Prices farthest from their rolling average (gold.rolling_average)": (
        "SELECT topic, row_id, date_format(timestamp_millis(ts), 'HH:mm:ss') AS at, round(value, 3) AS value, "
        "round(average, 3) AS average, points FROM gold.rolling_average "
        "WHERE metric = 'price' ORDER BY abs(value - average) DESC, row_id LIMIT 5"
    ),
}
NEXT = (
    "status",
    'query "SELECT reason, count(*) AS messages FROM silver.quarantine GROUP BY reason ORDER BY messages DESC"',
    "session show {session}",
    'query "SELECT session_id, side, book_price, book_qty FROM silver.book ORDER BY session_id, side, book_price"',
)
_LOOK_SECONDS = 0.25
# With the seed it is part of the session ids, which are the same in every run with this seed. The home was empty.
_RUN = "demo"
# Shells report this plus the signal's number as the exit code of a process that a signal ended.
_SIGNALLED = 128
_NAMED = 3
_SHOWN_DIFFERENCES = 5


class _DemoInterruptedError(Exception):
    """Ctrl-C or SIGTERM arrived. Each block that it passes through stops what it has started."""


def run_demo(settings: Settings, *, seconds: float = 45, rate: float = 1000, seed: int = 0) -> int:
    """Runs the demo in `<home>/demo`, which is deleted first, with its own broker on a free port.

    Runs with the same arguments send the same messages, except for their times.

    Returns:
        The exit code: 0 if every session table is exact, 1 if not, 128 plus the signal's number if one arrived.

    Raises:
        MachineSetupError: Another demo runs in this home.
        SessionlakeError: The broker, the sensors or a layer failed.
    """
    begun, out = time.monotonic(), create_console(sys.stdout)
    demo_settings = _make_demo_settings(settings)
    scenario = {"duration": seconds, "rate": rate, "seed": seed, "run_id": f"{_RUN}{seed}", **FAULTS}
    with _lock_and_empty_demo_home(settings), StopFlag() as stop:
        try:
            with raise_explained_errors():
                code = _DemoRun(demo_settings, out, stop, scenario).run_and_verify()
        except (_DemoInterruptedError, KeyboardInterrupt, SessionlakeError) as error:
            is_interrupted = stop.signal or was_interrupt_recorded() or not isinstance(error, SessionlakeError)
            if not is_interrupted:
                raise
            out.print(
                f"interrupted: everything was stopped, and committed data stays in {_shorten_path(demo_settings.home)}"
            )
            return _SIGNALLED + (stop.signal or signal.SIGINT)
        finally:
            stop_spark()
    out.print(f"{time.monotonic() - begun:.0f} s in all", style="dim")
    return code


class _DemoRun:
    """One run of the demo. It stops everything that it has started, however it ends."""

    def __init__(self, settings: Settings, out: Console, stop: StopFlag, scenario: dict[str, Any]) -> None:
        self._sensors, self._out, self._stop, self._scenario = settings, out, stop, scenario
        self._settings = build_lake_settings(settings)
        self._books = make_order_books(PRODUCTS, scenario["seed"])
        self._progress = DemoProgress()
        self._connected = threading.Event()
        self._late: SentLatePoints | None = None

    def run_and_verify(self) -> int:
        """Runs the live phase, verifies the tables and prints results. Returns the exit code."""
        settings, out = self._settings, self._out
        sensors: _BackgroundThread | None = None
        try:
            with self._progress.draw_progress_during_block(out):
                sensors = _BackgroundThread(self._run_sensors)  # while Spark starts
                with self._stop.raise_interrupt_on_signal():
                    spark = get_or_start_spark_session(settings, app="demo", records_classes=True)
                    self._stop.install_signal_handlers()
                report = self._run_live_phase(spark, sensors)
            _write_demo_capture_settings(self._sensors)
            out.print(f"{report.produced.messages:,} messages sent; comparing every session table with the truth …")
            truth = _BackgroundThread(lambda: compute_truth_from_broker(self._sensors))
            self._wait_for_background_thread(truth)
        finally:
            self._stop.set()
            if sensors is not None:
                sensors.join()
            broker.stop_broker(settings)
        are_exact = _verify_and_print_session_tables(spark, settings, truth.value, out)
        if not (_verify_and_print_order_books(spark, settings, self._books, out) and are_exact):
            return 1
        for title, sql in ANSWERS.items():
            self._raise_if_stopped_or_interrupted()
            print_table(out, *fetch_query_result(spark, settings, sql), title=title)
        for title, columns, rows in self._late.make_correction_and_alert_tables(spark, settings) if self._late else ():
            print_table(out, columns, rows, title=title)
        self._raise_if_stopped_or_interrupted()
        page = write_report(Lake(settings).reader(spark), settings)
        _print_next_steps(settings, truth.value, page, out)
        if class_archive.find_class_archive() is None:
            out.print("storing Spark's loaded classes, so that its next start is faster (once) …", style="dim")
            class_archive.write_class_archive(spark)
        return 0

    def _run_sensors(self) -> SimulationReport:
        broker.start_broker(self._settings)
        self._connected.set()
        scenario = build_scenario(self._sensors, mode="live", **self._scenario)
        others = generate_order_book_messages(
            self._books, start_ms=scenario.start_ms, duration_s=scenario.duration_s, rate=BOOK_RATE, seed=scenario.seed
        )
        sent = self._progress.record_sent_messages
        return send_scenario(self._sensors, scenario, pace=True, stop=self._stop, on_progress=sent, others=others)

    def _run_live_phase(self, spark: SparkSession, sensors: _BackgroundThread) -> SimulationReport:
        """Runs the layers until the sensors are done and every table has all messages."""
        while not self._connected.is_set() and sensors.is_alive():
            self._raise_if_stopped_or_interrupted()
            time.sleep(_LOOK_SECONDS)
        sensors.raise_error_of_thread()
        with Pipeline(spark, self._settings, on_commit=self._progress.record_batch) as pipeline:
            self._progress.phase = "live"
            self._wait_for_background_thread(sensors, pipeline)
            self._progress.phase = "the sensors are done, the layers catch up"
            self._wait_for_background_thread(_BackgroundThread(pipeline.wait_until_all_available_processed), pipeline)
            self._progress.phase = "two late points arrive"
            self._late = send_late_points(spark, self._sensors)
            self._wait_for_background_thread(_BackgroundThread(pipeline.wait_until_all_available_processed), pipeline)
        report: SimulationReport = sensors.value
        return report

    def _wait_for_background_thread(self, work: _BackgroundThread, pipeline: Pipeline | None = None) -> None:
        """Waits until a thread ends, and raises its exception. Raises also if a signal arrives or a layer fails."""
        while work.is_alive():
            self._raise_if_stopped_or_interrupted()
            if pipeline is not None:
                pipeline.raise_error_of_failed_layer()
                latest = pipeline.queries[Layer.GOLD].query.lastProgress
                if latest is not None:
                    self._progress.record_gold_batch(latest["batchId"], latest["numInputRows"])
            work.join(_LOOK_SECONDS)
        self._raise_if_stopped_or_interrupted()
        work.raise_error_of_thread()

    def _raise_if_stopped_or_interrupted(self) -> None:
        """Raises _DemoInterruptedError if a signal has arrived."""
        if self._stop.signal:
            raise _DemoInterruptedError


class _BackgroundThread(threading.Thread):
    """A thread that keeps the result and the exception of its work."""

    def __init__(self, work: Callable[[], Any]) -> None:
        super().__init__(name="demo", daemon=True)
        self._work = work
        self._error: BaseException | None = None
        self.value: Any = None
        self.start()

    def run(self) -> None:
        try:
            self.value = self._work()
        except BaseException as error:  # noqa: BLE001 - raise_error_of_thread raises it in another thread
            self._error = error

    def raise_error_of_thread(self) -> None:
        """Raises the exception with which the work in the background failed, if it failed."""
        if self._error is not None:
            raise self._error


@contextmanager
def _lock_and_empty_demo_home(settings: Settings) -> Iterator[None]:
    """Locks the demo's home, stops a broker that a killed demo left running, and deletes the home's content."""
    home = create_home_folder(settings)
    with (home / "demo.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise MachineSetupError(
                f"a demo is running in {home}", fix="Wait until it ends, or name another home with SESSIONLAKE_HOME"
            ) from None
        demo_settings = _make_demo_settings(settings)
        broker.stop_broker(demo_settings)
        shutil.rmtree(demo_settings.home, ignore_errors=True)
        yield


def _make_demo_settings(settings: Settings) -> Settings:
    """Returns the settings of the demo's sensors. Those of its lake are made from them."""
    kafka = {"bootstrap_servers": f"127.0.0.1:{find_free_port()}", "options": {}}
    demo_settings = settings.model_copy(
        update={
            "home": settings.home / "demo",
            "catalog": None,
            "checkpoints": None,
            "kafka": settings.kafka.model_copy(update=kafka),
            "processors": (),  # the user's processors need columns that the demo may lack
        }
    )
    return build_sensor_settings(demo_settings)


def _write_demo_capture_settings(sensors: Settings) -> None:
    """Writes the demo's capture settings into its home, so that later commands on the home use the same ones."""
    text = yaml.safe_dump({"capture": build_capture_section(sensors)}, sort_keys=False, allow_unicode=True)
    (sensors.home / DEFAULT_FILE).write_text(f"# The capture settings of the demo's tables.\n{text}", encoding="utf-8")


def _verify_and_print_order_books(
    spark: SparkSession, settings: Settings, books: Sequence[OrderBook], out: Console
) -> bool:
    outcome = verify_order_books(spark, settings, books)
    is_exact = outcome.exact == outcome.books
    out.print(create_escaped_rich_text(str(outcome), "bold green" if is_exact else "bold red"))
    return is_exact


def _verify_and_print_session_tables(
    spark: SparkSession, settings: Settings, truth: ExpectedTables, out: Console
) -> bool:
    outcome = verify_session_rows(spark, Lake(settings), truth, {BOOK_TOPIC})
    result = f"{outcome.exact} of {outcome.session_count} session tables exact"
    if not outcome.differences:
        out.print(
            create_escaped_rich_text(result, "bold green").append_text(
                create_escaped_rich_text(
                    f"; {_summarize_integrity_events(Lake(settings).reader(spark))}", "not bold default"
                )
            )
        )
        return True
    out.print(
        create_escaped_rich_text(result, "bold red").append_text(
            create_escaped_rich_text("; the first differences:", "not bold default")
        )
    )
    for (topic, partition, session), difference in list(outcome.differences.items())[:_SHOWN_DIFFERENCES]:
        out.print(f"  {topic} {partition} {session}: {difference}")
    return False


def _summarize_integrity_events(reader: TableReader) -> str:
    """Returns how silver has judged the sensors' messages, as text."""
    sensors = ("topic", starts_with, "capture.")
    found = list(reader.read_rows(EVENTS, sensors, columns=["event", "action", "session_id"]))
    events = Counter((event["event"], event["action"]) for event in found)
    isolated = sorted({event["session_id"] for event in found if event["action"] == "isolated"})
    quarantine = [str(row["reason"]) for row in reader.read_rows(QUARANTINE, sensors, columns=["reason"])]
    reasons = sorted(Counter(quarantine).items(), key=lambda item: (-item[1], item[0]))
    sessions = f"{len(isolated)} session{'' if len(isolated) == 1 else 's'}"
    names = f": {', '.join(isolated[:_NAMED])}{', …' if len(isolated) > _NAMED else ''}" if isolated else ""
    quarantined = ", ".join(f"{count} {reason}" for reason, count in reasons[:_NAMED])
    return (
        f"{events['duplicate', 'dropped']} duplicates dropped; {sessions} isolated{names}; "
        f"{len(quarantine)} of their messages in quarantine ({quarantined}{', …' if len(reasons) > _NAMED else ''})"
    )


def _print_next_steps(settings: Settings, truth: ExpectedTables, page: Path, out: Console) -> None:
    command = f"SESSIONLAKE_HOME={_shorten_path(settings.home)} {_find_program_name()}"
    session = max(truth.sessions.values(), key=lambda row: row["messages"])["session_id"]
    out.print(f"A report on one page: {_shorten_path(page)}", soft_wrap=True)
    out.print("The tables are kept. Try next:")
    for words in NEXT:
        out.print(f"  {command} {words.format(session=session)}", soft_wrap=True)


def _shorten_path(path: Path) -> str:
    """Returns the path relative to the working folder if it is below it, else the full path."""
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else str(path)


def _find_program_name() -> str:
    """Returns how to call this command line: its name if the shell finds it, else its path."""
    called = Path(sys.argv[0])
    if called.name == "__main__.py":
        return f"{_shorten_path(Path(sys.executable))} -m sessionlake"
    return called.name if shutil.which(called.name) == str(called.absolute()) else _shorten_path(called.absolute())
