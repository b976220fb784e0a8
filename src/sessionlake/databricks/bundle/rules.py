"""Finds faults in a bundle and its settings file, with file and line. Needs no workspace and reads no secrets."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from sessionlake.databricks.bundle.files import (
    DEVELOPMENT,
    PRODUCTION,
    REFERENCE,
    BundleFiles,
    FileFault,
    ResolvedTarget,
    Tree,
    iterate_texts,
    read_bundle,
    resolve_target,
)
from sessionlake.databricks.bundle.identity_rules import LEVELS, find_permission_faults
from sessionlake.databricks.bundle.job_rules import JobFault, Refused, find_job_faults
from sessionlake.errors import ConfigError
from sessionlake.settings.file import TARGETS, FileError, KeyPath, read_document, read_settings
from sessionlake.settings.model import DEFAULT_FILE, find_settings_problems

MODELS = {
    "jobs": "Job",
    "schemas": "Schema",
    "volumes": "Volume",
    "sql_warehouses": "SqlWarehouse",
    "dashboards": "Dashboard",
    "alerts": "Alert",
    "secret_scopes": "SecretScope",
}
"""Kinds of resources, with the names of their models in the package `databricks-bundles`."""
_ROOMS = {"var", "resources", "bundle", "workspace"}
_PROTECTED = {"schemas", "secret_scopes"}
_PROTECTED_VOLUME = "checkpoints"


def find_bundle_faults(folder: Path, variables: Mapping[str, Any], refused: Refused) -> list[FileFault]:
    """Returns all faults of the bundle in a folder, sorted by file and line.

    Args:
        folder: The bundle's folder.
        variables: Values of variables.
        refused: Returns why the package's command line rejects a job's parameters, or None.
    """
    try:
        files = read_bundle(folder)
    except FileError as error:
        return [_make_unreadable_fault(folder, error)]
    found = [
        *_find_key_faults(files),
        *_find_mode_faults(files),
        *_find_level_faults(files),
        *_find_reference_faults(files),
    ]
    found += [*_find_kind_faults(files)]
    if not found:
        found += [fault for name in files.targets for fault in _find_target_faults(files, name, variables, refused)]
    return sorted({*found, *find_settings_faults(folder, files)})


def find_settings_faults(folder: Path, files: BundleFiles) -> Iterator[FileFault]:
    """Yields the faults of the settings file, for each target. Secrets are assumed to be valid."""
    try:
        document = read_document(folder / DEFAULT_FILE)
        for name in (None, *files.targets):
            content = read_settings(document, name)
            for line, text in find_settings_problems(content):
                yield FileFault(DEFAULT_FILE, line or 1, text)
            for key, path in content.find_paths():
                if path.is_relative_to(folder) and not path.is_file():
                    text = f"{path.relative_to(folder)}: there is no such file"
                    yield FileFault(DEFAULT_FILE, content.line(key) or 1, text)
    except FileError as error:
        yield _make_unreadable_fault(folder, error)
        return
    for name in document.content.get(TARGETS, {}).keys() - files.targets.keys():
        text = f"targets.{name}: the bundle has no such target; it has {', '.join(files.targets)}"
        yield FileFault(DEFAULT_FILE, document.line((TARGETS, name)) or 1, text)


def models_are_installed() -> bool:
    """Returns True if `databricks-bundles`, a development dependency, is installed to check resources against."""
    return find_spec("databricks") is not None and find_spec("databricks.bundles") is not None


def _make_unreadable_fault(folder: Path, error: FileError) -> FileFault:
    return FileFault(error.path.relative_to(folder).as_posix(), error.line, error.why)


def _find_key_faults(files: BundleFiles) -> Iterator[FileFault]:
    kinds, places = defaultdict(set), defaultdict(set)
    for file, document in files.documents.items():
        for kind, key, _ in _list_resources(document.content):
            places[kind, key].add(file)
        for _, scope, _ in _list_scopes(document.content):
            for kind, key, _ in _list_resources(scope):
                kinds[key].add(kind)
    for key, found in kinds.items():
        if len(found) > 1:
            last = max(found)
            text = f"key {key!r} has several types: {', '.join(sorted(found))}"
            yield files.make_fault(text, "resources", last, key)
    for (kind, key), spread in places.items():
        text = f"{kind}.{key} is spread over {', '.join(sorted(spread))}"
        for place in spread if len(spread) > 1 else ():
            yield files.make_fault(text, "resources", kind, key, file=place)


def _find_mode_faults(files: BundleFiles) -> Iterator[FileFault]:
    for name, target in files.targets.items():
        if target.get("mode") not in {DEVELOPMENT, PRODUCTION}:
            text = f"target {name}: mode {target.get('mode')!r} is not one of {DEVELOPMENT}, {PRODUCTION}"
            yield files.make_fault(text, "targets", name, "mode")
        if target.get("mode") == PRODUCTION and not (target.get("run_as") or files.merged_content.get("run_as")):
            text = f"target {name}: without run_as its jobs run as the user who deploys"
            yield files.make_fault(text, "targets", name)


def _find_level_faults(files: BundleFiles) -> Iterator[FileFault]:
    for document in files.documents.values():
        for where, scope, key in _list_scopes(document.content):
            yield from _find_wrong_levels(files, where, "bundle", scope, key)
            for kind, name, resource in _list_resources(scope):
                path = (*key, "resources", kind, name)
                yield from _find_wrong_levels(files, f"{where}{kind}.{name}: ", kind, resource, path)


def _find_wrong_levels(
    files: BundleFiles, where: str, kind: str, holder: Tree, key: tuple[str, ...]
) -> Iterator[FileFault]:
    if "permissions" in holder and kind not in LEVELS:
        yield files.make_fault(f"{where}may not have permissions", *key, "permissions")
        return
    for number, permission in enumerate(holder.get("permissions", [])):
        given, place = _look_up_default(files, permission, (*key, "permissions", number))
        if not isinstance(given, dict):
            given = {}
        level, place = _look_up_default(files, given.get("level"), (*place, "level"))
        if level not in LEVELS[kind]:
            text = f"{where}level {level!r} is not one of {', '.join(LEVELS[kind])}"
            yield files.make_fault(text, *place)


def _look_up_default(files: BundleFiles, node: Any, key: tuple[str | int, ...]) -> tuple[Any, tuple[str | int, ...]]:
    """Returns a value and its path of keys. For a reference to a variable these are the variable's default."""
    reference = REFERENCE.fullmatch(node) if isinstance(node, str) else None
    if reference is None or not reference[1].startswith("var."):
        return node, key
    variable = reference[1].removeprefix("var.")
    return (files.merged_content.get("variables", {}).get(variable) or {}).get("default"), (
        "variables",
        variable,
        "default",
    )


