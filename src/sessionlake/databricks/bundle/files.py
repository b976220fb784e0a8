"""Reads a bundle's files and resolves one target as a deployment does: merges files, applies presets, fills references.

The Databricks CLI, which deploys bundles, is in no package registry, so it may be missing. This module repeats its
documented steps as far as this project's bundle needs them.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property, reduce
from pathlib import Path
from typing import Any

from sessionlake.errors import ConfigError
from sessionlake.settings.file import FileError, KeyPath, YamlDocument, read_document

BUNDLE_FILE = "databricks.yml"
REFERENCE = re.compile(r"\$\{([\w.-]+)\}")
DEVELOPMENT, PRODUCTION = "development", "production"
LEVELS_BELOW = {
    "jobs": {"CAN_VIEW": "CAN_VIEW", "CAN_RUN": "CAN_MANAGE_RUN", "CAN_MANAGE": "CAN_MANAGE"},
    "dashboards": {"CAN_VIEW": "CAN_READ", "CAN_MANAGE": "CAN_MANAGE"},
    "alerts": {"CAN_VIEW": "CAN_READ", "CAN_RUN": "CAN_RUN", "CAN_MANAGE": "CAN_MANAGE"},
    "sql_warehouses": {"CAN_VIEW": "CAN_VIEW", "CAN_RUN": "CAN_MONITOR", "CAN_MANAGE": "CAN_MANAGE"},
    "secret_scopes": {"CAN_VIEW": "READ", "CAN_MANAGE": "MANAGE"},
}
"""Translation of the bundle's permission levels for each kind of resource. A level that is missing has no effect."""
_RUN_AS = ("jobs", "alerts")
YamlMapping = dict[str, Any]
ResourceFault = tuple[KeyPath, str]
"""Path of keys within a resource, and the fault's description."""
_USER = {"userName": "ada@example.com", "short_name": "ada"}


@dataclass(frozen=True, order=True)
class FileFault:
    """A fault at a line of a file.

    Attributes:
        file: Path of the file in the bundle.
        line: The line, counted from 1.
        text: What is wrong.
    """

    file: str
    line: int
    text: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.text}"


@dataclass(frozen=True)
class BundleFiles:
    """The files of a bundle: `databricks.yml` and those that it includes.

    Attributes:
        documents: The parsed files, by their path in the bundle.
    """

    documents: Mapping[str, YamlDocument]

    @cached_property
    def merged_content(self) -> YamlMapping:
        """The content of all files merged into one. References `${…}` are not replaced. Callers must not change it."""
        return reduce(merge_yaml_content, (copy.deepcopy(document.content) for document in self.documents.values()))

    @property
    def targets(self) -> YamlMapping:
        """The content of each target in `databricks.yml`, by the target's name."""
        found = self.documents[BUNDLE_FILE].content.get("targets") or {}
        return {name: target or {} for name, target in found.items()}

    def create_fault(self, text: str, *key: str | int, file: str | None = None) -> FileFault:
        """Returns a fault at the line of a key. If the files lack the key, it is the line of the nearest key above it.

        Args:
            text: Description of the fault.
            key: Path of keys from the document's root.
            file: Only look in this file; None looks in all.
        """
        found = [
            (depth, name, document.lines[key[:depth]])
            for name, document in self.documents.items()
            for depth in range(1, len(key) + 1)
            if key[:depth] in document.lines and file in {None, name}
        ]
        _, name, line = max(found, default=(0, file or BUNDLE_FILE, 1))
        return FileFault(name, line, text)

    def count_existing_key_levels(self, *key: str | int) -> int:
        """Returns how many of the key's levels the files have, counted from the root."""
        lines = [document.lines for document in self.documents.values()]
        return max((n for n in range(1, len(key) + 1) if any(key[:n] in known for known in lines)), default=0)


