"""The demo as a person runs it: to its end, and interrupted. Every example of the README is pasted."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import psutil
import pytest
from confluent_kafka import Producer

from support.docs import ROOT, commands
from support.readme import clone_for_reader, environment_of_reader, find_commands, find_output, is_shown, readme_blocks
from support.reports import Seen
from support.waiting import eventually

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]


# Of the commands that README and docs show, those that only read, and take a home that nothing runs over.
READING = (
    *("query", "metrics", "explain", "status", "report", "trace", "session", "state stats", "doctor", "rules list"),
    "export",
)


@contextmanager
def short_demo(home: Path) -> Iterator[subprocess.Popen[str]]:
    """Starts a short demo in a home of its own, which nothing may be left running in."""
    process = subprocess.Popen(
        [sys.executable, "-m", "sessionlake", "demo", "--seconds", "10", "--rate", "300"],
        env=os.environ | {"SESSIONLAKE_HOME": str(home)}, cwd=home, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    try:
        yield process
    finally:
        process.kill()
        process.wait()


@pytest.fixture
def begun(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    with short_demo(tmp_path) as process:
        yield process


@dataclass(frozen=True)
class Played:
    """A demo that has come to its end. `home` is the folder in which it was run."""

    home: Path
    code: int
    out: str
    said: str
    left: list[str]


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> Played:
    """The README's `make demo`, in a folder as after `git clone`."""
    folder = clone_for_reader(tmp_path_factory.mktemp("clone"))
    demo, _ = find_commands("make demo").splitlines()
    done = pasted(demo, folder, environment_of_reader(), seconds=800)
    return Played(folder, done.returncode, done.stdout, done.stderr, left_running(folder))


def pasted(
    lines: str, folder: Path, environment: dict[str, str], seconds: float = 300
) -> subprocess.CompletedProcess[str]:
    """Runs lines of the README in a shell, as if they were pasted into it."""
    return subprocess.run(
        ["sh", "-ec", lines], cwd=folder, env=environment, capture_output=True, text=True, check=False, timeout=seconds
    )


def left_running(home: Path) -> list[str]:
    """Command lines of processes that name the home."""
    found = []
    for process in psutil.process_iter():
        try:
            line = " ".join(process.cmdline())
        except psutil.Error:
            continue
        if str(home) in line and process.pid != os.getpid():
            found.append(line)
    return found


