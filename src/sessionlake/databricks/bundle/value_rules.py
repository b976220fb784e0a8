"""Checks values wherever a resource has them: schedules, time zones, addresses, names, paths and numbers."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any
from zoneinfo import available_timezones

from sessionlake.databricks.bundle.cron import find_cron_fault
from sessionlake.databricks.bundle.files import ResolvedTarget, ResourceFault, YamlMapping
from sessionlake.databricks.bundle.identity_rules import IDENTITIES
from sessionlake.databricks.bundle.models import is_known_only_to_deployment, suggest_similar_name
from sessionlake.settings.file import KeyPath

_EMAIL = re.compile(r"[^@\s]+@[^@\s]+\.[^@\s.]+")
_NAME = re.compile(r"[^./\s\x00-\x1f]+")
_SCOPE = re.compile(r"[\w.@<>-]{1,128}", re.ASCII)
_RUNTIME = re.compile(r"(\d+)\.\d+\.x-([a-z0-9]+-)*scala(2\.1[23])")
_FIRST_WITH_213 = 16
"""The first runtime built for Scala 2.13. Version 16.4 has both Scala versions, all later ones only this."""
_SIZES = ["2X-Small", "X-Small", "Small", "Medium", "Large", "X-Large", "2X-Large", "3X-Large", "4X-Large", "5X-Large"]
_AT_LEAST = {
    "auto_stop_mins": 0,
    "max_clusters": 1,
    "max_concurrent_runs": 1,
    "max_num_clusters": 1,
    "max_retries": -1,
    "max_workers": 1,
    "min_num_clusters": 1,
    "min_retry_interval_millis": 0,
    "min_workers": 0,
    "num_workers": 0,
    "retrigger_seconds": 0,
    "timeout_seconds": 0,
}
_PAIRS = (("min_workers", "max_workers"), ("min_num_clusters", "max_num_clusters"))
_LIBRARIES = {"jar", "requirements", "whl"}
_FOLDERS = ("Volumes", "Workspace")
_VOLUME_PATH = re.compile(r"/Volumes/([^/]+)/([^/]+)/([^/]+)(/.*)?")
_SCHEMA_RIGHTS = {"ALL_PRIVILEGES", "APPLY_TAG", "CREATE_FUNCTION", "CREATE_MATERIALIZED_VIEW", "CREATE_MODEL",
                  "CREATE_TABLE", "CREATE_VOLUME", "EXECUTE", "EXTERNAL_USE_SCHEMA", "MANAGE", "MODIFY", "READ_VOLUME",
                  "REFRESH", "SELECT", "USE_SCHEMA", "WRITE_VOLUME", "BROWSE"}  # fmt: skip
_RIGHTS = {"schemas": _SCHEMA_RIGHTS, "volumes": {"ALL_PRIVILEGES", "APPLY_TAG", "MANAGE", "READ_VOLUME",
                                                  "WRITE_VOLUME", "BROWSE"}}  # fmt: skip


def find_value_faults(target: ResolvedTarget, kind: str, resource: YamlMapping) -> Iterator[ResourceFault]:
    """Yields key and text of each wrong value of a resource, such as an unknown time zone or a name with a space.

    Args:
        target: The target, with all variables replaced by their values.
        kind: Kind of the resource, such as `jobs`.
        resource: The resource.
    """
    for key, name, value in _iterate_nested_values(resource):
        if value is None or is_known_only_to_deployment(value):
            continue
        if not isinstance(value, dict | list | bool):
            # YAML reads the version 17.3 as a number, but a deployment reads it as a text.
            check = _CHECKS.get(name)
            faults = (check(str(value)) if check else None, _explain_wrong_path(target, name, str(value)))
            yield from ((key, fault) for fault in faults if fault)
        elif isinstance(value, dict):
            yield from _find_wrong_pairs_of_values(key, name, value)
        elif isinstance(value, list) and name.startswith("on_"):
            yield from (((*key, n), f"{one!r} is no email address") for n, one in _find_wrong_email_addresses(value))
        low, number = _AT_LEAST.get(name), _convert_to_number(value)
        if low is not None and number is not None and number < low:
            yield key, f"{name} must be at least {low}, found {value}"
    yield from _find_wrong_pairs_of_values((), "", resource)
    yield from _find_conflicting_values(kind, resource)
    fault = (
        _explain_wrong_resource_name(str(resource.get("name", "unnamed"))) if kind in {"schemas", "volumes"} else None
    )
    yield from [(("name",), fault)] if fault else []
    yield from _find_faults_of_grants(kind, resource)
    yield from _find_references_to_missing_resources(target, kind, resource)


def _iterate_nested_values(node: Any, key: KeyPath = ()) -> Iterator[tuple[KeyPath, str, Any]]:
    """Yields each value in nested dictionaries and lists, with its path of keys and the last name in that path."""
    items = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
    for own, value in items:
        named = next((part for part in reversed((*key, own)) if isinstance(part, str)), "")
        yield (*key, own), named, value
        yield from _iterate_nested_values(value, (*key, own))


def find_resources_with_same_name(target: ResolvedTarget) -> Iterator[ResourceFault]:
    """Yields key and fault of resources that have the same kind and name, where a workspace allows only one."""
    for kind in ("schemas", "volumes", "secret_scopes", "sql_warehouses"):
        first: dict[tuple[str, ...], str] = {}
        for key, own in target.list_resources_of_kind(kind).items():
            name = tuple(str(own.get(part)) for part in ("catalog_name", "schema_name", "name"))
            if name in first:
                text = f"{kind}.{key} has the same name as {kind}.{first[name]}: {name[-1]!r}"
                yield ("resources", kind, key, "name"), text
            first[name] = key


def _find_conflicting_values(kind: str, resource: YamlMapping) -> Iterator[ResourceFault]:
    """Yields key and text of each fault: two keys whose values exclude each other, or a secret scope's invalid name."""
    if _is_true(resource.get("enable_serverless_compute")) and resource.get("warehouse_type", "PRO") != "PRO":
        yield ("warehouse_type",), f"a serverless warehouse has the type PRO, not {resource['warehouse_type']}"
    if kind == "volumes":
        is_external = resource.get("volume_type") == "EXTERNAL"
        if is_external != bool(resource.get("storage_location")):
            yield ("volume_type",), "a volume has a storage_location if its type is EXTERNAL, and else none"
    if (
        kind == "secret_scopes"
        and not is_known_only_to_deployment(name := str(resource.get("name")))
        and not _SCOPE.fullmatch(name)
    ):
        yield ("name",), f"the scope's name {name!r} may only have letters, digits and -_@. and 128 characters"


