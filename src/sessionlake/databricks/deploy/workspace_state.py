"""Keeps at a deployment what the workspace decides: what is paused, and who owns a job.

`databricks bundle deploy` calls these functions with each resource before it compares it with the workspace. Without
them it would set the pause that `databricks.yml` has, and so start what someone paused, and it would make the user who
deploys the owner.

- A job or alert that the workspace has stays running or paused.
- One that is new is paused, because its secret and its tables are missing.
- With the variable `start` set to true, each is paused or not as `databricks.yml` says.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from databricks.bundles.alerts import Alert
from databricks.bundles.core import Bundle, alert_mutator, job_mutator, sql_warehouse_mutator
from databricks.bundles.jobs import Job
from databricks.bundles.sql_warehouses import SqlWarehouse

from sessionlake.databricks.remote.deployment import find_target
from sessionlake.databricks.remote.workspace import open_workspace

if TYPE_CHECKING:
    from databricks.sdk import WorkspaceClient
    from databricks.sdk.service.jobs import BaseJob

START = "start"
"""The variable that makes a deployment start and pause everything as `databricks.yml` says."""
PAUSED, UNPAUSED = "PAUSED", "UNPAUSED"
OWNER, MANAGER = "IS_OWNER", "CAN_MANAGE"
_TRIGGERS = ("continuous", "schedule", "trigger")
Entry = dict[str, Any]
"""A permission, as `databricks.yml` writes it: a level, and one of user_name, service_principal_name, group_name."""


@job_mutator  # type: ignore[untyped-decorator]  # mypy skips the packages of Databricks
def keep_job_status(bundle: Bundle, job: Job) -> Job:
    """Returns the job, paused or running as it is in the workspace."""
    name = next((own for own in _TRIGGERS if getattr(job, own) is not None), None)
    if name is None or _is_start(bundle):
        return job
    with open_workspace(None) as client:
        triggers = [getattr(own.settings, trigger) for own in _find_jobs(client, bundle, job) for trigger in _TRIGGERS]
    status = choose_status(_to_text(trigger.pause_status) for trigger in triggers if trigger is not None)
    return replace(job, **{name: replace(getattr(job, name), pause_status=status)})


@alert_mutator  # type: ignore[untyped-decorator]  # mypy skips the packages of Databricks
def keep_alert_status(bundle: Bundle, alert: Alert) -> Alert:
    """Returns the alert, paused or running as it is in the workspace."""
    if _is_start(bundle):
        return alert
    with open_workspace(None) as client:
        found = [own.schedule for own in client.alerts_v2.list_alerts() if own.display_name == alert.display_name]
    status = choose_status(_to_text(schedule.pause_status) for schedule in found if schedule is not None)
    schedule: Any = alert.schedule
    return replace(alert, schedule=replace(schedule, pause_status=status))


@job_mutator  # type: ignore[untyped-decorator]  # mypy skips the packages of Databricks
def keep_job_owner(bundle: Bundle, job: Job) -> Job:
    """Returns the job with the owner that it has in the workspace."""
    with open_workspace(None) as client:
        ids = [str(own.job_id) for own in _find_jobs(client, bundle, job)]
        owners = _read_owners(client, "jobs", ids)
    return replace(job, permissions=_with_owner(job.permissions, owners))


@sql_warehouse_mutator  # type: ignore[untyped-decorator]  # mypy skips the packages of Databricks
def keep_warehouse_owner(bundle: Bundle, warehouse: SqlWarehouse) -> SqlWarehouse:  # noqa: ARG001 - the CLI passes both
    """Returns the SQL warehouse with the owner that it has in the workspace."""
    with open_workspace(None) as client:
        ids = [str(own.id) for own in client.warehouses.list() if own.name == warehouse.name]
        owners = _read_owners(client, "sql/warehouses", ids)
    return replace(warehouse, permissions=_with_owner(warehouse.permissions, owners))


def choose_status(found: Iterable[str]) -> str:
    """Returns the pause of a job or alert: UNPAUSED only if the workspace has it, and nobody paused it.

    Args:
        found: The pause of each one in the workspace that has its name. There is at most one, unless someone copied it.
    """
    return UNPAUSED if {*found} == {UNPAUSED} else PAUSED


def replace_owner(entries: Iterable[Entry], owner: Entry) -> list[Entry]:
    """Returns permissions of which exactly one is the owner's.

    An owner that the entries have, which is the user who deploys, becomes a manager.
    """
    who = {key: value for key, value in owner.items() if key != "level"}
    others = [one for one in entries if {key: value for key, value in one.items() if key != "level"} != who]
    return [*(one | {"level": MANAGER} if one["level"] == OWNER else one for one in others), owner]


def _is_start(bundle: Bundle) -> bool:
    return str(bundle.variables.get(START, "")).lower() == "true"


def _find_jobs(client: WorkspaceClient, bundle: Bundle, job: Job) -> list[BaseJob]:
    """Returns the jobs of the workspace with the job's name that were deployed to the bundle's target."""
    found = client.jobs.list(name=str(job.name))
    return [own for own in found if own.settings and own.settings.name == job.name and _is_of(own, bundle)]


def _is_of(job: BaseJob, bundle: Bundle) -> bool:
    return find_target(job.settings) == bundle.target


def _read_owners(client: WorkspaceClient, kind: str, ids: list[str]) -> list[Entry]:
    """Returns the permission of the owner of each object of a kind."""
    found = []
    for own in ids:
        for given in client.permissions.get(kind, own).access_control_list or ():
            levels = {one.permission_level.value for one in given.all_permissions or () if one.permission_level}
            names = {"user_name": given.user_name, "service_principal_name": given.service_principal_name}
            if OWNER in levels:
                found.append({"level": OWNER} | {key: name for key, name in names.items() if name})
    return found


def _with_owner(permissions: Any, owners: list[Entry]) -> Any:
    """Returns a resource's permissions with the owner of the one object that the workspace has for it."""
    if len(owners) != 1 or not permissions:
        return permissions
    return replace_owner([one.as_dict() for one in permissions], owners[0])


def _to_text(status: Any) -> str:
    """Returns the pause as a text. The workspace leaves out the pause of what is not paused."""
    return UNPAUSED if status is None else str(status.value)
