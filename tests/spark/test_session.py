from __future__ import annotations

import contextlib
import os
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa
import pytest

from sessionlake.cli.query import fetch_query_result
from sessionlake.delta import lake as tables
from sessionlake.delta.lake import Lake
from sessionlake.delta.schemas.names import EVENTS, RULES
from sessionlake.local.jars import get_cache_folder
from sessionlake.settings.model import Settings
from sessionlake.spark import frames
from sessionlake.spark.frames import convert_to_spark_frame, keep_small_frame_in_one_task
from sessionlake.spark.session import get_or_start_spark_session
from support.lakes import write_rows

# Starts a session, says the ids of the processes below it, and then does as the test wants.
_PROGRAM = """
import os, sys, time, psutil
from sessionlake.settings.model import load_settings
from sessionlake.spark.session import get_or_start_spark_session, stop_spark
begun = time.monotonic()
spark = get_or_start_spark_session(load_settings(), records_classes="SESSIONLAKE_CACHE" in os.environ)
print(time.monotonic() - begun, flush=True)
same = lambda batches: batches
rows = spark.range(4).mapInArrow(same, "id long").count()
started = [child.pid for child in psutil.Process().children(recursive=True)]
print(*started, flush=True)

def left():
    # That one has ended, and whose parent has, too, is the system's to take note of.
    found = []
    for pid in started:
        try:
            process = psutil.Process(pid)
            if process.status() != psutil.STATUS_ZOMBIE or process.ppid() == os.getpid():
                found.append(process)
        except psutil.NoSuchProcess:
            pass
    return found
"""