@pytest.fixture
def told(played: Played, ask: Callable[..., str], monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """What a command answers over the tables that the demo has left."""
    monkeypatch.chdir(played.home)
    monkeypatch.setattr("webbrowser.open", lambda _: True)
    return partial(ask, {"SESSIONLAKE_HOME": str(played.home / ".sessionlake" / "demo")})


def test_the_demo_verifies_every_session_and_the_commands_that_it_names_work(played, told):
    assert played.code == 0, played.out + played.said
    out = " ".join(played.out.split())
    assert re.search(r"40 of 40 session tables exact; \d+ duplicates dropped; \d+ sessions isolated", out)
    books = re.search(r"2 of 2 order books exact; (\d+) checksums compared: 2 did not fit", out)
    assert books
    assert int(books[1]) == 2 * (45 * 5 - 5)
    assert re.search(r"was \d+\.\d s late: the averages it corrected .*\n(.*\n)+?.* 1 +late", played.out)
    raised, cleared = re.findall(r"^ spike +\S+ +(\w+) .* true *$", played.out, re.MULTILINE)
    assert (raised, cleared) == ("raised", "cleared")
    assert "Traceback" not in played.said
    assert played.left == []
    status, *reading = [shlex.split(line) for line in played.out.splitlines() if "SESSIONLAKE_HOME=" in line]
    assert len(reading) == 3
    variable, *words = status
    done = subprocess.run(
        words, env=os.environ | dict([variable.split("=")]), cwd=played.home, capture_output=True, text=True,
        check=False, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()
    program = status[: status.index("status")]
    for line in reading:
        assert line[: len(program)] == program
        assert told(*line[len(program) :]).strip()


def test_the_demo_leaves_a_page_of_what_its_tables_hold(played):
    assert played.code == 0, played.out + played.said
    (page,) = re.findall(r"on one page: (.+)", played.out)
    assert page == ".sessionlake/demo/report.html"
    seen = Seen((played.home / page).read_text(encoding="utf-8"))
    assert seen.all_text("h2")[0] == "Is it complete?"
    assert {"silver.sessions", "gold.metrics_1m"} <= set(seen.all_text("bdi"))
    assert [label.split(" ")[0] for label in seen.charts] == ["How", "How", *["Values", "Least,"] * 4, "When"]
    assert (played.home / page).stat().st_size < 5_000_000


def test_the_demo_prints_what_the_readme_shows(played):
    assert played.code == 0, played.out + played.said
    shown = find_output("45,")
    assert is_shown(shown, played.out), played.out
    assert not is_shown(shown.replace("40 of 40", "39 of 40"), played.out)


def test_the_commands_that_look_at_the_demo_print_what_the_readme_shows(played):
    assert played.code == 0, played.out + played.said
    reader = environment_of_reader(BROWSER="true")
    look = pasted(find_commands("SESSIONLAKE_HOME=.sessionlake/demo .venv/bin/sessionlake query"), played.home, reader)
    assert look.returncode == 0, look.stderr
    assert is_shown(find_output("reason"), look.stdout), look.stdout
    assert look.stdout.strip().endswith(".sessionlake/demo/report.html")
    followed = pasted(
        find_commands("SESSIONLAKE_HOME=.sessionlake/demo .venv/bin/sessionlake trace"), played.home, reader
    )
    assert is_shown(find_output("topic capture"), followed.stdout), followed.stdout + followed.stderr


def test_the_commands_for_own_messages_read_a_topic(broker, tmp_path):
    servers = broker.bootstrap_servers
    send_orders(servers, 40)
    reader = environment_of_reader(
        SESSIONLAKE_KAFKA__BOOTSTRAP_SERVERS=servers, PATH=f"{ROOT / '.venv' / 'bin'}{os.pathsep}{os.environ['PATH']}"
    )
    infer, attempt, run, doctor = find_commands("sessionlake feed infer").splitlines()
    for line in (infer, attempt):
        done = pasted(line, tmp_path, reader)
        assert done.returncode == 0, (line, done.stdout, done.stderr)
    assert "40 messages: 40 read" in done.stdout
    assert r"topics: 'shop\.orders'" in (tmp_path / "sessionlake.yml").read_text(encoding="utf-8")
    ledger = tmp_path / ".sessionlake" / "warehouse" / "ops" / "ledger" / "_delta_log"
    with subprocess.Popen(
        ["sh", "-ec", f"exec {run}"], cwd=tmp_path, env=reader, text=True, stderr=subprocess.PIPE
    ) as process:
        try:
            eventually(lambda: process.poll() is not None or len([*ledger.glob("*.json")]) > FOUR_LAYERS, 240)
            process.send_signal(signal.SIGINT)
            _, said = process.communicate(timeout=120)
        finally:
            process.kill()
    assert (process.returncode, said.splitlines()[-1]) == (0, "stopped"), said
    found = pasted(doctor, tmp_path, reader)
    assert found.returncode == 0, found.stdout + found.stderr


FOUR_LAYERS = 4
"""A commit of the ledger creates it, and each layer commits one with its first batch."""


def send_orders(servers: str, count: int) -> None:
    """Sends changes of a table of orders, as Debezium does."""
    producer = Producer({"bootstrap.servers": servers})
    for number in range(count):
        row = {"id": number % 9, "customer": "ACME", "total": f"{number}.50"}
        value = {"op": "c" if number < 9 else "u", "after": row, "source": {"ts_ms": 1_760_000_000_000 + number}}
        key = {"id": row["id"]}
        producer.produce("shop.orders", json.dumps(value).encode(), json.dumps(key).encode(), 0)
    assert producer.flush(30) == 0


def test_every_block_of_the_readme_is_pasted_here():
    """Without `make test`, which runs this test, and the drawing."""
    assert (len(readme_blocks("sh")), len(readme_blocks("text"))) == (4, 3)


# One of each kind; what further ones ask for, other tests do.
@pytest.mark.parametrize("every", [False, pytest.param(True, marks=pytest.mark.soak)])
def test_the_commands_of_readme_and_docs_that_only_read_answer_over_its_tables(played, told, every):
    assert played.code == 0, played.out + played.said
    there = json.loads(told("query", " ".join(LONGEST.split()), "--format", "json"))
    # The docs show one run's names and times; sessions, times and batches are another's here.
    shown = {
        "depth-03-demo0-0003": there["session_id"],
        "2026-11-21T18:18:30Z": f"{there['last']}Z".replace(" ", "T"),
        "2026-11-21 18:18:30": there["last"],
        "capture.depth-03 1 1057": f"{there['topic']} {there['partition']} {there['last_offset']}",
        "--as-of-batch 7": f"--as-of-batch {there['batch']}",
    }
    lines = dict.fromkeys(c.arguments for c in commands("sessionlake") if " ".join(c.arguments).startswith(READING))
    some = {next(phrase for phrase in READING if " ".join(words).startswith(phrase)): words for words in lines}
    assert set(some) == set(READING)
    for words in lines if every else some.values():
        text = shlex.join(words) if words[0] in {"query", "metrics", "explain", "export"} else " ".join(words)
        for old, new in shown.items():
            text = text.replace(old, new)
        assert told(*shlex.split(text)).strip(), text


LONGEST = """
    SELECT topic, session_id, partition, last_offset,
        date_format(last_kafka_timestamp, 'yyyy-MM-dd HH:mm:ss.SSS') AS last,
        (SELECT max(batch_id) FROM ops.ledger WHERE layer = 'silver') AS batch
    FROM silver.sessions WHERE topic = 'capture.depth-03' ORDER BY messages DESC LIMIT 1
"""


def starting(home: Path) -> bool:
    """Whether it has begun to start Kafka or Spark."""
    return (home / "demo").exists()


def building(home: Path) -> bool:
    """Whether Spark's session is being built: py4j loses an interrupt then."""
    return (home / "demo" / "logs" / "demo.log").exists()


def live(home: Path) -> bool:
    """Whether a layer has taken something in."""
    return any((home / "demo" / "warehouse" / "ops" / "ledger" / "_delta_log").glob("*1.json"))


@pytest.mark.parametrize(
    "reached", [building, *(pytest.param(one, marks=pytest.mark.soak) for one in (starting, live))]
)
def test_an_interrupted_demo_leaves_nothing_running(begun, tmp_path, reached):
    eventually(lambda: begun.poll() is not None or reached(tmp_path), 300)
    assert begun.poll() is None, begun.communicate()
    begun.send_signal(signal.SIGINT)
    out, said = begun.communicate(timeout=120)
    assert "Traceback" not in said
    assert (begun.returncode, "interrupted" in out + said) == (130, True)
    assert left_running(tmp_path) == []