def _find_reference_faults(files: BundleFiles) -> Iterator[FileFault]:
    declared, used = files.merged_content.get("variables", {}), set()
    for document in files.documents.values():
        for key, text in iterate_texts(document.content):
            for path in REFERENCE.findall(text):
                used.add(path)
                if wrong := _explain_dangling_reference(files, path):
                    yield files.make_fault(f"${{{path}}}{wrong}", *key)
    for name, spec in declared.items():
        if not (spec or {}).get("description"):
            yield files.make_fault(f"variable {name} has no description", "variables", name)
        if f"var.{name}" not in used:
            yield files.make_fault(f"variable {name} is not used", "variables", name)
    for name, target in files.targets.items():
        for variable in target.get("variables", {}).keys() - declared.keys():
            text = f"target {name}: there is no variable {variable}"
            yield files.make_fault(text, "targets", name, "variables", variable)


def _explain_dangling_reference(files: BundleFiles, path: str) -> str | None:
    room, _, rest = path.partition(".")
    declared = files.merged_content.get("variables", {})
    resources = {f"{kind}.{key}" for kind, key, _ in _list_resources(files.merged_content)}
    wrong = {
        f": there is no such variable; there are {', '.join(declared)}": room == "var" and rest not in declared,
        ": there is no such resource": room == "resources" and ".".join(rest.split(".")[:2]) not in resources,
        " must begin with var, resources, bundle or workspace": room not in _ROOMS,
    }
    return next((text for text, applies in wrong.items() if applies), None)


def _find_kind_faults(files: BundleFiles) -> Iterator[FileFault]:
    for document in files.documents.values():
        for _, scope, key in _list_scopes(document.content):
            for kind in {kind for kind, _, _ in _list_resources(scope)} - MODELS.keys():
                yield files.make_fault(f"resources of the kind {kind!r} are not supported", *key, "resources", kind)


