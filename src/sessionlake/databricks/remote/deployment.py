"""The bundle's jobs in a workspace, found by their names and by the target that they were deployed to."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sessionlake.errors import RemoteError

if TYPE_CHECKING:
    from databricks.sdk import WorkspaceClient
    from databricks.sdk.service.jobs import BaseJob

_NAME = re.compile(r"(?P<prefix>\[[^\]]+\] )?sessionlake-(?P<word>[\w-]+)")
# Where a bundle keeps what it has deployed: <root>/<target>/state/metadata.json.
_TARGET = re.compile(r"/(?P<target>[^/]+)/state/[^/]+$")
_DEVELOPMENT = "[dev "
_PAGE = 100


@dataclass(frozen=True)
class DeployedJob:
    """One of the bundle's jobs.

    Attributes:
        word: what `remote` calls it: its name without prefix and `sessionlake-`.
        name: as it is in the workspace.
        place: which deployment it is of: a target and the prefix of its names.
        settings: the SDK's `JobSettings`, without tasks and clusters.
    """

    id: int
    word: str
    name: str
    place: tuple[str, str]
    settings: Any

    @property
    def warehouse(self) -> str:
        """The name of its deployment's SQL warehouse."""
        return f"{self.place[1]}sessionlake"

    @property
    def target(self) -> str:
        """The bundle's target; empty for a job that no bundle has deployed."""
        return self.place[0]


def deployed_jobs(client: WorkspaceClient, target: str | None) -> dict[str, DeployedJob]:
    """The jobs of one deployment, by their words.

    Of development targets, where everyone has a copy, only the present user's own is looked at.

    Raises:
        RemoteError: there is none, or several fit.
    """
    me = str(client.current_user.me().user_name)
    found = [_named(job) for job in client.jobs.list(limit=_PAGE) if _may_be_meant(job, me)]
    jobs = [job for job in found if job is not None]
    fitting = [job for job in jobs if target in {None, job.target}]
    if len({job.place for job in fitting}) == 1 and len({job.word for job in fitting}) == len(fitting):
        return {job.word: job for job in sorted(fitting, key=lambda job: job.word)}
    wanted = "" if target is None else f" of target {target}"
    if not fitting:
        there = f"; there is {_places(jobs)}" if jobs else ""
        raise RemoteError(
            f"{client.config.host} has no job sessionlake-…{wanted} that {me} may see{there}: "
            "deploy it (databricks bundle deploy), or ask for the right to see it"
        )
    raise RemoteError(f"{client.config.host} has several deployments{wanted}, {_places(fitting)}: choose by --target")


def job_called(jobs: Mapping[str, DeployedJob], word: str) -> DeployedJob:
    """The job with this word.

    Raises:
        RemoteError: there is none; the text has those there are.
    """
    if word not in jobs:
        raise RemoteError(f"there is no job sessionlake-{word} in this deployment; there are {', '.join(jobs)}")
    return jobs[word]


def job_environment(client: WorkspaceClient, jobs: Iterable[DeployedJob]) -> dict[str, str]:
    """The variables that the deployment gives to its jobs' clusters: the names of its catalog and schemas are there."""
    found: dict[str, str] = {}
    for job in jobs:
        settings = client.jobs.get(job.id).settings
        for cluster in (settings and settings.job_clusters) or ():
            found |= cluster.new_cluster.spark_env_vars or {}
        if found:
            break
    return found


def _may_be_meant(job: BaseJob, me: str) -> bool:
    name = job.settings.name if job.settings and job.settings.name else ""
    return not name.startswith(_DEVELOPMENT) or job.creator_user_name == me


def _named(job: BaseJob) -> DeployedJob | None:
    settings = job.settings
    fits = _NAME.fullmatch(settings.name or "") if settings else None
    if settings is None or fits is None:
        return None
    path = (settings.deployment and settings.deployment.metadata_file_path) or ""
    target = _TARGET.search(path)
    place = (target["target"] if target else "", fits["prefix"] or "")
    return DeployedJob(int(job.job_id or 0), fits["word"], fits[0], place, settings)


def _places(jobs: Iterable[DeployedJob]) -> str:
    """Where they are from, for people: one job of each deployment by name, and all that share a name."""
    named = sorted({(job.target or "deployed by no bundle", job.name, job.id) for job in jobs})
    return ", ".join(f"{name} ({target}, job {number})" for target, name, number in named)
