"""Checks `databricks.yml` outside its resources: its keys, its targets, and the files that it names."""

from __future__ import annotations

import re
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from sessionlake.databricks.bundle.file_rules import find_requirements_file_faults
from sessionlake.databricks.bundle.files import (
    BUNDLE_FILE,
    DEVELOPMENT,
    PRODUCTION,
    BundleFiles,
    FileFault,
)
from sessionlake.databricks.bundle.job_rules import PACKAGE
from sessionlake.databricks.bundle.models import find_key_and_type_faults, suggest_similar_name
from sessionlake.databricks.bundle.root_models import ROOT, read_models_of_all_bundle_files
from sessionlake.settings.model import DEFAULT_FILE

_VERSION = re.compile(r"(>=|<=|>|<|=|~|\^|!=)?\s*\d+(\.\d+){0,2}")
_BUILDERS = ("uv build", "python -m build", "python3 -m build", "poetry build", "hatch build", "pip wheel", "make ")


def find_faults_outside_resources(files: BundleFiles, folder: Path) -> Iterator[FileFault]:
    """Yields the faults in `databricks.yml` outside its resources: keys, targets, and files that do not exist."""
    for name, document in files.documents.items():
        content = document.content | ({} if name == BUNDLE_FILE else {"bundle": {"name": "included"}})
        for key, text in find_key_and_type_faults(read_models_of_all_bundle_files(), ROOT, content):
            yield FileFault(name, document.find_line(key) or 1, text)
    yield from _find_settings_faults_of_targets(files)
    version = str((files.merged_content.get("bundle") or {}).get("databricks_cli_version", ">= 1.9.0"))
    if not all(_VERSION.fullmatch(part.strip()) for part in version.split(",")):
        text = f"{version!r} is no constraint of a version, such as '>= 1.9.0'"
        yield files.create_fault(text, "bundle", "databricks_cli_version")
    if not (files.merged_content.get("bundle") or {}).get("name"):
        yield files.create_fault("bundle.name is required, but missing or empty. Add it", "bundle")
    yield from _find_missing_python_functions(files)
    yield from _find_missing_named_files(files, folder)
    yield from find_requirements_file_faults(files, folder)


def _find_missing_python_functions(files: BundleFiles) -> Iterator[FileFault]:
    """Yields a fault for each Python function that the bundle names, but that the package does not have."""
    for kind in ("mutators", "resources"):
        for number, name in enumerate((files.merged_content.get("python") or {}).get(kind) or ()):
            module, _, function = str(name).partition(":")
            if module.partition(".")[0] != PACKAGE:
                continue
            source = Path(__file__).parents[3].joinpath(*module.split(".")).with_suffix(".py")
            if not source.is_file() or f"\ndef {function}(" not in source.read_text(encoding="utf-8"):
                yield files.create_fault(f"there is no function {name}", "python", kind, number)


def _find_settings_faults_of_targets(files: BundleFiles) -> Iterator[FileFault]:
    default = [name for name, target in files.targets.items() if target.get("default")]
    if len(default) != 1:
        text = f"exactly one target must have default: true, found {', '.join(default) or 'none'}"
        named = next((name for name, target in files.targets.items() if "default" in target), None)
        yield files.create_fault(text, "targets", *((named, "default") if named else ()))
    for name, target in files.targets.items():
        mode = target.get("mode")
        if mode not in {DEVELOPMENT, PRODUCTION}:
            text = f"target {name}: mode {mode!r} is not one of {DEVELOPMENT}, {PRODUCTION}"
            yield files.create_fault(text, "targets", name, "mode")
        if mode != PRODUCTION:
            continue
        if not (target.get("run_as") or files.merged_content.get("run_as")):
            text = f"target {name}: without run_as its jobs run as the user who deploys"
            yield files.create_fault(text, "targets", name)
        if not (target.get("workspace") or files.merged_content.get("workspace") or {}).get("root_path"):
            text = f"target {name}: without workspace.root_path each user deploys another copy"
            yield files.create_fault(text, "targets", name)
        if not (target.get("permissions") or files.merged_content.get("permissions")):
            text = f"target {name}: without permissions only the user who deploys may see its resources"
            yield files.create_fault(text, "targets", name)
        if target.get("default"):
            yield files.create_fault(f"target {name}: a production target must not be the default", "targets", name)


def _find_missing_named_files(files: BundleFiles, folder: Path) -> Iterator[FileFault]:
    for number, pattern in enumerate(files.merged_content.get("include") or ()):
        if not list(folder.glob(pattern)):
            yield files.create_fault(f"include: no file matches {pattern!r}", "include", number)
    names = sorted(own.name for own in folder.iterdir())
    environment = str((files.merged_content.get("python") or {}).get("venv_path") or ".")
    hint = suggest_similar_name(environment, names)
    if hint and not (folder / environment).exists():  # without a similar folder, `make setup` has not run yet
        yield files.create_fault(f"there is no folder {environment!r}{hint}", "python", "venv_path")
    sync = files.merged_content.get("sync") or {}
    patterns: list[Any] = sync.get("exclude") or []
    for number, pattern in enumerate(patterns):
        first = str(pattern).partition("/")[0]
        hint = suggest_similar_name(
            first, [own for own in names if own not in {str(one).partition("/")[0] for one in patterns}]
        )
        if first not in names and hint:
            yield files.create_fault(f"sync.exclude: nothing matches {pattern!r}{hint}", "sync", "exclude", number)
        if fnmatch(DEFAULT_FILE, str(pattern)):
            text = f"sync.exclude: {pattern!r} leaves out {DEFAULT_FILE}, which every job reads"
            yield files.create_fault(text, "sync", "exclude", number)
    for name, artifact in (files.merged_content.get("artifacts") or {}).items():
        yield from _find_artifact_faults(files, folder, name, artifact or {})


def _find_artifact_faults(files: BundleFiles, folder: Path, name: str, artifact: dict[str, Any]) -> Iterator[FileFault]:
    key = ("artifacts", name)
    if not (folder / str(artifact.get("path", "."))).is_dir():
        yield files.create_fault(f"artifact {name}: there is no folder {artifact['path']!r}", *key, "path")
    if artifact.get("type") != "whl":
        yield files.create_fault(f"artifact {name}: type must be whl, found {artifact.get('type')!r}", *key, "type")
    build = str(artifact.get("build", ""))
    if not build.startswith(_BUILDERS):
        text = (
            f"artifact {name}: {build!r} builds no wheel{suggest_similar_name(build, [*_BUILDERS, 'uv build --wheel'])}"
        )
        yield files.create_fault(text, *key, "build")
    if artifact.get("dynamic_version"):
        yield files.create_fault(f"artifact {name}: dynamic_version makes every plan differ", *key, "dynamic_version")
