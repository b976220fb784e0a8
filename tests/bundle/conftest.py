"""The bundle's targets as a deployment sees them, and the wheel as the bundle builds it."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from sessionlake.databricks.bundle.files import BundleFiles, ResolvedTarget, read_bundle, resolve_target

ROOT = Path(__file__).parents[2]
GIVEN = {
    "catalog": "lake",
    "kafka_bootstrap_servers": "broker-1:9093,broker-2:9093",
    "node_type_id": "m6id.xlarge",
    "service_principal_name": "5f0c6a1e-0000-4000-8000-000000000001",
    "readers_group": "analysts",
    "operators_group": "lake operators",
    "deployer": "ada@example.com",
    "notify_email": "ada@example.com",
}


@pytest.fixture(scope="session")
def files() -> BundleFiles:
    return read_bundle(ROOT)


@pytest.fixture(scope="session", params=["dev", "staging", "prod"])
def bundle(request, files) -> ResolvedTarget:
    """Each target in turn."""
    return resolve_target(files, request.param, GIVEN)


@pytest.fixture(scope="session")
def dev(files) -> ResolvedTarget:
    return resolve_target(files, "dev", GIVEN)


@pytest.fixture(scope="session", params=["staging", "prod"])
def production(request, files) -> ResolvedTarget:
    """Each target that is not a developer's own."""
    return resolve_target(files, request.param, GIVEN)


@pytest.fixture(scope="session")
def wheel(tmp_path_factory) -> Path:
    """The wheel, built as the bundle builds it. The build backend is fetched once; later runs need no network."""
    folder = tmp_path_factory.mktemp("dist")
    uv("build", "--wheel", "--quiet", "--python", sys.executable, "--out-dir", str(folder))
    [built] = folder.glob("*.whl")
    return built


def uv(*arguments: str) -> str:
    """What uv answers: from its cache alone, if that has what it needs."""
    found = shutil.which("uv", path=str(Path(sys.executable).parent)) or shutil.which("uv")
    assert found, "uv is needed: run `make setup`"
    command = [found, *arguments]
    offline = subprocess.run([*command, "--offline"], cwd=ROOT, check=False, capture_output=True, text=True)
    if offline.returncode == 0:
        return offline.stdout
    return subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True).stdout
