"""Faults of who may do what: accepted by a deployment, or warned of, and told by what fails later."""

from __future__ import annotations

from collections.abc import Iterator

from sessionlake.databricks.bundle.files import Target, Tree
from sessionlake.databricks.bundle.job_rules import JobFault
from sessionlake.protocol.columns import repeated_names

# The bundle's own levels are translated to each resource's. Schemas and volumes have grants instead.
LEVELS = {
    "bundle": ["CAN_VIEW", "CAN_RUN", "CAN_MANAGE"],
    "jobs": ["CAN_VIEW", "CAN_MANAGE_RUN", "CAN_MANAGE", "IS_OWNER"],
    "dashboards": ["CAN_READ", "CAN_RUN", "CAN_EDIT", "CAN_MANAGE"],
    "alerts": ["CAN_READ", "CAN_RUN", "CAN_EDIT", "CAN_MANAGE"],
    "sql_warehouses": ["CAN_VIEW", "CAN_USE", "CAN_MONITOR", "CAN_MANAGE", "IS_OWNER"],
    "secret_scopes": ["READ", "WRITE", "MANAGE"],
}
_ASKS = {"CAN_USE", "CAN_MONITOR", "CAN_MANAGE", "IS_OWNER"}
"""Levels on a warehouse that let its holder run queries; CAN_VIEW does not."""
_IDENTITIES = ("service_principal_name", "group_name", "user_name")


def permission_faults(target: Target, kind: str, resource: Tree) -> Iterator[JobFault]:
    """What is wrong with a resource's permissions, resolved, and with what it may use as whom it runs."""
    for who in repeated_names(_identity(given) for given in resource.get("permissions", [])):
        # With a warning, which `bundle validate --strict` does not let through.
        yield ("permissions",), f"{who} has two levels, here or by the bundle's own: one is passed over"
    if kind == "alerts" and "run_as" in resource:
        who = _identity(resource["run_as"])
        for warehouse in target.of("sql_warehouses").values():
            levels = [given["level"] for given in warehouse.get("permissions", []) if _identity(given) == who]
            if warehouse["id"] == resource.get("warehouse_id") and not _ASKS.intersection(levels):
                text = f"it runs as {who}, who may not ask with its warehouse: that takes {', '.join(sorted(_ASKS))}"
                yield ("warehouse_id",), text


def _identity(given: Tree) -> str:
    return next((str(given[name]) for name in _IDENTITIES if name in given), "nobody")