@dataclass(frozen=True)
class ResolvedTarget:
    """One target of a bundle as it would be deployed, with all variables replaced by their values.

    Attributes:
        name: Name of the target.
        config: The whole configuration of the target, as nested dictionaries.
    """

    name: str
    config: YamlMapping

    @property
    def is_production(self) -> bool:
        """True if the target's mode is `production`."""
        return bool(self.config.get("mode") == PRODUCTION)

    @property
    def jobs(self) -> YamlMapping:
        """The target's jobs, by their key in the bundle."""
        return self.list_resources_of_kind("jobs")

    def list_resources_of_kind(self, kind: str) -> YamlMapping:
        """Returns the target's resources of a kind, such as `schemas`, by their key in the bundle."""
        return dict(self.config.get("resources", {}).get(kind, {}))


def read_bundle(folder: Path) -> BundleFiles:
    """Reads a bundle's files from its folder.

    Raises:
        ConfigError: The folder has no bundle, or a file cannot be read.
    """
    main = read_document(folder / BUNDLE_FILE)
    patterns = main.content.get("include", [])
    if not isinstance(patterns, list) or not all(isinstance(own, str) and not own.startswith("/") for own in patterns):
        raise FileError(
            main.path,
            main.find_line(("include",)) or 0,
            ": include must be a list of file patterns relative to this folder",
        )
    included = [file for pattern in patterns for file in sorted(folder.glob(pattern))]
    return BundleFiles(
        {BUNDLE_FILE: main} | {file.relative_to(folder).as_posix(): read_document(file) for file in included}
    )


def resolve_target(
    files: BundleFiles, name: str, variables: Mapping[str, Any], user: Mapping[str, str] | None = None
) -> ResolvedTarget:
    """Returns a target as it would be deployed, with all variables replaced by their values.

    Args:
        files: The bundle's files.
        name: Name of the target.
        variables: Values of variables. A variable without a value or default becomes `<name>`.
        user: Who deploys: `userName` and `short_name`. None stands for a user in an example.

    Raises:
        ConfigError: A reference `${…}` names something that does not exist, or refers to itself.
    """
    config = copy.deepcopy(files.merged_content)
    chosen = config.pop("targets")[name] or {}
    declared = {key: (spec or {}).get("default", f"<{key}>") for key, spec in config.pop("variables", {}).items()}
    # A deployment prefers what the environment and the file of overrides say to what the target has.
    values = declared | (chosen.pop("variables", None) or {}) | dict(variables)
    config = merge_yaml_content(config, chosen)
    config["bundle"] = config.get("bundle", {}) | {"target": name}
    config["var"] = values
    _add_workspace_paths_and_user(config, name, user or _USER)
    _apply_presets_to_resources(config)
    _copy_identities_to_resources(config)
    return ResolvedTarget(name, _replace_references(config, config, ()))


def merge_yaml_content(base: Any, override: Any) -> Any:
    """Returns two contents as one: mappings merged by key, lists joined. Other values of `override` replace `base`."""
    if isinstance(base, dict) and isinstance(override, dict):
        return base | {
            key: merge_yaml_content(base[key], value) if key in base else value for key, value in override.items()
        }
    return [*base, *override] if isinstance(base, list) and isinstance(override, list) else override


def iterate_nested_texts(node: Any, key: KeyPath = ()) -> Iterator[tuple[KeyPath, str]]:
    """Yields the path of keys and the value of every text in nested dictionaries and lists.

    Args:
        node: The dictionaries and lists.
        key: The path of `node` itself, with which all results begin.
    """
    if isinstance(node, dict | list):
        items = node.items() if isinstance(node, dict) else enumerate(node)
        for own, value in items:
            yield from iterate_nested_texts(value, (*key, own))
    elif isinstance(node, str):
        yield key, node


def list_document_and_its_targets(content: YamlMapping) -> list[tuple[str, YamlMapping, tuple[str, ...]]]:
    """Returns the parts of a bundle's document that may have resources: the document itself and each of its targets.

    Each item has the beginning of fault texts about the part, its content, and its path of keys.
    """
    targets = content.get("targets") or {}
    return [("", content, ()), *((f"target {n}: ", scope or {}, ("targets", n)) for n, scope in targets.items())]


