"""Makes a deployment keep what the workspace decides: which jobs and alerts are paused, and who owns a job.

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

from sessionlake.databricks.remote.deployment import find_target_of_deployed_job
from sessionlake.databricks.remote.workspace import open_workspace

if TYPE_CHECKING:
    from databricks.sdk import WorkspaceClient
    from databricks.sdk.service.jobs import BaseJob

START = "start"
"""The variable that makes a deployment start and pause everything as `databricks.yml` says."""
PAUSED, UNPAUSED = "PAUSED", "UNPAUSED"
OWNER, MANAGER = "IS_OWNER", "CAN_MANAGE"
_TRIGGERS = ("continuous", "schedule", "trigger")
PermissionEntry = dict[str, Any]
"""A permission, as `databricks.yml` writes it: a level, and one of user_name, service_principal_name, group_name."""


@job_mutator  # type: ignore[untyped-decorator]  # mypy skips the packages of Databricks
def keep_job_status(bundle: Bundle, job: Job) -> Job:
    """Returns the job with the pause status that it has in the workspace; a new job is paused."""
    name = next((own for own in _TRIGGERS if getattr(job, own) is not None), None)
    if name is None or _is_start_of_everything_requested(bundle):
        return job
    with open_workspace(None) as client:
        jobs = _find_jobs_deployed_before(client, bundle, job)
        triggers = [getattr(own.settings, trigger) for own in jobs for trigger in _TRIGGERS]
    status = choose_pause_status(
        _format_pause_status(trigger.pause_status) for trigger in triggers if trigger is not None
    )
    return replace(job, **{name: replace(getattr(job, name), pause_status=status)})


@alert_mutator  # type: ignore[untyped-decorator]  # mypy skips the packages of Databricks
def keep_alert_status(bundle: Bundle, alert: Alert) -> Alert:
    """Returns the alert with the pause status that it has in the workspace; a new alert is paused."""
    if _is_start_of_everything_requested(bundle):
        return alert
    with open_workspace(None) as client:
        found = [own.schedule for own in client.alerts_v2.list_alerts() if own.display_name == alert.display_name]
    status = choose_pause_status(
        _format_pause_status(schedule.pause_status) for schedule in found if schedule is not None
    )
    schedule: Any = alert.schedule
    return replace(alert, schedule=replace(schedule, pause_status=status))


@job_mutator  # type: ignore[untyped-decorator]  # mypy skips the packages of Databricks
def keep_job_owner(bundle: Bundle, job: Job) -> Job:
    """Returns the job with the owner that it has in the workspace."""
    with open_workspace(None) as client:
        ids = [str(own.job_id) for own in _find_jobs_deployed_before(client, bundle, job)]
        owners = _read_owners_from_workspace(client, "jobs", ids)
    return replace(job, permissions=_replace_owner_if_unique(job.permissions, owners))


@sql_warehouse_mutator  # type: ignore[untyped-decorator]  # mypy skips the packages of Databricks
def keep_warehouse_owner(bundle: Bundle, warehouse: SqlWarehouse) -> SqlWarehouse:  # noqa: ARG001 - the CLI passes both
    """Returns the SQL warehouse with the owner that it has in the workspace."""
    with open_workspace(None) as client:
        ids = [str(own.id) for own in client.warehouses.list() if own.name == warehouse.name]
        owners = _read_owners_from_workspace(client, "sql/warehouses", ids)
    return replace(warehouse, permissions=_replace_owner_if_unique(warehouse.permissions, owners))


def choose_pause_status(workspace_statuses: Iterable[str]) -> str:
    """Returns the pause status with which to deploy a job or alert: UNPAUSED or PAUSED.

    It is UNPAUSED if there are `workspace_statuses`, and all are UNPAUSED. They are the statuses of all jobs or alerts
    with its name in the workspace: usually one or none; several if someone copied it.
    """
    return UNPAUSED if {*workspace_statuses} == {UNPAUSED} else PAUSED


def replace_owner(entries: Iterable[PermissionEntry], owner: PermissionEntry) -> list[PermissionEntry]:
    """Returns permissions in which `owner` is the only owner. The former owner, who deploys, becomes a manager."""
    who = {key: value for key, value in owner.items() if key != "level"}
    others = [one for one in entries if {key: value for key, value in one.items() if key != "level"} != who]
    return [*(one | {"level": MANAGER} if one["level"] == OWNER else one for one in others), owner]


def _is_start_of_everything_requested(bundle: Bundle) -> bool:
    return str(bundle.variables.get(START, "")).lower() == "true"


def _find_jobs_deployed_before(client: WorkspaceClient, bundle: Bundle, job: Job) -> list[BaseJob]:
    """Returns the workspace's jobs that have the same name as `job` and were deployed to the bundle's target."""
    found = [own for own in client.jobs.list(name=str(job.name)) if own.settings and own.settings.name == job.name]
    return [own for own in found if find_target_of_deployed_job(own.settings) == bundle.target]


def _read_owners_from_workspace(client: WorkspaceClient, kind: str, ids: list[str]) -> list[PermissionEntry]:
    """Returns the permission of the owner of each object. `kind` is one of the Permissions API, such as `jobs`."""
    found = []
    for own in ids:
        for given in client.permissions.get(kind, own).access_control_list or ():
            levels = {one.permission_level.value for one in given.all_permissions or () if one.permission_level}
            names = {"user_name": given.user_name, "service_principal_name": given.service_principal_name}
            if OWNER in levels:
                found.append({"level": OWNER} | {key: name for key, name in names.items() if name})
    return found


def _replace_owner_if_unique(permissions: Any, owners: list[PermissionEntry]) -> Any:
    """Returns permissions with the owner that the workspace has; unchanged if `owners` does not have exactly one."""
    if len(owners) != 1 or not permissions:
        return permissions
    return replace_owner([one.as_dict() for one in permissions], owners[0])


def _format_pause_status(status: Any) -> str:
    """Returns a pause status of the workspace as a text; UNPAUSED for None, which stands for one that is not paused."""
    return UNPAUSED if status is None else str(status.value)
