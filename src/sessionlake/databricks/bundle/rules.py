"""Finds faults in a bundle and its settings file, with file and line. Needs no workspace and reads no secrets."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from sessionlake.databricks.bundle.alert_rules import find_alert_faults
from sessionlake.databricks.bundle.dashboard_rules import find_dashboard_faults
from sessionlake.databricks.bundle.files import (
    REFERENCE,
    BundleFiles,
    FileFault,
    ResolvedTarget,
    Tree,
    iterate_texts,
    list_resources,
    list_scopes,
    read_bundle,
    resolve_target,
)
from sessionlake.databricks.bundle.identity_rules import LEVELS, find_permission_faults
from sessionlake.databricks.bundle.job_rules import Refused, find_job_faults
from sessionlake.databricks.bundle.layer_rules import find_layer_faults
from sessionlake.databricks.bundle.models import NOT_A_KEY, REQUIRED, find_model_faults, read_models
from sessionlake.databricks.bundle.query_rules import Columns, check_query, list_lake_columns
from sessionlake.databricks.bundle.reference_rules import find_reference_faults, find_unused_variables, look_up_default
from sessionlake.databricks.bundle.root_rules import find_path_faults, find_root_faults
from sessionlake.databricks.bundle.value_rules import find_value_faults
from sessionlake.errors import ConfigError
from sessionlake.settings.file import TARGETS, FileError, KeyPath, read_document, read_settings
from sessionlake.settings.model import DEFAULT_FILE, find_settings_problems

_PROTECTED = {"schemas", "secret_scopes"}
_PROTECTED_VOLUME = "checkpoints"
QUERIES = "resources/queries"
_ANOTHER_USER = {"userName": "grace@example.com", "short_name": "grace"}
_DEPLOYED = ("resources", "workspace", "permissions", "run_as")


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
        *find_root_faults(files, folder),
        *_find_key_faults(files),
        *_find_level_faults(files),
        *find_reference_faults(files),
        *_find_kind_faults(files),
    ]
    found += [] if found else _find_written_faults(files)
    if not found:
        context = _read_context(files, folder, refused)
        found = [*_find_query_faults(context)]
        found += [fault for name in files.targets for fault in _find_target_faults(context, name, variables)]
    return sorted({*found, *find_unused_variables(files), *find_settings_faults(folder, files)})


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


@dataclass(frozen=True)
class _Context:
    """What all targets are checked with.

    Attributes:
        files: The bundle's files.
        folder: The bundle's folder.
        refused: Returns why the package's command line rejects a job's parameters, or None.
        columns: The lake's tables.
        queries: The text of each file in resources/queries, by its name.
    """

    files: BundleFiles
    folder: Path
    refused: Refused
    columns: Columns
    queries: Mapping[str, str]


def _read_context(files: BundleFiles, folder: Path, refused: Refused) -> _Context:
    queries = {file.stem: file.read_text(encoding="utf-8") for file in sorted(folder.glob(f"{QUERIES}/*.sql"))}
    return _Context(files, folder, refused, list_lake_columns(_read_declared_columns(folder)), queries)


def _read_declared_columns(folder: Path) -> dict[str, str]:
    """Returns the SQL types of the columns that the settings file declares; none if it cannot be read."""
    try:
        content = read_document(folder / DEFAULT_FILE).content
    except FileError:
        return {}
    capture = content.get("capture") or {}
    feeds = capture.get("feeds") or []
    feeds = list(feeds.values()) if isinstance(feeds, dict) else feeds
    declared = [capture.get("columns"), *(feed.get("columns") for feed in feeds if isinstance(feed, dict))]
    return {str(name): str(kind) for own in declared if isinstance(own, dict) for name, kind in own.items()}


def _find_query_faults(context: _Context) -> Iterator[FileFault]:
    for name, sql in context.queries.items():
        for line, text in check_query(sql, context.columns, None, frozenset({"prefix"})).faults:
            yield FileFault(f"{QUERIES}/{name}.sql", line, text)


def _make_unreadable_fault(folder: Path, error: FileError) -> FileFault:
    return FileFault(error.path.relative_to(folder).as_posix(), error.line, error.why)


def _find_key_faults(files: BundleFiles) -> Iterator[FileFault]:
    kinds, places = defaultdict(set), defaultdict(set)
    for file, document in files.documents.items():
        for kind, key, _ in list_resources(document.content):
            places[kind, key].add(file)
        for _, scope, _ in list_scopes(document.content):
            for kind, key, _ in list_resources(scope):
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


def _find_level_faults(files: BundleFiles) -> Iterator[FileFault]:
    for document in files.documents.values():
        for where, scope, key in list_scopes(document.content):
            yield from _find_wrong_levels(files, where, "bundle", scope, key)
            for kind, name, resource in list_resources(scope):
                path = (*key, "resources", kind, name)
                yield from _find_wrong_levels(files, f"{where}{kind}.{name}: ", kind, resource, path)


def _find_wrong_levels(
    files: BundleFiles, where: str, kind: str, holder: Tree, key: tuple[str, ...]
) -> Iterator[FileFault]:
    if "permissions" in holder and kind not in LEVELS:
        yield files.make_fault(f"{where}may not have permissions", *key, "permissions")
        return
    for number, permission in enumerate(holder.get("permissions", [])):
        given, place = look_up_default(files, permission, (*key, "permissions", number))
        if not isinstance(given, dict):
            given = {}
        level, place = look_up_default(files, given.get("level"), (*place, "level"))
        if level not in LEVELS[kind]:
            text = f"{where}level {level!r} is not one of {', '.join(LEVELS[kind])}"
            yield files.make_fault(text, *place)


def _find_kind_faults(files: BundleFiles) -> Iterator[FileFault]:
    for document in files.documents.values():
        for _, scope, key in list_scopes(document.content):
            for kind in {kind for kind, _, _ in list_resources(scope)} - read_models().kinds.keys():
                yield files.make_fault(f"resources of the kind {kind!r} are not supported", *key, "resources", kind)


def _find_written_faults(files: BundleFiles) -> list[FileFault]:
    """Returns the faults of resources as the files write them, before targets are merged and references filled in."""
    models, found = read_models(), []
    for name, document in files.documents.items():
        for where, scope, key in list_scopes(document.content):
            for kind, own, resource in list_resources(scope):
                for path, text in find_model_faults(models, models.kinds[kind], resource):
                    if REQUIRED not in text:  # another file may have the key
                        line = document.line((*key, "resources", kind, own, *path)) or 1
                        found.append(FileFault(name, line, f"{where}{kind}.{own}: {text}"))
    return found


def _find_target_faults(context: _Context, name: str, variables: Mapping[str, Any]) -> Iterator[FileFault]:
    files = context.files
    try:
        target = resolve_target(files, name, variables)
        other = resolve_target(files, name, variables, _ANOTHER_USER)
    except ConfigError as error:
        yield files.make_fault(f"target {name}: {error}", "targets", name)
        return
    for kind, key, resource in list_resources(target.config):
        root = ("resources", kind, key)
        for path, text, line in _find_resource_faults(context, target, kind, resource):
            yield _make_fault_at(files, name, (*root, *path), f"{kind}.{key}: {text}", line)
    for job, (path, text) in find_layer_faults(target) if _fits_models(target) else ():
        yield _make_fault_at(files, name, ("resources", "jobs", job, *path), f"jobs.{job}: {text}")
    others = (
        *find_path_faults(files, context.folder, target),
        *_find_user_faults(target, other),
        *_find_prefix_faults(target),
    )
    for path, text in others:
        yield _make_fault_at(files, name, path, text)
    if target.is_production:
        yield from _find_unprotected_resources(files, target)


def _find_resource_faults(
    context: _Context, target: ResolvedTarget, kind: str, resource: Tree
) -> Iterator[tuple[KeyPath, str, int]]:
    """Yields the faults of one resource: the path of keys, the text, and the line within a text of many lines, or 0."""
    models = read_models()
    own = _without_id(resource)
    wrong = [*find_model_faults(models, models.kinds[kind], own)]
    yield from ((path, text, 0) for path, text in wrong)
    if wrong:
        return
    simple = [*find_value_faults(target, kind, own), *find_permission_faults(target, kind, resource)]
    simple += [*find_job_faults(resource, context.refused)] if kind == "jobs" else []
    yield from ((path, text, 0) for path, text in simple)
    if kind not in {"alerts", "dashboards"}:
        return
    schemas = _list_schemas(context.files, target)
    if kind == "alerts":
        catalog = str(target.config["var"].get("catalog"))
        yield from find_alert_faults(own, context.columns, schemas, catalog, context.queries)
    else:
        yield from find_dashboard_faults(own, context.columns, schemas, context.queries)


def _fits_models(target: ResolvedTarget) -> bool:
    """Returns True if all jobs of a target have tasks, and the keys and types of their model."""
    models = read_models()
    return all(
        job.get("tasks") and not any(find_model_faults(models, models.kinds["jobs"], _without_id(job)))
        for job in target.jobs.values()
    )


def _without_id(resource: Tree) -> Tree:
    return {name: value for name, value in resource.items() if name != "id"}


def _list_schemas(files: BundleFiles, target: ResolvedTarget) -> dict[str, str]:
    """Returns the lake's schema, such as `ops`, by its name in the target's deployment."""
    written = (files.merged_content.get("resources") or {}).get("schemas") or {}
    deployed = target.resources_of_kind("schemas")
    return {str(own.get("name")): str(written.get(key, {}).get("name")) for key, own in deployed.items()}


def _find_user_faults(target: ResolvedTarget, other: ResolvedTarget) -> Iterator[tuple[KeyPath, str]]:
    """Yields what a second user would deploy otherwise, to a target that all users share."""
    if not target.is_production:
        return
    theirs = dict(iterate_texts({name: other.config.get(name) for name in _DEPLOYED}))
    for key, text in iterate_texts({name: target.config.get(name) for name in _DEPLOYED}):
        if key[:2] != ("workspace", "current_user") and theirs.get(key) != text:
            yield key, f"target {target.name}: depends on who deploys, so a second user's deployment would change it"


def _find_prefix_faults(target: ResolvedTarget) -> Iterator[tuple[KeyPath, str]]:
    """Yields a value of `schema_prefix` with which the dashboard shows the tables of another deployment."""
    prefix = target.config["var"].get("schema_prefix")
    names = [own.get("name") for own in target.resources_of_kind("schemas").values()]
    if prefix is not None and names and f"{prefix}ops" not in names:
        text = f"target {target.name}: with schema_prefix {prefix!r} the dashboard looks for the schema '{prefix}ops'"
        known = ", ".join(map(str, names))
        yield ("targets", target.name, "variables", "schema_prefix"), f"{text}, but there are {known}"


def _make_fault_at(files: BundleFiles, target: str, key: KeyPath, text: str, line: int = 0) -> FileFault:
    fault = files.make_fault(text, *_find_definition(files, target, key, is_value=NOT_A_KEY not in text))
    return replace(fault, line=fault.line + line)


def _find_definition(files: BundleFiles, target: str, key: KeyPath, *, is_value: bool = True) -> KeyPath:
    """Returns the keys that lead to where a value is defined: in its own place, or in the variable it refers to.

    Args:
        files: The bundle's files.
        target: The target of the deployment.
        key: Path of keys in the resolved target.
        is_value: True to find the value; False to find the last key itself, which may have a variable as its value.
    """
    node: Any = files.merged_content
    for depth in range(len(key) + is_value):
        if isinstance(node, str) and (found := REFERENCE.fullmatch(node)) and found[1].startswith("var."):
            variable = found[1].removeprefix("var.")
            if variable in (files.targets[target].get("variables") or {}):
                return ("targets", target, "variables", variable, *key[depth:])
            return _find_definition(files, target, ("variables", variable, "default", *key[depth:]), is_value=is_value)
        if depth == len(key):
            break
        try:
            node = node[key[depth]]
        except (LookupError, TypeError):
            break
    in_target: KeyPath = ("targets", target, *key)
    return in_target if files.count_existing_keys(*in_target) - 2 > files.count_existing_keys(*key) else key


def _find_unprotected_resources(files: BundleFiles, target: ResolvedTarget) -> Iterator[FileFault]:
    for kind, key, resource in list_resources(target.config):
        is_protected = kind in _PROTECTED or (kind, key) == ("volumes", _PROTECTED_VOLUME)
        if is_protected and not (resource.get("lifecycle") or {}).get("prevent_destroy"):
            text = (
                f"target {target.name}: {kind}.{key} has data that cannot be restored: "
                "set lifecycle.prevent_destroy: true"
            )
            yield files.make_fault(text, "targets", target.name, "resources", kind, key)