def list_resources(scope: YamlMapping) -> list[tuple[str, str, YamlMapping]]:
    """Returns kind, key and content of all resources and scripts in a document or target."""
    shared = dict(scope.get("resources") or {}) | ({"scripts": scope["scripts"]} if "scripts" in scope else {})
    return [(kind, key, own or {}) for kind, resources in shared.items() for key, own in (resources or {}).items()]


def _add_workspace_paths_and_user(config: YamlMapping, target: str, user: Mapping[str, str]) -> None:
    root = f"/Workspace/Users/{user['userName']}/.bundle/{config['bundle']['name']}/{target}"
    given = config.get("workspace") or {}
    paths = {"root_path": root, "file_path": f"{given.get('root_path') or root}/files"}
    config["workspace"] = paths | given | {"current_user": dict(user)}


def _apply_presets_to_resources(config: YamlMapping) -> None:
    development = config.get("mode") == DEVELOPMENT
    own = config["workspace"]["current_user"]["short_name"]
    defaults = {"name_prefix": f"[dev {own}] ", "trigger_pause_status": "PAUSED"} if development else {}
    presets = defaults | config.get("presets", {})
    paused = presets.get("trigger_pause_status")
    for kind, found in config.get("resources", {}).items():
        for key, resource in found.items():
            if not isinstance(resource, dict):
                continue
            resource.setdefault("id", f"<{kind}.{key}.id>")  # the workspace gives it
            _add_prefix_to_resource_name(kind, resource, presets.get("name_prefix", ""))
            for when in {"continuous", "schedule", "trigger"} & resource.keys() if paused else ():
                if isinstance(resource[when], dict):
                    resource[when].setdefault("pause_status", paused)


def _copy_identities_to_resources(config: YamlMapping) -> None:
    """Copies the bundle's `run_as` and `permissions` to each resource, with the permission levels that its kind has."""
    permissions = _replace_references(config.get("permissions", []), config, ())
    for kind, found in config.get("resources", {}).items():
        levels = LEVELS_BELOW.get(kind, {})
        translated = [{**given, "level": levels[given["level"]]} for given in permissions if given["level"] in levels]
        for resource in found.values():
            if "run_as" in config and kind in _RUN_AS:
                resource.setdefault("run_as", config["run_as"])
            if translated:
                resource["permissions"] = [*resource.get("permissions", []), *translated]


def _add_prefix_to_resource_name(kind: str, resource: YamlMapping, prefix: str) -> None:
    field = "display_name" if kind in {"dashboards", "alerts"} else "name"
    name = resource.get(field)
    if not isinstance(name, str):
        return
    if kind in {"jobs", "sql_warehouses", "dashboards", "alerts"}:
        resource[field] = f"{prefix}{name}"
    elif kind == "schemas":
        resource[field] = re.sub(r"\W+", "_", prefix).lstrip("_") + name


def _replace_references(node: Any, config: YamlMapping, seen: tuple[str, ...]) -> Any:
    if isinstance(node, dict):
        return {key: _replace_references(value, config, seen) for key, value in node.items()}
    if isinstance(node, list):
        return [_replace_references(value, config, seen) for value in node]
    if not isinstance(node, str):
        return node
    reference = REFERENCE.fullmatch(node)
    if reference:
        return _look_up_value_of_reference(reference[1], config, seen)
    return REFERENCE.sub(lambda match: str(_look_up_value_of_reference(match[1], config, seen)), node)


def _look_up_value_of_reference(path: str, config: YamlMapping, seen: tuple[str, ...]) -> Any:
    node: Any = config
    for part in path.split("."):
        if not isinstance(node, dict) or part not in node:
            known = ", ".join(node) if isinstance(node, dict) else "nothing"
            raise ConfigError(
                f"${{{path}}} in the bundle refers to nothing: there is no {part!r}, there is {known}",
                fix="Correct the reference",
            )
        node = node[part]
    if path in seen:
        raise ConfigError(
            f"the bundle's variable ${{{path}}} refers to itself", fix="Give the variable a value in databricks.yml"
        )
    return _replace_references(node, config, (*seen, path))
