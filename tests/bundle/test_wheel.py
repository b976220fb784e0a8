"""What the jobs ask of the wheel is in the wheel."""

import importlib
import os
import re
import subprocess
import sys
import zipfile
from configparser import ConfigParser
from email.parser import Parser
from importlib.metadata import distributions

import pytest

from bundle.conftest import ROOT, uv

REQUIREMENTS = "resources/requirements.txt"


@pytest.fixture(scope="module")
def contents(wheel):
    with zipfile.ZipFile(wheel) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


@pytest.fixture(scope="module")
def metadata(contents):
    [name] = [name for name in contents if name.endswith(".dist-info/METADATA")]
    return Parser().parsestr(contents[name].decode())


@pytest.fixture(scope="module")
def entry_points(contents):
    [name] = [name for name in contents if name.endswith(".dist-info/entry_points.txt")]
    parser = ConfigParser()
    parser.read_string(contents[name].decode())
    return dict(parser["console_scripts"])


def tasks(bundle):
    return [task["python_wheel_task"] for job in bundle.jobs.values() for task in job["tasks"]]


def test_every_task_names_the_wheels_package(bundle, metadata):
    assert {task["package_name"] for task in tasks(bundle)} == {metadata["Name"]}


def test_every_entry_point_exists_and_leads_to_a_callable_in_the_wheel(bundle, entry_points, contents):
    for task in tasks(bundle):
        module, _, attribute = entry_points[task["entry_point"]].partition(":")
        assert f"{module.replace('.', '/')}.py" in contents
        assert callable(getattr(importlib.import_module(module), attribute))


def test_installed_into_an_empty_environment_every_entry_point_answers(wheel, entry_points, tmp_path):
    own, here = tmp_path / "empty", tmp_path / "here.txt"
    here.write_text("".join(f"{one.name}=={one.version}\n" for one in distributions() if one.name != "sessionlake"))
    uv("venv", "--quiet", "--python", sys.executable, str(own))
    uv("pip", "install", "--quiet", "--python", str(own / "bin" / "python"), "-c", str(here), str(wheel))

    def answer(program: str, *words: str) -> str:
        clean = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        asked = [str(own / "bin" / program), *words]
        return subprocess.run(asked, cwd=tmp_path, env=clean, check=True, stdout=subprocess.PIPE, text=True).stdout

    for name in entry_points:
        assert "Usage: " in answer(name, "--help")
        assert "Usage: " in answer(name, "run", "bronze", "--help")
    processors = "[p.load().__module__ for p in importlib.metadata.entry_points(group='sessionlake.processors')]"
    loaded = f"import importlib.metadata, sessionlake; print(sessionlake.__file__, {processors})"
    assert re.match(rf"{re.escape(str(own))}.*'sessionlake\.examples\.logins'", answer("python", "-c", loaded))


def test_every_tasks_parameters_are_a_command_that_the_wheel_understands(bundle):
    for task in tasks(bundle):
        assert leaf_command(task["parameters"]).name in {"run", "maintain", "publish", "doctor"}


@pytest.mark.parametrize(
    "asked",
    [
        "resolve --session a --isolate",
        "rebuild silver",
        "rebuild gold.metrics_1h",
        "verify silver",
        "doctor",
        "recover ledger",
        "forget --session a",
        "reshard 128",
        "run processor logins",
    ],
)
def test_what_an_operator_asks_for_by_operate_is_a_command_that_the_wheel_understands(asked):
    assert leaf_command(asked.split()).name


@pytest.mark.parametrize("wrong", [["rum", "bronze"], ["run", "platinum"], ["run", "bronze", "--onse"]])
def test_parameters_that_the_wheel_lacks_are_refused(wrong):
    with pytest.raises(Exception, match=r"(?i)no such|is not one of"):
        leaf_command(wrong)


def test_every_task_installs_the_wheel_and_the_pinned_requirements(bundle):
    for job in bundle.jobs.values():
        for task in job["tasks"]:
            [pinned, built] = task["libraries"]
            assert pinned["requirements"].endswith("/files/resources/requirements.txt")
            assert built == {"whl": "dist/*.whl"}


def test_the_wheel_s_requirements_fit_the_runtime_as_it_ships_and_the_rest_is_pinned():
    runtime, pinned = (pins(ROOT / name) for name in ("tests/bundle/databricks-runtime-17.3.txt", REQUIREMENTS))
    constraints = [f"-c{ROOT / 'tests/bundle/databricks-runtime-17.3.txt'}", f"-c{ROOT / REQUIREMENTS}"]
    platform = ["--python-version", "3.12", "--python-platform", "x86_64-manylinux_2_28"]
    compiled = uv("pip", "compile", "pyproject.toml", *constraints, *platform, "--no-header", "--no-annotate", "-q")
    needed = dict(line.split("==") for line in compiled.split() if "==" in line)
    assert {name: version for name, version in needed.items() if name not in runtime} == pinned
    assert needed.items() <= (runtime | pinned).items()


def test_the_wheel_carries_its_licence_its_types_and_its_data_and_nothing_else(contents):
    top = {name.split("/")[0] for name in contents}
    assert {name for name in top if not name.endswith(".dist-info")} == {"sessionlake", "sessionlake_lab"}
    assert "sessionlake/py.typed" in contents
    assert "sessionlake/local/log4j2.properties" in contents
    assert [name for name in contents if name.endswith(".dist-info/licenses/LICENSE")]


def test_the_wheel_does_not_bring_spark_to_a_cluster_that_has_it(metadata):
    always = [line for line in metadata.get_all("Requires-Dist") if "extra ==" not in line]
    assert not [line for line in always if line.startswith(("pyspark", "delta-spark", "databricks-connect"))]


def leaf_command(parameters):
    """Parses parameters as the command line does, down to the last subcommand, and runs nothing."""
    import typer

    from sessionlake.cli.app import app

    command = typer.main.get_command(app)
    context = command.make_context("sessionlake", list(parameters))
    while hasattr(command, "resolve_command"):
        name, command, rest = command.resolve_command(context, [*context._protected_args, *context.args])
        context = command.make_context(name, rest, parent=context)
    return command


def test_what_the_report_is_made_of_is_in_the_wheel(contents):
    assert {f"sessionlake/history/report/page.{kind}" for kind in ("html", "css", "py")} <= contents.keys()


def test_every_pinned_requirement_is_known_by_its_hashes():
    named = re.findall(
        r"^(\S+)==\S+((?: \\\n    --hash=sha256:[0-9a-f]{64})*)$", (ROOT / REQUIREMENTS).read_text(), re.MULTILINE
    )
    assert [name for name, hashes in named] == list(pins(ROOT / REQUIREMENTS))
    assert [name for name, hashes in named if not hashes] == []


def test_another_file_of_a_pinned_requirement_than_the_known_ones_is_not_installed(tmp_path):
    own, wrong = tmp_path / "own", tmp_path / "requirements.txt"
    wrong.write_text(f"shellingham==1.5.4 --hash=sha256:{'0' * 64}\n")
    uv("venv", "--quiet", "--python", sys.executable, str(own))
    with pytest.raises(subprocess.CalledProcessError):
        uv("pip", "install", "--quiet", "--python", str(own / "bin" / "python"), "--no-deps", "-r", str(wrong))


def pins(file):
    """Name and version of each line of a file of requirements."""
    return dict(re.findall(r"^([^\s#=]+)==([^\s;\\]+)", file.read_text(), re.MULTILINE))
