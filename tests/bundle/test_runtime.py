"""The package on Databricks' runtime as it ships: Python 3.12, and the versions of packages that its list has."""

import os
import shutil
import subprocess

import pytest

from bundle.conftest import ROOT, uv

RUNTIME = ROOT / "tests/bundle/databricks-runtime-17.3.txt"
# Of what the unit tests use, the runtime lacks some or has another version of a laptop's: no extra is asked for.
TESTING = ("pytest", "pytest-timeout", "hypothesis", "chispa", "pyspark==4.0.2", "confluent-kafka",
           "orjson", "psutil", "jinja2", "matplotlib", "cryptography", "databricks-sdk", "rich", "pip",
           "pysparkplug")  # fmt: skip


@pytest.fixture
def python312():
    """An interpreter of the runtime's version."""
    for name in (os.environ.get("PYTHON312", ""), "python3.12"):
        found = shutil.which(name)
        if found and subprocess.run([found, "--version"], check=False, capture_output=True).returncode == 0:
            return found
    pytest.skip("the runtime's Python is not here: install python3.12, or name one with PYTHON312=/path/to/python3.12")


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_the_unit_tests_pass_with_the_packages_of_the_runtime(python312, wheel, tmp_path):
    own = tmp_path / "runtime"
    uv("venv", "--quiet", "--python", python312, str(own))
    python = str(own / "bin" / "python")
    asked = ["-c", str(RUNTIME), "-r", str(ROOT / "resources/requirements.txt"), str(wheel), *TESTING]
    uv("pip", "install", "--quiet", "--python", python, *asked)
    # A laptop's own, and never a cluster's: the first needs a newer `deprecated` than the runtime has, and of the other
    # only the version is asked for.
    uv("pip", "install", "--quiet", "--python", python, "deltalake>=1.6,<2")
    uv("pip", "install", "--quiet", "--python", python, "--no-deps", "delta-spark==4.4.0")
    # What these read are files, the same under each Python.
    left_out = [f"--ignore=tests/unit/test_{name}.py" for name in ("architecture", "docs", "runbook")]
    chosen = ["-m", "not soak", "-p", "no:cacheprovider", "-q", *left_out]
    done = subprocess.run(
        [python, "-m", "pytest", "tests/unit", *chosen],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT / "src")},
        check=False,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout[-5000:]
