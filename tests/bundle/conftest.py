"""The bundle as a deployment sees it: files included, target merged, presets applied, references resolved.

The command line that deploys is in no package registry, so the few of its documented steps that these resources
rely on are repeated here, and no more.
"""

import copy
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
USER = "ada"
GIVEN = {
    "catalog": "lake",
    "kafka_bootstrap_servers": "broker-1:9093,broker-2:9093",
    "node_type_id": "m6id.xlarge",
    "service_principal_name": "5f0c6a1e-0000-4000-8000-000000000001",
    "readers_group": "analysts",
    "operators_group": "lake operators",
}
_REFERENCE = re.compile(r"\$\{([\w.-]+)\}")


@dataclass(frozen=True)
class Bundle:
    """One target of the bundle, resolved."""

    target: str
    config: dict[str, Any]

    @property
    def jobs(self) -> dict[str, Any]:
        return self.config["resources"]["jobs"]

    @property
    def schemas(self) -> dict[str, Any]:
        return self.config["resources"]["schemas"]

    def environment(self, job: str) -> dict[str, str]:
        [cluster] = self.jobs[job]["job_clusters"]
        return cluster["new_cluster"]["spark_env_vars"]


@pytest.fixture(scope="session")
def documents() -> dict[str, dict[str, Any]]:
    """`databricks.yml`, then the files that it includes, by name."""
    config = yaml.safe_load((ROOT / "databricks.yml").read_text())
    included = [file for pattern in config["include"] for file in sorted(ROOT.glob(pattern))]
    return {"databricks.yml": config} | {file.name: yaml.safe_load(file.read_text()) for file in included}


@pytest.fixture(scope="session")
def sources(documents) -> dict[str, Any]:
    """`databricks.yml` with the included files merged in, nothing resolved."""
    return reduce(_merge, documents.values())


@pytest.fixture(scope="session", params=["dev", "prod"])
def bundle(request, sources) -> Bundle:
    """Each target in turn."""
    return _deploy(sources, request.param)


@pytest.fixture(scope="session")
def dev(sources) -> Bundle:
    return _deploy(sources, "dev")


@pytest.fixture(scope="session")
def prod(sources) -> Bundle:
    return _deploy(sources, "prod")


@pytest.fixture(scope="session")
def wheel(tmp_path_factory) -> Path:
    """The wheel, built as the bundle builds it. The build backend is fetched once; later runs need no network."""
    uv = shutil.which("uv", path=str(Path(sys.executable).parent)) or shutil.which("uv")
    assert uv, "uv is needed to build the wheel: run `make setup`"
    folder = tmp_path_factory.mktemp("dist")
    command = [uv, "build", "--wheel", "--quiet", "--python", sys.executable, "--out-dir", str(folder)]
    if subprocess.run([*command, "--offline"], cwd=ROOT, check=False, capture_output=True).returncode != 0:
        subprocess.run(command, cwd=ROOT, check=True)
    [built] = folder.glob("*.whl")
    return built


def _deploy(sources: dict[str, Any], target: str) -> Bundle:
    config = copy.deepcopy(sources)
    chosen = config.pop("targets")[target]
    values = {name: spec.get("default") for name, spec in config.pop("variables").items()}
    values |= GIVEN | chosen.pop("variables", {})
    config = _merge(config, chosen)
    if config["mode"] == "development":
        _apply_development(config)
    _apply_pause(config)
    config["bundle"] |= {"target": target}
    config["var"] = values
    config.setdefault("workspace", {})["current_user"] = {"userName": f"{USER}@example.com", "short_name": USER}
    return Bundle(target, _resolve(config, config))


def _merge(base: Any, over: Any) -> Any:
    if isinstance(base, dict) and isinstance(over, dict):
        return base | {key: _merge(base[key], value) if key in base else value for key, value in over.items()}
    return [*base, *over] if isinstance(base, list) and isinstance(over, list) else over


def _apply_development(config: dict[str, Any]) -> None:
    config["presets"] = {"trigger_pause_status": "PAUSED"} | config.get("presets", {})
    for job in config["resources"]["jobs"].values():
        job["name"] = f"[dev {USER}] {job['name']}"
        job.setdefault("max_concurrent_runs", 4)
    for schema in config["resources"]["schemas"].values():
        schema["name"] = f"dev_{USER}_{schema['name']}"


def _apply_pause(config: dict[str, Any]) -> None:
    status = config.get("presets", {}).get("trigger_pause_status")
    for job in config["resources"]["jobs"].values():
        for kind in ("continuous", "schedule", "trigger"):
            if status and kind in job:
                job[kind].setdefault("pause_status", status)


def _resolve(node: Any, config: dict[str, Any]) -> Any:
    if isinstance(node, dict):
        return {key: _resolve(value, config) for key, value in node.items()}
    if isinstance(node, list):
        return [_resolve(value, config) for value in node]
    if not isinstance(node, str):
        return node
    return _REFERENCE.sub(lambda match: str(_resolve(_look_up(match[1], config), config)), node)


def _look_up(path: str, config: dict[str, Any]) -> Any:
    node: Any = config
    for part in path.split("."):
        assert part in node, f"${{{path}}} refers to nothing: there is no {part!r}; there are {', '.join(node)}"
        node = node[part]
    return node
