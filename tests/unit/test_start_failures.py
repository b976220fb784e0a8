"""Whatever command starts Spark: what keeps it from starting is told in one text, with exit code 1 and no traceback."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from typer.testing import CliRunner, Result

from sessionlake.cli import app as cli
from sessionlake.delta.schemas.tables import TABLES
from support.command_names import unlisted_commands

# Every command that starts Spark, with the arguments that take it as far as that.
COMMANDS = {
    "query": ["query", "--engine", "spark", "SELECT * FROM silver.sessions"],
    "query as of": ["query", "--as-of-batch", "0", "SELECT * FROM silver.sessions"],
    "explain": ["explain", "gold.metrics_1h"],
    "export": ["export", "silver.sessions", "out"],
    "archive": ["archive", "out"],
    "run silver": ["run", "silver", "--once"],
    "run gold": ["run", "gold", "--once"],
    "maintain": ["maintain", "--once"],
    "maintain on": ["maintain"],
    "rebuild silver": ["rebuild", "silver"],
    "rebuild gold": ["rebuild", "gold"],
    "rebuild one": ["rebuild", "gold.metrics_1h"],
    "verify silver": ["verify", "silver"],
    "verify gold": ["verify", "gold"],
    "state show": ["state", "show", "--session", "s"],
    "state stats": ["state", "stats"],
    "recover silver": ["recover", "silver"],
    "recover gold": ["recover", "gold"],
    "recover bronze": ["recover", "bronze"],
    "recover ledger": ["recover", "ledger"],
    "reshard": ["reshard", "64"],
    "forget": ["forget", "--session", "s"],
    "rules apply": ["rules", "apply", "rules.yml"],
    "reference load": ["reference", "load", "sites", "sites.csv"],
}
# Commands that ask the broker before they start Spark.
BEHIND_THE_BROKER = {
    "publish": ["publish", "silver.session_rows", "--topic", "rows.live"],
    "run bronze": ["run", "bronze", "--once"],
    "run all": ["run", "all", "--once"],
    "verify bronze": ["verify", "bronze"],
    "bronze skip": ["bronze", "skip", "books", "0", "0", "--why", "unreadable"],
}
# Commands that read tables or files without Spark: they work where Java does not.
WITHOUT_SPARK = {
    "metrics": ["metrics"],
    "types": ["types"],
    "status": ["status"],
    "report": ["report"],
    "trace": ["trace", "books", "0", "0"],
    "resolve": ["resolve", "s", "skip", "--why", "w"],
    "rules check": ["rules", "check", "rules.yml"],
    "rules test": ["rules", "test", "rules.yml"],
    "rules list": ["rules", "list"],
    "reference list": ["reference", "list"],
    "session show": ["session", "show", "s"],
    "session as-of": ["session", "as-of", "s"],
    "feed try": ["feed", "try", "messages.jsonl"],
    "feed test": ["feed", "test", "frames.yml"],
    "feed infer": ["feed", "infer", "messages.jsonl"],
    "feed send": ["feed", "send", "messages.jsonl"],
}
# Commands that start the broker's JVM, look for one, or ask a workspace: other tests have them.
OTHERS = {"broker", "doctor", "remote"}
CONFIG = """
gold:
  references: [{name: sites, keys: {site: string}, columns: {place: string}}]
"""
FAILS = {
    "no Java": "no Java found",
    "a JAVA_HOME without one": "JAVA_HOME is /nowhere",
    "a Java that is too old": "is Java 11, but Java 17 or later is needed",
    "a Java that does not say its version": "does not print a Java version",
    "a JVM that dies": r"Spark's Java process did not start \(Error: Could not create the Java Virtual Machine\.\)",
    "a home that cannot be written": "cannot be written",
}


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home in which every table is there, so that a command gets as far as Spark."""
    home = tmp_path_factory.mktemp("tables") / "home"
    for table in TABLES:
        schema, name = table.split(".")
        DeltaTable.create(home / "warehouse" / schema / name, pa.schema([("x", pa.string())]))
    return home


@pytest.fixture
def call(tables: Path, tmp_path: Path, free_port: int, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "rules.yml").write_text("rules: []\n")
    (tmp_path / "sites.csv").write_text("site,place\ns,here\n")
    (tmp_path / "sessionlake.yml").write_text(CONFIG)
    java = tmp_path / "java" / "bin" / "java"
    java.parent.mkdir(parents=True)
    versions = {"a Java that is too old": "11.0.1", "a JVM that dies": "17.0.1"}

    def run(words: list[str], what: str) -> Result:
        java.write_text("#!/bin/sh\necho 'Error: Could not create the Java Virtual Machine.'\nexit 1\n")
        java.chmod(0o755)
        if what in versions:
            (tmp_path / "java" / "release").write_text(f'JAVA_VERSION="{versions[what]}"\n')
        own = {"SESSIONLAKE_HOME": str(tables), "SESSIONLAKE_KAFKA__BOOTSTRAP_SERVERS": f"127.0.0.1:{free_port}"}
        own["JAVA_HOME"] = str(tmp_path / "java")
        if what == "no Java":
            own |= {"JAVA_HOME": "", "PATH": str(tmp_path)}
        if what == "a JAVA_HOME without one":
            own["JAVA_HOME"] = "/nowhere"
        if what == "a home that cannot be written":
            (tmp_path / "file").touch()
            own["SESSIONLAKE_HOME"] = str(tmp_path / "file" / "home")
        return CliRunner().invoke(cli.app, words, env=own)

    return run


@pytest.mark.parametrize("what", FAILS)
@pytest.mark.parametrize("command", COMMANDS)
def test_what_keeps_spark_from_starting_is_reported_in_one_text(call, command, what):
    result = call(COMMANDS[command], what)
    assert result.exit_code == 1
    assert "Traceback" not in result.stderr
    assert "unexpected" not in result.stderr
    assert result.stderr.startswith("error: ")
    if what != "a home that cannot be written":  # there are no tables then, which is told first by some
        assert re.search(FAILS[what], result.stderr)
    assert result.stdout == ""
    assert not os.environ.get("PYSPARK_GATEWAY_PORT")


@pytest.mark.parametrize("what", FAILS)
@pytest.mark.parametrize("command", BEHIND_THE_BROKER)
def test_the_same_holds_behind_a_broker_that_answers(call, command, what, monkeypatch):
    for module in ("kafka.clients", "bronze.job", "bronze.sources", "cli.publish", "cli.verify_bronze"):
        monkeypatch.setattr(f"sessionlake.{module}.require_reachable_broker", lambda *_: None)
    result = call(BEHIND_THE_BROKER[command], what)
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.startswith("error: ")
    assert "Traceback" not in result.stderr
    if what != "a home that cannot be written":
        assert re.search(FAILS[what], result.stderr)


@pytest.mark.parametrize("command", WITHOUT_SPARK)
def test_what_needs_no_spark_says_nothing_of_java(call, command):
    result = call(WITHOUT_SPARK[command], "no Java")
    assert "Java" not in result.stderr
    assert "Traceback" not in result.stderr


def test_every_command_stands_in_one_of_these_tables():
    words = [*COMMANDS.values(), *BEHIND_THE_BROKER.values(), *WITHOUT_SPARK.values()]
    missing = unlisted_commands([" ".join(given) for given in words], OTHERS)
    assert missing == set()
