"""Checks permissions for faults that a deployment accepts, perhaps with a warning, and that fail later."""

from __future__ import annotations

from collections.abc import Iterator

from sessionlake.databricks.bundle.files import ResolvedTarget, ResourceFault, YamlMapping
from sessionlake.protocol.columns import find_repeated_names

# Permission levels of the bundle and of each kind of resource. Schemas and volumes have grants instead.
LEVELS = {
    "bundle": ["CAN_VIEW", "CAN_RUN", "CAN_MANAGE"],
    "jobs": ["CAN_VIEW", "CAN_MANAGE_RUN", "CAN_MANAGE", "IS_OWNER"],
    "dashboards": ["CAN_READ", "CAN_RUN", "CAN_EDIT", "CAN_MANAGE"],
    "alerts": ["CAN_READ", "CAN_RUN", "CAN_EDIT", "CAN_MANAGE"],
    "sql_warehouses": ["CAN_VIEW", "CAN_USE", "CAN_MONITOR", "CAN_MANAGE", "IS_OWNER"],
    "secret_scopes": ["READ", "WRITE", "MANAGE"],
}
_ASKS = {"CAN_USE", "CAN_MONITOR", "CAN_MANAGE", "IS_OWNER"}
"""Levels on a SQL warehouse that allow queries. CAN_VIEW does not."""
IDENTITIES = {"service_principal_name": None, "group_name": None, "user_name": None}.keys()


def find_resource_permission_faults(
    target: ResolvedTarget, kind: str, resource: YamlMapping
) -> Iterator[ResourceFault]:
    """Yields key and text of each fault in a resource's permissions, or in the rights of the identity that it runs as.

    Args:
        target: The target, with all variables replaced by their values.
        kind: Kind of the resource, such as `jobs`.
        resource: The resource.
    """
    for who in find_repeated_names(_get_name_of_identity(given) for given in resource.get("permissions", [])):
        # The deployment only warns, but `bundle validate --strict` fails.
        yield ("permissions",), f"{who} has two levels, here or from the bundle's permissions: one is ignored"
    if kind == "alerts" and "run_as" in resource:
        who = _get_name_of_identity(resource["run_as"])
        for warehouse in target.list_resources_of_kind("sql_warehouses").values():
            levels = [
                given["level"] for given in warehouse.get("permissions", []) if _get_name_of_identity(given) == who
            ]
            if warehouse["id"] == resource.get("warehouse_id") and not _ASKS.intersection(levels):
                text = f"it runs as {who}, who may not query its warehouse: that needs {', '.join(sorted(_ASKS))}"
                yield ("warehouse_id",), text


def _get_name_of_identity(identity: YamlMapping) -> str:
    return next((str(identity[name]) for name in IDENTITIES if name in identity), "nobody")