def _explain_refusal_by_model(kind: str, resource: Tree) -> str | None:
    """Returns why a resource's model rejects it; None if it is valid or the models are not installed."""
    if not models_are_installed():
        return None
    model = getattr(import_module(f"databricks.bundles.{kind}"), MODELS[kind])
    try:
        model.from_dict({name: value for name, value in resource.items() if name != "id"})
    except (TypeError, ValueError) as error:
        return " ".join(str(error).split())
    return None


def _find_key(node: Any, word: str) -> KeyPath:
    """Returns the path below a node of the first key or value that equals the word; empty if there is none."""
    items = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
    for key, value in items:
        if word in (key, value):
            return (key,)
        if below := _find_key(value, word):
            return (key, *below)
    return ()


def _find_target_faults(
    files: BundleFiles, name: str, variables: Mapping[str, Any], refused: Refused
) -> Iterator[FileFault]:
    try:
        target = resolve_target(files, name, variables)
    except ConfigError as error:
        yield files.make_fault(f"target {name}: {error}", "targets", name)
        return
    for kind, key, resource in _list_resources(target.config):
        root = ("resources", kind, key)
        if wrong := _explain_refusal_by_model(kind, resource):
            word = next((word for word in re.findall(r"'([\w-]+)'", wrong) if word != MODELS[kind]), "")
            found: Iterable[JobFault] = [(_find_key(resource, word), wrong)]
        else:
            own_faults = find_job_faults(resource, refused) if kind == "jobs" else ()
            found = [*own_faults, *find_permission_faults(target, kind, resource)]
        for path, text in found:
            yield files.make_fault(f"{kind}.{key}: {text}", *_find_definition(files, name, (*root, *path)))
    if target.is_production:
        yield from _find_unprotected_resources(files, target)


def _find_definition(files: BundleFiles, target: str, key: tuple[str | int, ...]) -> tuple[str | int, ...]:
    """Returns the keys that lead to where a value is defined: in its own place, or in the variable it refers to."""
    node: Any = files.merged_content
    for depth in range(len(key) + 1):
        if isinstance(node, str) and (found := REFERENCE.fullmatch(node)) and found[1].startswith("var."):
            variable = found[1].removeprefix("var.")
            setting = ("targets", target, "variables", variable)
            is_overridden = variable in files.targets[target].get("variables", {})
            default = ("variables", variable, "default", *key[depth:])
            # A wrong name within a variable's value is reported there, even if its value is another variable.
            return (
                setting
                if is_overridden
                else _find_definition(files, target, default)
                if depth < len(key) - 1
                else default
            )
        try:
            node = node[key[depth]]
        except (LookupError, TypeError):
            break
    in_target = ("targets", target, *key)
    return in_target if files.count_existing_keys(*in_target) - 2 > files.count_existing_keys(*key) else key


def _find_unprotected_resources(files: BundleFiles, target: ResolvedTarget) -> Iterator[FileFault]:
    for kind, key, resource in _list_resources(target.config):
        is_protected = kind in _PROTECTED or (kind, key) == ("volumes", _PROTECTED_VOLUME)
        if is_protected and not (resource.get("lifecycle") or {}).get("prevent_destroy"):
            text = (
                f"target {target.name}: {kind}.{key} has data that cannot be restored: "
                "set lifecycle.prevent_destroy: true"
            )
            yield files.make_fault(text, "targets", target.name, "resources", kind, key)


def _list_scopes(content: Tree) -> list[tuple[str, Tree, tuple[str, ...]]]:
    """Returns the whole document and each of its targets, which have the same structure as the document.

    Each tuple has the beginning of fault texts, the content, and its path of keys.
    """
    targets = content.get("targets") or {}
    return [("", content, ()), *((f"target {n}: ", scope or {}, ("targets", n)) for n, scope in targets.items())]


def _list_resources(scope: Tree) -> list[tuple[str, str, Tree]]:
    """Returns kind, key and content of all resources and scripts, which share one namespace of keys."""
    shared = dict(scope.get("resources", {})) | ({"scripts": scope["scripts"]} if "scripts" in scope else {})
    return [(kind, key, own or {}) for kind, resources in shared.items() for key, own in resources.items()]