def _program(home: Path, then: str, **environment: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", _PROGRAM + then],
        # Java says so when it takes options from the environment, which a user's need not have.
        env={k: v for k, v in os.environ.items() if k != "JDK_JAVA_OPTIONS"}
        | {"SESSIONLAKE_HOME": str(home)}
        | environment,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip


def _pids(process: subprocess.Popen[str]) -> list[int]:
    process.stdout.readline()
    return [int(pid) for pid in process.stdout.readline().split()]


def _gone(pids: list[int], seconds: float = 15) -> bool:
    end = time.monotonic() + seconds
    while time.monotonic() < end and any(psutil.pid_exists(pid) for pid in pids):
        time.sleep(0.1)
    return not any(psutil.pid_exists(pid) for pid in pids)


def test_the_session_writes_and_reads_delta(spark, tmp_path):
    spark.range(3).write.format("delta").save(str(tmp_path / "t"))
    assert spark.read.format("delta").load(str(tmp_path / "t")).count() == 3


def test_asked_again_it_is_the_same_session(spark, settings):
    assert get_or_start_spark_session(settings).sparkContext is spark.sparkContext


def test_workers_run_this_interpreter(spark):
    def interpreter(batches: Iterator[Any]) -> Iterator[Any]:
        import pyarrow as pa

        for _ in batches:
            yield pa.RecordBatch.from_pydict({"path": [sys.executable]})

    found = spark.range(1).mapInArrow(interpreter, "path string").first()["path"]
    assert Path(found).samefile(sys.executable)


def test_times_are_utc(spark):
    assert spark.sql("select string(timestamp_millis(0)) as t").first()["t"] == "1970-01-01 00:00:00"


def test_an_arrow_table_with_empty_chunks_becomes_a_frame_of_all_its_rows(spark):
    chunks = pa.concat_tables([pa.table({"id": pa.array(range(count), pa.int64())}) for count in (0, 2, 0, 0, 3)])
    assert sorted(row["id"] for row in convert_to_spark_frame(spark, chunks).collect()) == [0, 0, 1, 1, 2]


@pytest.mark.parametrize("count", [0, 3, 4])
def test_few_rows_are_read_once_and_more_stay_where_they_are(spark, monkeypatch: pytest.MonkeyPatch, count: int):
    monkeypatch.setattr(frames, "_FEW", 3)
    frame = spark.range(count).selectExpr("id", "array(id, null) AS ids", "timestamp_millis(-id) AS at")
    found = keep_small_frame_in_one_task(frame)
    assert (found is frame, found.schema) == (count > 3, frame.schema)
    assert sorted(found.collect()) == sorted(frame.collect())


@pytest.mark.parametrize("few", [1, 2])
def test_a_table_in_a_folder_is_read_alike_whether_it_is_small_or_not(
    spark, settings: Settings, monkeypatch: pytest.MonkeyPatch, few: int
):
    monkeypatch.setattr(tables, "_SMALL_ROWS", few)
    lake = Lake(settings)
    lake.create_or_update_tables(spark, [EVENTS])
    for offset in range(2):
        write_rows(spark, lake, EVENTS, [{"topic": "capture.a", "partition": 0, "offset": offset, "_batch": 0}])
    found, whole = lake.read_small_table_into_memory(spark, EVENTS), lake.read(spark, EVENTS)
    assert found.dtypes == whole.dtypes
    assert sorted(found.collect(), key=repr) == sorted(whole.collect(), key=repr)
    assert bool(found.inputFiles()) == (few < 2)


def test_the_kafka_source_is_there(spark):
    source = spark.readStream.format("kafka").option("subscribe", "t").option("kafka.bootstrap.servers", "127.0.0.1:1")
    assert "offset" in source.load().columns


def test_only_loopback_is_listened_on(spark):
    del spark
    listening = []
    for process in (psutil.Process(), *psutil.Process().children(recursive=True)):
        with contextlib.suppress(psutil.NoSuchProcess, FileNotFoundError):  # it may have ended since
            listening += [c.laddr.ip for c in process.net_connections("tcp") if c.status == psutil.CONN_LISTEN]
    assert listening
    assert {ip.removeprefix("::ffff:") for ip in listening} <= {"127.0.0.1", "::1"}


@pytest.mark.soak
def test_a_version_that_was_not_tested_is_started_by_pyspark_and_ends_as_well(tmp_path):
    untested = "from sessionlake.local import gateway\ngateway.TESTED_SPARK = ()\n"
    then = """
spark.range(3).write.format("delta").save(f"{sys.argv[1]}/t")
print(spark.read.format("delta").load(f"{sys.argv[1]}/t").count(), spark.conf.get("spark.driver.memory"))
print(spark._jvm.java.lang.System.getProperty("sessionlake.log"))
stop_spark()
print(left())
"""
    process = subprocess.run(
        [sys.executable, "-c", untested + _PROGRAM + then, str(tmp_path)],
        env=os.environ | {"SESSIONLAKE_HOME": str(tmp_path / "a home")},
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    log = tmp_path / "a home" / "logs" / "sessionlake.log"
    assert (process.stdout.splitlines()[2:], process.returncode) == (["3 2g", str(log), "[]"], 0), process.stderr
    assert "starts Spark itself" in process.stderr
    assert log.exists()


@pytest.mark.soak
def test_a_killed_python_leaves_no_process_behind(tmp_path):
    process = _program(tmp_path / "home", "time.sleep(60)")
    pids = _pids(process)
    process.kill()
    process.communicate()
    assert pids
    assert _gone(pids)


def test_a_session_prints_nothing_logs_what_fails_and_after_ctrl_c_is_stopped_in_order_and_started_again(tmp_path):
    then = """
try:
    try:
        spark.range(2).selectExpr("1 / id").collect()
    except Exception:
        print("caught", flush=True)
    time.sleep(60)
except KeyboardInterrupt:
    print(spark.range(5).mapInArrow(same, "id long").count(), flush=True)
    stop_spark()
    print(left())
    print(get_or_start_spark_session(load_settings()).range(3).count())
"""
    process = _program(tmp_path / "home", then)
    pids = _pids(process)
    assert process.stdout.readline() == "caught\n"
    os.killpg(process.pid, signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert (out.split(), err, process.returncode) == (["5", "[]", "3"], "", 0)
    assert _gone(pids)
    assert (tmp_path / "home" / "logs" / "sessionlake.out").read_text() == ""
    assert "DIVIDE_BY_ZERO" in (tmp_path / "home" / "logs" / "sessionlake.log").read_text()


@pytest.mark.soak  # `make test` begins with it, where there are none yet
def test_the_classes_of_one_jvm_are_kept_and_taken_by_the_next(tmp_path):
    cache = tmp_path / "cache" / "jars"
    cache.mkdir(parents=True)
    for jars in (folder for folder in get_cache_folder().glob("jars/*") if folder.is_dir()):
        (cache / jars.name).symlink_to(jars)
    then = """
from sessionlake.local.class_archive import find_class_archive, write_class_archive
options = spark._jvm.java.lang.management.ManagementFactory.getRuntimeMXBean().getInputArguments()
before = find_class_archive()
write_class_archive(spark)
print(before is None, f"-XX:SharedArchiveFile={find_class_archive()}" in options, spark.range(3).count())
stop_spark()
"""
    for said in ("True False 3", "False True 3"):
        process = _program(tmp_path / "home", then, SESSIONLAKE_CACHE=str(cache.parent))
        _pids(process)
        assert process.communicate(timeout=240) == (f"{said}\n", "")
    assert (tmp_path / "home" / "logs" / "sessionlake.out").read_text() == ""


_FAIL = """
import sys
from sessionlake.settings.model import load_settings
from sessionlake.errors import SessionlakeError
from sessionlake.spark.session import get_or_start_spark_session
try:
    get_or_start_spark_session(load_settings())
except SessionlakeError as error:
    sys.exit(str(error))
"""


@pytest.mark.parametrize(
    ("environment", "text"),
    [
        ({"JAVA_HOME": "/nowhere"}, "JAVA_HOME is /nowhere, but"),
        ({"SESSIONLAKE_HOME": "/proc/home"}, "home /proc/home cannot be written"),
    ],
)
def test_what_the_machine_lacks_is_one_line(tmp_path, environment, text):
    given = os.environ | {"SESSIONLAKE_HOME": str(tmp_path)} | environment
    done = subprocess.run([sys.executable, "-c", _FAIL], env=given, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert text in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_on_databricks_the_platform_s_session_is_taken_and_only_results_and_state_stores_are_set(spark, monkeypatch):
    monkeypatch.setenv("DATABRICKS_RUNTIME_VERSION", "17.3")
    partitions = spark.conf.get("spark.sql.shuffle.partitions")
    try:
        taken = get_or_start_spark_session(Settings(home="/proc/home", silver={"shards": 24}, gold={"shards": 16}))
        assert taken.sparkContext is spark.sparkContext
        assert taken.conf.get("spark.sql.session.timeZone") == "UTC"
        assert taken.conf.get("spark.sql.shuffle.partitions") == "24"
    finally:
        spark.conf.set("spark.sql.shuffle.partitions", partitions)


def _has_a_jvm(process: psutil.Process) -> bool:
    return any("java" in child.name() for child in process.children())


def _talks_to_it(process: psutil.Process) -> bool:
    return any(c.status == psutil.CONN_ESTABLISHED for c in process.net_connections("tcp"))


@pytest.mark.parametrize(
    ("number", "begun"),
    [
        (signal.SIGINT, _talks_to_it),
        pytest.param(signal.SIGTERM, _has_a_jvm, marks=pytest.mark.soak),
        pytest.param(signal.SIGINT, _has_a_jvm, marks=pytest.mark.soak),
        pytest.param(signal.SIGTERM, _talks_to_it, marks=pytest.mark.soak),
    ],
)
def test_ctrl_c_while_spark_starts_ends_a_run_at_once_and_its_jvm_too(tmp_path, begun, number):
    process = subprocess.Popen(
        [sys.executable, "-c", "from sessionlake.cli.app import main; main()", "run", "silver"],
        env={k: v for k, v in os.environ.items() if k != "JDK_JAVA_OPTIONS"} | {"SESSIONLAKE_HOME": str(tmp_path)},
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip
    try:
        own, end = psutil.Process(process.pid), time.monotonic() + 60
        while not begun(own) and time.monotonic() < end:
            time.sleep(0.01)
        pids = [child.pid for child in own.children(recursive=True)]
        process.send_signal(number)
        sent = time.monotonic()
        out, said = process.communicate(timeout=60)
    finally:
        process.kill()
    assert (process.returncode, out, said) == (130, "", "interrupted\n")
    assert time.monotonic() - sent < 5
    assert pids
    assert _gone(pids, 1)


@pytest.mark.parametrize(
    "seconds", [0.5, *(pytest.param(one, marks=pytest.mark.soak) for one in (0, 0.2, 1, 1.5, 2, 3))]
)
def test_ctrl_c_while_a_session_is_built_is_no_other_error(tmp_path, seconds):
    """py4j answers an interrupted call with an error of its own, and pyspark then fails in other ways."""
    with subprocess.Popen(
        [sys.executable, "-m", "sessionlake", "maintain", "--once"],
        env=os.environ | {"SESSIONLAKE_HOME": str(tmp_path)},
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
    ) as process:  # fmt: skip
        try:
            end = time.monotonic() + 60
            while not (tmp_path / "logs" / "sessionlake.log").exists() and time.monotonic() < end:
                time.sleep(0.01)
            time.sleep(seconds)
            ended = process.poll()
            process.send_signal(signal.SIGINT)
            _, said = process.communicate(timeout=60)
        finally:
            process.kill()
    assert (process.returncode, said) == (130, "interrupted\n") or ended == 0


def test_a_name_in_a_session_is_the_table_of_the_home_that_is_asked_about(spark: Any, tmp_path: Path) -> None:
    for place in ("one", "other", "one"):
        settings = Settings(home=tmp_path / place)
        lake = Lake(settings)
        lake.create_or_update_tables(spark, [RULES])
        if not lake.last_commit(spark, RULES).version:
            rows = [{"name": place, "text": "", "enabled": True, "updated_at": None}]
            write_rows(spark, lake, RULES, rows)
        assert fetch_query_result(spark, settings, "SELECT name FROM gold.rules")[1] == [(place,)]


def test_what_spark_keeps_on_disk_while_it_runs_is_in_a_folder_of_its_owner_alone(spark):
    place = Path(spark.sparkContext.getConf().get("spark.local.dir"))
    assert stat.S_IMODE(place.stat().st_mode) == 0o700
    assert any(entry.name.startswith("blockmgr-") for entry in place.rglob("*"))
    assert spark._jvm.java.lang.System.getProperty("java.io.tmpdir") == str(place)
