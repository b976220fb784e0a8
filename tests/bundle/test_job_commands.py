"""What a run of a job may do: a closed list, whatever words whoever starts it gives."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import typer

from sessionlake.cli.app import app
from sessionlake.cli.job import ALLOWED, explain_why_job_may_not_run

COMMANDS = typer.main.get_command(app)


def leaves(command, path=()):
    """Every command with its parameters, by the words that name it."""
    if not hasattr(command, "list_commands"):
        return {" ".join(path): {parameter.name for parameter in command.params}}
    context = command.make_context("x", [], resilient_parsing=True)
    names = command.list_commands(context)
    below = [leaves(command.get_command(context, name), (*path, name)) for name in names]
    return {name: parameters for found in below for name, parameters in found.items()}


KNOWN = leaves(COMMANDS)
PATTERNS = {"rebuild gold.*": "rebuild gold", "rebuild processor:*": "rebuild silver"}


def test_every_allowed_command_and_parameter_exists():
    assert {PATTERNS.get(name, name) for name in ALLOWED} <= KNOWN.keys()
    for name, parameters in ALLOWED.items():
        assert parameters <= KNOWN[PATTERNS.get(name, name)], name


def test_no_allowed_command_takes_a_configuration_or_writes_a_file_of_the_caller_s_choice():
    given = {parameter for parameters in ALLOWED.values() for parameter in parameters}
    assert not given & {"config", "path", "folder", "output", "sql", "diff", "truth"}


@pytest.mark.parametrize("name", sorted(KNOWN.keys() - ALLOWED.keys()))
def test_no_command_outside_the_list_runs_in_a_job(name):
    words = [*name.split(), *("1" for _ in range(9))]
    for count in range(len(name.split()), len(words) + 1):
        assert explain_why_job_may_not_run(COMMANDS, words[:count]) is not None


@pytest.mark.parametrize(
    "words",
    [
        "query 'SELECT 1'",
        "--config /tmp/mine.yml status",
        "status --config /tmp/mine.yml",
        "status --config=/tmp/mine.yml",
        "verify silver --config /tmp/mine.yml",
        "run silver --once --config /tmp/mine.yml",
        "rebuild processor:logins --diff",
        "export silver.session_rows /tmp/rows.parquet",
        "trace capture.a 0 1",
        "session show s",
        "remote query 'SELECT 1'",
        "broker up",
        "demo",
        "doctor --bundle",
    ],
)
def test_what_would_lend_the_principal_s_rights_is_refused(words):
    assert explain_why_job_may_not_run(COMMANDS, words.split(), {}) is not None


@pytest.mark.parametrize(
    "words",
    [
        "run bronze",
        "run processor logins",
        "run all --once",
        "maintain --once",
        "doctor",
        "status --format json",
        "resolve --session s --accept-gap --why restarted",
        "verify gold",
        "rebuild silver --sessions s",
        "rebuild gold",
        "rebuild gold.metrics_1h",
        "rebuild processor:logins",
        "recover ledger",
        "forget --session s --wait 900",
        "reshard 128",
    ],
)
def test_what_operators_need_runs(words):
    assert explain_why_job_may_not_run(COMMANDS, words.split(), {}) is None


def test_only_the_publications_of_the_deployment_run():
    asked = ["publish", "silver.session_rows", "--topic", "tables.rows"]
    listed = {"SESSIONLAKE_PUBLICATIONS": "gold.metrics_1h=tables.hours, silver.session_rows=tables.rows"}
    assert explain_why_job_may_not_run(COMMANDS, asked, listed) is None
    for environ in ({}, {"SESSIONLAKE_PUBLICATIONS": "silver.session_rows=tables.other"}):
        assert "but not silver.session_rows=tables.rows" in explain_why_job_may_not_run(COMMANDS, asked, environ)


def test_only_files_that_were_deployed_beside_the_settings_are_read(tmp_path):
    environ = {"SESSIONLAKE_CONFIG": str(tmp_path / "sessionlake.yml")}
    (tmp_path / "out.yml").symlink_to("/etc/hostname")
    assert explain_why_job_may_not_run(COMMANDS, ["rules", "apply", str(tmp_path / "rules.yml")], environ) is None
    for file in ("/etc/passwd", str(tmp_path / ".." / "rules.yml"), str(tmp_path / "out.yml")):
        assert "is not deployed with the bundle" in explain_why_job_may_not_run(
            COMMANDS, ["rules", "apply", file], environ
        )


def test_words_that_ask_for_help_are_shown_it_once(capfd):
    assert explain_why_job_may_not_run(COMMANDS, ["run", "--help"], {}) is None
    assert capfd.readouterr().out == ""


@pytest.mark.parametrize(("words", "code"), [(["query", "SELECT 1"], 2), (["--help"], 0), (["types"], 0)])
def test_the_entry_point_refuses_with_exit_code_2_and_else_does_as_the_command_line(words, code, tmp_path):
    program = Path(sys.executable).with_name("sessionlake-job")
    done = subprocess.run([program, *words], cwd=tmp_path, env=os.environ, check=False, capture_output=True, text=True)
    assert done.returncode == code, done.stderr
    assert ("a job does not run `query`" in done.stderr) == (code == 2)
