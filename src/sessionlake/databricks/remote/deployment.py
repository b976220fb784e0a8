"""Finds the bundle's jobs in a workspace, by their names and by the target that they were deployed to."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sessionlake.errors import DatabricksWorkspaceError

if TYPE_CHECKING:
    from databricks.sdk import WorkspaceClient
    from databricks.sdk.service.jobs import BaseJob

_NAME = re.compile(r"(?P<prefix>\[[^\]]+\] )?sessionlake-(?P<word>[\w-]+)")
# A deployment's metadata file is <root>/<target>/state/metadata.json.
_TARGET = re.compile(r"/(?P<target>[^/]+)/state/[^/]+$")
_DEVELOPMENT = "[dev "
_PAGE = 100


@dataclass(frozen=True)
class DeployedJob:
    """One of the bundle's jobs in a workspace.

    Attributes:
        id: Id of the job in the workspace.
        short_name: Name of the job in `sessionlake remote`: its name without prefix and without `sessionlake-`.
        name: Full name in the workspace.
        deployment: Target and prefix of names, which identify the deployment that the job belongs to.
        settings: The SDK's `JobSettings`, without tasks and clusters.
    """

    id: int
    short_name: str
    name: str
    deployment: tuple[str, str]
    settings: Any

    @property
    def warehouse(self) -> str:
        """Name of the SQL warehouse of the job's deployment."""
        return f"{self.deployment[1]}sessionlake"

    @property
    def target(self) -> str:
        """The bundle's target that the job was deployed to; empty if no bundle deployed it."""
        return self.deployment[0]


def find_deployed_jobs(client: WorkspaceClient, target: str | None) -> dict[str, DeployedJob]:
    """Returns the jobs of one deployment, by their short names, such as `silver`.

    In development targets each user has a copy; only those of the current user are considered.

    Args:
        client: Client of the workspace.
        target: Target of the bundle; None if there is only one deployment.

    Raises:
        DatabricksWorkspaceError: No deployment matches, or several do.
    """
    me = str(client.current_user.me().user_name)
    found = [
        _parse_deployed_job(job) for job in client.jobs.list(limit=_PAGE) if _is_job_of_user_or_production(job, me)
    ]
    jobs = [job for job in found if job is not None]
    fitting = [job for job in jobs if target in {None, job.target}]
    if len({job.deployment for job in fitting}) == 1 and len({job.short_name for job in fitting}) == len(fitting):
        return {job.short_name: job for job in sorted(fitting, key=lambda job: job.short_name)}
    wanted = "" if target is None else f" of target {target}"
    if not fitting:
        visible = f". There is {_describe_deployments(jobs)}" if jobs else ""
        raise DatabricksWorkspaceError(
            f"the workspace {client.config.host} has no job sessionlake-…{wanted} that {me} may see{visible}",
            fix="Deploy the bundle (`databricks bundle deploy`), or ask an administrator for the right "
            "to view its jobs",
        )
    raise DatabricksWorkspaceError(
        f"the workspace {client.config.host} has several deployments of sessionlake{wanted}: "
        f"{_describe_deployments(fitting)}",
        fix="Choose one with --target",
    )


def find_target_of_deployed_job(job_settings: Any) -> str:
    """Returns the bundle's target to which a job with these settings was deployed; empty if no bundle deployed it."""
    path = (job_settings.deployment and job_settings.deployment.metadata_file_path) or ""
    found = _TARGET.search(path)
    return found["target"] if found else ""


def choose_job(jobs: Mapping[str, DeployedJob], short_name: str) -> DeployedJob:
    """Returns the job with this short name.

    Raises:
        DatabricksWorkspaceError: There is none. The text lists the deployment's jobs.
    """
    if short_name not in jobs:
        raise DatabricksWorkspaceError(
            f"there is no job sessionlake-{short_name} in this deployment",
            fix=f"Name one of the jobs {', '.join(jobs)}",
        )
    return jobs[short_name]


def read_job_environment(client: WorkspaceClient, jobs: Iterable[DeployedJob]) -> dict[str, str]:
    """Returns the environment variables of the clusters of the first job that sets any; empty if none does."""
    found: dict[str, str] = {}
    for job in jobs:
        settings = client.jobs.get(job.id).settings
        for cluster in (settings and settings.job_clusters) or ():
            found |= cluster.new_cluster.spark_env_vars or {}
        if found:
            break
    return found


def _is_job_of_user_or_production(job: BaseJob, me: str) -> bool:
    name = job.settings.name if job.settings and job.settings.name else ""
    return not name.startswith(_DEVELOPMENT) or job.creator_user_name == me


def _parse_deployed_job(job: BaseJob) -> DeployedJob | None:
    settings = job.settings
    fits = _NAME.fullmatch(settings.name or "") if settings else None
    if settings is None or fits is None:
        return None
    place = (find_target_of_deployed_job(settings), fits["prefix"] or "")
    return DeployedJob(int(job.job_id or 0), fits["word"], fits[0], place, settings)


def _describe_deployments(jobs: Iterable[DeployedJob]) -> str:
    """Returns the distinct names, targets and ids of jobs as a text for errors, such as `x (prod, job 7)`."""
    named = sorted({(job.target or "deployed by no bundle", job.name, job.id) for job in jobs})
    return ", ".join(f"{name} ({target}, job {number})" for target, name, number in named)