def _is_true(value: object) -> bool:
    return str(value).lower() == "true"


def _convert_to_number(value: Any) -> float | None:
    try:
        return None if isinstance(value, bool) else float(value)
    except (TypeError, ValueError):
        return None


def _find_wrong_email_addresses(values: list[Any]) -> Iterator[tuple[int, str]]:
    for number, one in enumerate(values):
        if isinstance(one, str) and not is_known_only_to_deployment(one) and not _EMAIL.fullmatch(one):
            yield number, one


def _find_wrong_pairs_of_values(key: KeyPath, name: str, value: YamlMapping) -> Iterator[ResourceFault]:
    for low, high in _PAIRS:
        first, second = _convert_to_number(value.get(low)), _convert_to_number(value.get(high))
        if first is not None and second is not None and first > second:
            yield (*key, low), f"{low} is greater than {high}: {value[low]} and {value[high]}"
    if name in {"run_as", "permissions"}:
        given = [own for own in IDENTITIES if value.get(own)]
        if len(given) != 1:
            yield key, f"{name} must name exactly one of {', '.join(sorted(IDENTITIES))}, found {len(given)}"


def _explain_wrong_path(target: ResolvedTarget, name: str, text: str) -> str | None:
    """Returns what is wrong with a path that names no folder of a workspace, or no volume of the bundle; else None.

    A library may be in a volume that the bundle does not have.

    Args:
        target: The target, with all variables replaced by their values.
        name: The key that has the path.
        text: The path.
    """
    found, first = _VOLUME_PATH.fullmatch(text), text.split("/")[1] if text.startswith("/") else ""
    if first not in _FOLDERS and (hint := suggest_similar_name(first, list(_FOLDERS))):
        return f"the path {text!r} begins with no folder of a workspace{hint}"
    if first != "Volumes":
        return None
    if not found:
        return f"{text!r} is no path of a volume: it must be /Volumes/<catalog>/<schema>/<volume>"
    volumes = target.list_resources_of_kind("volumes").values()
    known = [f"{own.get('catalog_name')}/{own.get('schema_name')}/{own.get('name')}" for own in volumes]
    catalogs = {own.get("catalog_name") for own in volumes}
    path = "/".join(found.groups()[:3])
    if found[1] in catalogs and path not in known and name not in _LIBRARIES:
        return f"the bundle has no volume {path}, it has {', '.join(known)}"
    return None


