"""Faults of the configuration that `databricks bundle validate` refuses. Each rule is shown on files that break it."""

import copy
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import pytest

MODES = ["development", "production"]
# The bundle's own levels are translated to each resource's. Schemas and volumes have grants instead.
LEVELS = {
    "bundle": ["CAN_VIEW", "CAN_RUN", "CAN_MANAGE"],
    "jobs": ["CAN_VIEW", "CAN_MANAGE_RUN", "CAN_MANAGE", "IS_OWNER"],
}


def test_real_files_have_no_fault(documents):
    assert config_faults(documents) == []


@pytest.mark.parametrize(
    ("file", "change", "fault"),
    [
        (
            "lake.schemas.yml",
            {"resources": {"schemas": {"gold_job": {}}}},
            "key 'gold_job' has several types: jobs, schemas",
        ),
        (
            "databricks.yml",
            {"resources": {"volumes": {"silver": {}}}},
            "key 'silver' has several types: schemas, volumes",
        ),
        ("databricks.yml", {"scripts": {"ops": {}}}, "key 'ops' has several types: schemas, scripts"),
        (
            "databricks.yml",
            {"targets": {"prod": {"resources": {"jobs": {"checkpoints": {}}}}}},
            "key 'checkpoints' has several types: jobs, volumes",
        ),
        (
            "gold.job.yml",
            {"resources": {"jobs": {"silver_job": {}}}},
            "jobs.silver_job is spread over gold.job.yml, silver.job.yml",
        ),
        (
            "databricks.yml",
            {"targets": {"dev": {"mode": "dev"}}},
            "target dev: mode 'dev' is not one of development, production",
        ),
        (
            "databricks.yml",
            {"targets": {"prod": {"mode": "PRODUCTION"}}},
            "target prod: mode 'PRODUCTION' is not one of development, production",
        ),
    ],
)
def test_rule_names_the_fault(documents, file, change, fault):
    assert config_faults(changed(documents, file, change)) == [fault]


@pytest.mark.parametrize(
    ("level", "allowed"),
    [
        ("CAN_MANAGE_RUN", False),
        ("IS_OWNER", False),
        ("CAN_READ", False),
        *((level, True) for level in LEVELS["bundle"]),
    ],
)
def test_the_bundles_permissions_have_levels_of_their_own(documents, level, allowed):
    change = {"targets": {"prod": {"permissions": [{"level": level, "group_name": "operators"}]}}}
    fault = f"target prod: level {level!r} is not one of CAN_VIEW, CAN_RUN, CAN_MANAGE"
    assert config_faults(changed(documents, "databricks.yml", change)) == ([] if allowed else [fault])


@pytest.mark.parametrize(
    ("level", "allowed"), [("CAN_RUN", False), ("CAN_EDIT", False), *((level, True) for level in LEVELS["jobs"])]
)
def test_a_jobs_permissions_have_levels_of_their_own(documents, level, allowed):
    change = {"resources": {"jobs": {"gold_job": {"permissions": [{"level": level, "group_name": "operators"}]}}}}
    fault = f"jobs.gold_job: level {level!r} is not one of CAN_VIEW, CAN_MANAGE_RUN, CAN_MANAGE, IS_OWNER"
    assert config_faults(changed(documents, "gold.job.yml", change)) == ([] if allowed else [fault])
    fault = f"target prod: {fault}"
    assert config_faults(changed(documents, "databricks.yml", {"targets": {"prod": change}})) == (
        [] if allowed else [fault]
    )


def test_what_has_grants_takes_no_permissions(documents):
    change = {"resources": {"schemas": {"ops": {"permissions": [{"level": "CAN_VIEW", "group_name": "analysts"}]}}}}
    assert config_faults(changed(documents, "lake.schemas.yml", change)) == ["schemas.ops: takes no permissions"]


def config_faults(documents):
    """Everything wrong with the files of a bundle, as texts; none for sound ones."""
    return [*_key_faults(documents), *_mode_faults(documents), *_level_faults(documents)]


def changed(documents, file, change):
    """The files with one of them changed: mappings are merged, and anything else is replaced."""
    return documents | {file: _replaced(copy.deepcopy(documents[file]), change)}


def _replaced(base, change) -> Any:
    if not (isinstance(base, dict) and isinstance(change, dict)):
        return change
    return base | {key: _replaced(base.get(key), value) for key, value in change.items()}


def _key_faults(documents) -> Iterator[str]:
    types, files = defaultdict(set), defaultdict(set)
    for file, document in documents.items():
        for kind, key, _ in _resources(document):
            files[f"{kind}.{key}"].add(file)
        for _, scope in _scopes(document):
            for kind, key, _ in _resources(scope):
                types[key].add(kind)
    for key, kinds in types.items():
        if len(kinds) > 1:
            yield f"key {key!r} has several types: {', '.join(sorted(kinds))}"
    for resource, places in files.items():
        if len(places) > 1:
            yield f"{resource} is spread over {', '.join(sorted(places))}"


def _mode_faults(documents) -> Iterator[str]:
    for document in documents.values():
        for name, scope in document.get("targets", {}).items():
            if "mode" in scope and scope["mode"] not in MODES:
                yield f"target {name}: mode {scope['mode']!r} is not one of {', '.join(MODES)}"


def _level_faults(documents) -> Iterator[str]:
    for document in documents.values():
        for where, scope in _scopes(document):
            yield from _wrong_levels(where, "bundle", scope)
            for kind, key, resource in _resources(scope):
                yield from _wrong_levels(f"{where}{kind}.{key}: ", kind, resource)


def _wrong_levels(where, kind, holder) -> Iterator[str]:
    if "permissions" in holder and kind not in LEVELS:
        yield f"{where}takes no permissions"
        return
    for given in holder.get("permissions", []):
        if given["level"] not in LEVELS[kind]:
            yield f"{where}level {given['level']!r} is not one of {', '.join(LEVELS[kind])}"


def _scopes(document) -> list[tuple[str, dict]]:
    """The document itself and each of its targets, which may say the same things, with how a fault there begins."""
    targets = document.get("targets", {})
    return [("", document), *((f"target {name}: ", scope) for name, scope in targets.items())]


def _resources(scope) -> list[tuple[str, str, dict]]:
    """Type, key and content of whatever shares the keys' one namespace."""
    shared = scope.get("resources", {}) | ({"scripts": scope["scripts"]} if "scripts" in scope else {})
    return [(kind, key, resource) for kind, resources in shared.items() for key, resource in resources.items()]
