"""Finds faults in a bundle and its settings file, with file and line. Needs no workspace and reads no secrets."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from sessionlake.databricks.bundle.alert_rules import find_alert_faults
from sessionlake.databricks.bundle.dashboard_rules import find_dashboard_faults
from sessionlake.databricks.bundle.environment_rules import find_environment_faults
from sessionlake.databricks.bundle.file_rules import find_faults_of_file_paths
from sessionlake.databricks.bundle.files import (
    REFERENCE,
    BundleFiles,
    FileFault,
    ResolvedTarget,
    YamlMapping,
    iterate_nested_texts,
    list_document_and_its_targets,
    list_resources,
    merge_yaml_content,
    read_bundle,
    resolve_target,
)
from sessionlake.databricks.bundle.identity_rules import IDENTITIES, LEVELS, find_resource_permission_faults
from sessionlake.databricks.bundle.job_rules import RefusedCommandExplainer, find_job_faults
from sessionlake.databricks.bundle.layer_rules import find_faults_of_layer_jobs, find_jobs_without_failure_notification
from sessionlake.databricks.bundle.models import (
    REQUIRED,
    find_key_and_type_faults,
    read_resource_models,
    suggest_similar_name,
)
from sessionlake.databricks.bundle.overrides import read_variable_overrides
from sessionlake.databricks.bundle.places import LocatedFault, join_faults_at_same_line, locate_fault
from sessionlake.databricks.bundle.query_rules import ColumnsOfTables, check_query, list_lake_columns
from sessionlake.databricks.bundle.reference_rules import (
    find_reference_faults,
    find_unused_variables,
    look_up_variable_default,
)
from sessionlake.databricks.bundle.root_rules import find_faults_outside_resources
from sessionlake.databricks.bundle.value_rules import find_resources_with_same_name, find_value_faults
from sessionlake.errors import ConfigError
from sessionlake.settings.environment import SettingsWithoutEnvironment, find_settings_problems
from sessionlake.settings.file import TARGETS, FileError, KeyPath, YamlDocument, read_document, read_settings
from sessionlake.settings.model import DEFAULT_FILE

_PROTECTED = {"schemas", "secret_scopes"}
_PROTECTED_VOLUME = "checkpoints"
QUERIES = "resources/queries"
_ANOTHER_USER = {"userName": "grace@example.com", "short_name": "grace"}
_DEPLOYED = ("resources", "workspace", "permissions", "run_as")


def find_bundle_faults(
    folder: Path, variables: Mapping[str, Any], explain_why_job_may_not_run: RefusedCommandExplainer
) -> list[FileFault]:
    """Returns all faults of the bundle in a folder, sorted by file and line.

    Args:
        folder: The bundle's folder.
        variables: Values of variables of the bundle, by name.
        explain_why_job_may_not_run: Returns why the package's command line rejects a job's parameters, or None.
    """
    try:
        files = read_bundle(folder)
    except FileError as error:
        return [_create_unreadable_file_fault(folder, error)]
    found = [
        *find_faults_outside_resources(files, folder),
        *_find_ambiguous_resource_keys(files),
        *_find_permission_level_faults(files),
        *find_reference_faults(files),
        *_find_unsupported_resource_kinds(files),
    ]
    found += [] if found else _find_faults_of_resources_as_written(files)
    if not found:
        context = _create_bundle_check_context(files, folder, explain_why_job_may_not_run)
        found = [*_find_faults_of_query_files(context)]
        placed = (
            fault for name in files.targets for fault in _find_faults_of_resolved_target(context, name, variables)
        )
        found += join_faults_at_same_line(placed)
    return sorted({*found, *find_unused_variables(files), *find_settings_faults(folder, files)})


def find_settings_faults(folder: Path, files: BundleFiles) -> Iterator[FileFault]:
    """Yields the faults that the settings file has for any target. Secrets are assumed to be valid."""
    try:
        document = read_document(folder / DEFAULT_FILE)
        for name in (None, *files.targets):
            content = read_settings(document, name)
            for line, text in find_settings_problems(content):
                yield FileFault(DEFAULT_FILE, line or 1, text)
            for key, path in content.list_file_paths():
                if path.is_relative_to(folder) and not path.is_file():
                    text = f"{path.relative_to(folder)}: there is no such file"
                    yield FileFault(DEFAULT_FILE, content.find_line(key) or 1, text)
    except FileError as error:
        yield _create_unreadable_file_fault(folder, error)
        return
    for name in document.content.get(TARGETS, {}).keys() - files.targets.keys():
        text = f"targets.{name}: the bundle has no such target; it has {', '.join(files.targets)}"
        yield FileFault(DEFAULT_FILE, document.find_line((TARGETS, name)) or 1, text)


@dataclass(frozen=True)
class _BundleCheckContext:
    """What the checks of all targets need.

    Attributes:
        files: The bundle's files.
        folder: The bundle's folder.
        refused: Returns why the package's command line rejects a job's parameters, or None.
        columns: The columns of each table of the lake, by the table's name.
        queries: The text of each file in resources/queries, by its name.
        settings: The settings file; None if it cannot be read.
    """

    files: BundleFiles
    folder: Path
    explain_refused_command: RefusedCommandExplainer
    columns: ColumnsOfTables
    queries: Mapping[str, str]
    settings: YamlDocument | None


def _create_bundle_check_context(
    files: BundleFiles, folder: Path, explain_why_job_may_not_run: RefusedCommandExplainer
) -> _BundleCheckContext:
    queries = {file.stem: file.read_text(encoding="utf-8") for file in sorted(folder.glob(f"{QUERIES}/*.sql"))}
    added: ColumnsOfTables = {name: {} for name in _list_tables_added_by_settings(folder)}
    columns = {**list_lake_columns(_read_declared_columns(folder)), **added}
    return _BundleCheckContext(
        files, folder, explain_why_job_may_not_run, columns, queries, _read_settings_file(folder)
    )


def _read_settings_file(folder: Path) -> YamlDocument | None:
    """Returns the parsed settings file; None if it cannot be read. Another check reports that."""
    try:
        return read_document(folder / DEFAULT_FILE)
    except FileError:
        return None


def _list_tables_added_by_settings(folder: Path) -> list[str]:
    """Returns the names of tables and views that only the settings file declares; empty if the file has a fault."""
    try:
        settings = SettingsWithoutEnvironment(**read_settings(read_document(folder / DEFAULT_FILE)).content)
    except (FileError, ValidationError):
        return []
    return [*settings.added_tables, *settings.capture.feed_views]


def _read_declared_columns(folder: Path) -> dict[str, str]:
    """Returns the SQL types of the columns that the settings file declares, by name; empty if it cannot be read."""
    try:
        content = read_document(folder / DEFAULT_FILE).content
    except FileError:
        return {}
    capture = content.get("capture") or {}
    feeds = capture.get("feeds") or []
    feeds = list(feeds.values()) if isinstance(feeds, dict) else feeds
    declared = [capture.get("columns"), *(feed.get("columns") for feed in feeds if isinstance(feed, dict))]
    return {str(name): str(kind) for own in declared if isinstance(own, dict) for name, kind in own.items()}


def _find_faults_of_query_files(context: _BundleCheckContext) -> Iterator[FileFault]:
    for name, sql in context.queries.items():
        for line, text in check_query(sql, context.columns, None, frozenset({"prefix"})).faults:
            yield FileFault(f"{QUERIES}/{name}.sql", line, text)


def _create_unreadable_file_fault(folder: Path, error: FileError) -> FileFault:
    return FileFault(error.path.relative_to(folder).as_posix(), error.line, error.why)


def _find_ambiguous_resource_keys(files: BundleFiles) -> Iterator[FileFault]:
    kinds, places = defaultdict(set), defaultdict(set)
    for file, document in files.documents.items():
        for kind, key, _ in list_resources(document.content):
            places[kind, key].add(file)
        for _, scope, _ in list_document_and_its_targets(document.content):
            for kind, key, _ in list_resources(scope):
                kinds[key].add(kind)
    for key, found in kinds.items():
        if len(found) > 1:
            last = max(found)
            text = f"key {key!r} has several types: {', '.join(sorted(found))}"
            yield files.create_fault(text, "resources", last, key)
    for (kind, key), spread in places.items():
        text = f"{kind}.{key} is spread over {', '.join(sorted(spread))}"
        for place in spread if len(spread) > 1 else ():
            yield files.create_fault(text, "resources", kind, key, file=place)


def _find_permission_level_faults(files: BundleFiles) -> Iterator[FileFault]:
    for document in files.documents.values():
        for where, scope, key in list_document_and_its_targets(document.content):
            yield from _find_wrong_permission_levels(files, where, "bundle", scope, key)
            names = IDENTITIES & (scope.get("run_as") or {}).keys()
            if len(names) > 1:
                text = f"{where}run_as must name exactly one of {', '.join(sorted(IDENTITIES))}, found {len(names)}"
                yield files.create_fault(text, *key, "run_as")
            for kind, name, resource in list_resources(scope):
                path = (*key, "resources", kind, name)
                yield from _find_wrong_permission_levels(files, f"{where}{kind}.{name}: ", kind, resource, path)


def _find_wrong_permission_levels(
    files: BundleFiles, where: str, kind: str, holder: YamlMapping, key: tuple[str, ...]
) -> Iterator[FileFault]:
    if "permissions" in holder and kind not in LEVELS:
        yield files.create_fault(f"{where}may not have permissions", *key, "permissions")
        return
    for number, permission in enumerate(holder.get("permissions", [])):
        given, place = look_up_variable_default(files, permission, (*key, "permissions", number))
        if not isinstance(given, dict):
            given = {}
        if (number_of_names := len(IDENTITIES & given.keys())) != 1:
            text = (
                f"{where}a permission must name exactly one of {', '.join(sorted(IDENTITIES))}, not {number_of_names}"
            )
            yield files.create_fault(text, *place)
        level, place = look_up_variable_default(files, given.get("level"), (*place, "level"))
        if level not in LEVELS[kind]:
            text = f"{where}level {level!r} is not one of {', '.join(LEVELS[kind])}"
            yield files.create_fault(text, *place)


def _find_unsupported_resource_kinds(files: BundleFiles) -> Iterator[FileFault]:
    for document in files.documents.values():
        for _, scope, key in list_document_and_its_targets(document.content):
            for kind in {kind for kind, _, _ in list_resources(scope)} - read_resource_models().kinds.keys():
                yield files.create_fault(f"resources of the kind {kind!r} are not supported", *key, "resources", kind)


def _find_faults_of_resources_as_written(files: BundleFiles) -> list[FileFault]:
    """Returns the faults of resources as they are in the files, before targets are merged and references replaced."""
    models, found = read_resource_models(), []
    for name, document in files.documents.items():
        for where, scope, key in list_document_and_its_targets(document.content):
            for kind, own, resource in list_resources(scope):
                for path, text in find_key_and_type_faults(models, models.kinds[kind], resource):
                    if REQUIRED not in text:  # another file may have the key
                        line = document.find_line((*key, "resources", kind, own, *path)) or 1
                        found.append(FileFault(name, line, f"{where}{kind}.{own}: {text}"))
    return [*found, *_find_missing_required_keys(files)]


def _find_missing_required_keys(files: BundleFiles) -> Iterator[FileFault]:
    """Yields a fault for each key that a resource must have, but that no file gives it."""
    models, shared = read_resource_models(), files.merged_content.get("resources") or {}
    for name, target in files.targets.items():
        merged = merge_yaml_content(shared, target.get("resources") or {})
        for kind, own, resource in list_resources({"resources": merged}):
            is_shared = own in (shared.get(kind) or {})
            root = () if is_shared else ("targets", name)
            hint = "" if is_shared else suggest_similar_name(own, list(shared.get(kind) or {}))
            for path, text in find_key_and_type_faults(models, models.kinds[kind], resource):
                if REQUIRED in text:
                    yield files.create_fault(f"{kind}.{own}: {text}{hint}", *root, "resources", kind, own, *path)


def _find_faults_of_resolved_target(
    context: _BundleCheckContext, name: str, variables: Mapping[str, Any]
) -> Iterator[LocatedFault]:
    files = context.files
    own, faults = read_variable_overrides(context.folder, name, files.merged_content.get("variables") or {})
    yield from (LocatedFault(fault.file, fault.line, "", fault.text) for fault in faults)
    try:
        target = resolve_target(files, name, own | dict(variables))
        other = resolve_target(files, name, own | dict(variables), _ANOTHER_USER)
    except ConfigError as error:
        yield locate_fault(files, name, _find_key_of_reference(files, name, str(error)), f"target {name}: {error}")
        return
    for kind, key, resource in list_resources(target.config):
        root = ("resources", kind, key)
        for path, text, line in _find_resource_faults(context, target, kind, resource):
            yield locate_fault(files, name, (*root, *path), text, f"{kind}.{key}", line)
    for job, (path, text) in find_faults_of_layer_jobs(target) if _have_all_jobs_valid_keys(target) else ():
        yield locate_fault(files, name, ("resources", "jobs", job, *path), text, f"jobs.{job}")
    others = (
        *find_faults_of_file_paths(files, context.folder, target),
        *_find_user_dependent_texts(target, other),
        *_find_wrong_schema_prefix(target),
        *find_resources_with_same_name(target),
        *find_jobs_without_failure_notification(target),
    )
    for path, text in others:
        yield locate_fault(files, name, path, text)
    for path, text in _find_unprotected_resources(target) if target.is_production else ():
        yield locate_fault(files, name, path, text)


def _find_resource_faults(
    context: _BundleCheckContext, target: ResolvedTarget, kind: str, resource: YamlMapping
) -> Iterator[tuple[KeyPath, str, int]]:
    """Yields the faults of one resource: the key in it, the fault's text, and the line within the key's text, or 0.

    Args:
        context: What the checks of all targets need.
        target: The target, with all variables replaced by their values.
        kind: Kind of the resource, such as `jobs`.
        resource: The resource.
    """
    models = read_resource_models()
    own = _remove_resource_id(resource)
    wrong = [*find_key_and_type_faults(models, models.kinds[kind], own)]
    yield from ((path, text, 0) for path, text in wrong)
    if wrong:
        return
    simple = [*find_value_faults(target, kind, own), *find_resource_permission_faults(target, kind, resource)]
    schemas = _map_deployed_schemas_to_lake_schemas(context.files, target)
    if kind == "jobs":
        simple += [
            *find_job_faults(resource, context.explain_refused_command),
            *find_environment_faults(resource, schemas, context.columns, context.settings),
        ]
    yield from ((path, text, 0) for path, text in simple)
    if kind not in {"alerts", "dashboards"}:
        return
    if kind == "alerts":
        catalog = str(target.config["var"].get("catalog"))
        yield from find_alert_faults(own, context.columns, schemas, catalog, context.queries)
    else:
        yield from find_dashboard_faults(own, context.columns, schemas, context.queries)


def _have_all_jobs_valid_keys(target: ResolvedTarget) -> bool:
    """Returns True if all jobs of a target have tasks, and only keys and types that jobs may have."""
    models = read_resource_models()
    return all(
        job.get("tasks") and not any(find_key_and_type_faults(models, models.kinds["jobs"], _remove_resource_id(job)))
        for job in target.jobs.values()
    )


def _remove_resource_id(resource: YamlMapping) -> YamlMapping:
    return {name: value for name, value in resource.items() if name != "id"}


def _map_deployed_schemas_to_lake_schemas(files: BundleFiles, target: ResolvedTarget) -> dict[str, str]:
    """Returns, for each schema's name in the target's deployment, its name in the lake, such as `ops`."""
    written = (files.merged_content.get("resources") or {}).get("schemas") or {}
    deployed = target.list_resources_of_kind("schemas")
    return {str(own.get("name")): str(written.get(key, {}).get("name")) for key, own in deployed.items()}


def _find_user_dependent_texts(target: ResolvedTarget, other: ResolvedTarget) -> Iterator[tuple[KeyPath, str]]:
    """Yields key and fault of each text that would change if a second user deployed the target, which all users share.

    Args:
        target: The target as one user would deploy it.
        other: The target as a second user would deploy it.
    """
    if not target.is_production:
        return
    theirs = dict(iterate_nested_texts({name: other.config.get(name) for name in _DEPLOYED}))
    for key, text in iterate_nested_texts({name: target.config.get(name) for name in _DEPLOYED}):
        if key[:2] != ("workspace", "current_user") and theirs.get(key) != text:
            yield key, f"target {target.name}: depends on who deploys, so a second user's deployment would change it"


def _find_wrong_schema_prefix(target: ResolvedTarget) -> Iterator[tuple[KeyPath, str]]:
    """Yields a fault if `schema_prefix` makes the dashboard look for schemas that the target does not have."""
    prefix = target.config["var"].get("schema_prefix")
    names = [own.get("name") for own in target.list_resources_of_kind("schemas").values()]
    if prefix is not None and names and f"{prefix}ops" not in names:
        text = f"target {target.name}: with schema_prefix {prefix!r} the dashboard looks for the schema '{prefix}ops'"
        known = ", ".join(map(str, names))
        yield ("targets", target.name, "variables", "schema_prefix"), f"{text}, but there are {known}"


def _find_key_of_reference(files: BundleFiles, target: str, text: str) -> KeyPath:
    """Returns the key of the value with the reference that an error text names; the target's key if there is none."""
    found = REFERENCE.search(text)
    own: KeyPath = ("variables", found[1].removeprefix("var."), "default") if found else ()
    if found and found[1].startswith("var.") and files.count_existing_key_levels(*own) == len(own):
        return own
    texts = iterate_nested_texts(files.merged_content)
    return next((key for key, value in texts if found and found[0] in value), ("targets", target))


def _find_unprotected_resources(target: ResolvedTarget) -> Iterator[tuple[KeyPath, str]]:
    for kind, key, resource in list_resources(target.config):
        is_protected = kind in _PROTECTED or (kind, key) == ("volumes", _PROTECTED_VOLUME)
        if is_protected and not (resource.get("lifecycle") or {}).get("prevent_destroy"):
            text = (
                f"target {target.name}: {kind}.{key} has data that cannot be restored: "
                "set lifecycle.prevent_destroy: true"
            )
            yield ("targets", target.name, "resources", kind, key), text