def _find_faults_of_grants(kind: str, resource: YamlMapping) -> Iterator[ResourceFault]:
    for number, grant in enumerate(resource.get("grants") or ()):
        key: KeyPath = ("grants", number)
        if not isinstance(grant, dict):
            continue
        if not grant.get("principal"):
            yield key, "a grant needs a principal"
        rights = [own for own in grant.get("privileges") or () if isinstance(own, str)]
        for position, own in enumerate(rights):
            if kind in _RIGHTS and own not in _RIGHTS[kind]:
                text = f"{own} cannot be granted on {kind}{suggest_similar_name(own, sorted(_RIGHTS[kind]))}"
                yield (*key, "privileges", position), text
        if kind == "schemas" and not {"USE_SCHEMA", "ALL_PRIVILEGES"} & {*rights}:
            yield key, f"without USE_SCHEMA, {grant.get('principal')} cannot use the other privileges. Add it"


def _find_references_to_missing_resources(
    target: ResolvedTarget, kind: str, resource: YamlMapping
) -> Iterator[ResourceFault]:
    """Yields key and text if a volume's schema, a catalog, or a warehouse is named that the bundle does not have."""
    if kind == "volumes":
        schemas = target.list_resources_of_kind("schemas").values()
        pairs = {(own.get("catalog_name"), own.get("name")) for own in schemas}
        catalog, schema = resource.get("catalog_name"), resource.get("schema_name")
        if catalog in {own for own, _ in pairs} and (catalog, schema) not in pairs:
            names = sorted(str(name) for _, name in pairs)
            yield ("schema_name",), f"the bundle has no schema {schema!r}, it has {', '.join(names)}"
    if kind in {"volumes", "schemas"} and resource.get("catalog_name"):
        catalog = target.config.get("var", {}).get("catalog")
        if catalog is not None and resource["catalog_name"] != catalog:
            text = f"the lake is in the catalog {catalog!r}, not in {resource['catalog_name']!r}. Use ${{var.catalog}}"
            yield ("catalog_name",), text
    if "warehouse_id" in resource:
        known = [own["id"] for own in target.list_resources_of_kind("sql_warehouses").values()]
        given = str(resource["warehouse_id"])
        if not re.fullmatch(r"[0-9a-f]{16}", given) and given not in known:
            yield ("warehouse_id",), f"{given!r} is no warehouse. Use ${{resources.sql_warehouses.warehouse.id}}"


@cache
def _list_time_zones() -> frozenset[str]:
    """Returns the names of all time zones. They are kept, because they are read from many files."""
    return frozenset(available_timezones())


def _explain_wrong_time_zone(value: str) -> str | None:
    zones = _list_time_zones()
    return None if value in zones else f"time zone {value!r} is unknown{suggest_similar_name(value, sorted(zones))}"


def _explain_wrong_email_address(value: str) -> str | None:
    return None if _EMAIL.fullmatch(value) else f"{value!r} is no email address"


def _explain_wrong_resource_name(value: str) -> str | None:
    return None if _NAME.fullmatch(value) else f"the name {value!r} must not have a space, a dot or a slash"


def _explain_wrong_runtime_version(value: str) -> str | None:
    found = _RUNTIME.fullmatch(value)
    if not found or (int(found[1]) > _FIRST_WITH_213 and found[3] != "2.13"):
        return f"{value!r} is no version of Databricks Runtime, such as 17.3.x-scala2.13"
    if int(found[1]) < _FIRST_WITH_213:
        return f"sessionlake needs Databricks Runtime 16 or later, found {value!r}"
    return None


def _explain_wrong_warehouse_size(value: str) -> str | None:
    return (
        None
        if value in _SIZES
        else f"the size {value!r} is not one of {', '.join(_SIZES)}{suggest_similar_name(value, _SIZES)}"
    )


_CHECKS: dict[str, Callable[[str], str | None]] = {
    "catalog_name": _explain_wrong_resource_name,
    "cluster_size": _explain_wrong_warehouse_size,
    "quartz_cron_expression": find_cron_fault,
    "quartz_cron_schedule": find_cron_fault,
    "schema_name": _explain_wrong_resource_name,
    "spark_version": _explain_wrong_runtime_version,
    "timezone_id": _explain_wrong_time_zone,
    "user_email": _explain_wrong_email_address,
}
