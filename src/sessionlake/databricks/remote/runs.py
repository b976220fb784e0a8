"""Runs of the bundle's jobs: how they stand, started, stopped, waited for, and what they said."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from sessionlake.databricks.remote.deployment import DeployedJob
from sessionlake.errors import RemoteError, UsageError

if TYPE_CHECKING:
    from databricks.sdk import WorkspaceClient
    from databricks.sdk.service.jobs import BaseRun, Run, RunTask

POLL_SECONDS = 5.0
# What starts a job by itself; each can be paused.
_TRIGGERS = ("continuous", "schedule", "trigger")
_ALIVE = ("BLOCKED", "PENDING", "QUEUED", "RUNNING", "TERMINATING", "WAITING")
_ENDED = "TERMINATED"
_DONE = ("SUCCESS", "SUCCESS_WITH_FAILURES")


@dataclass(frozen=True)
class RunStatus:
    """How a run stands.

    Attributes:
        state: of its life while it lasts, else what it ended with, as the Jobs API calls it.
        says: why it ended so, or what it waits for.
        page: its page in the workspace.
    """

    run: int
    state: str
    started: datetime | None
    ended: datetime | None
    says: str
    page: str

    @property
    def done(self) -> bool:
        """Whether it ended well."""
        return self.state in _DONE


def latest_run(client: WorkspaceClient, job: DeployedJob, *, ended: bool = False) -> RunStatus | None:
    """A job's latest run, or the latest that has ended; None before its first."""
    runs = client.jobs.list_runs(job_id=job.id, limit=1, completed_only=ended or None)
    return next(map(run_status, runs), None)


def run_status(run: BaseRun | Run) -> RunStatus:
    """What the Jobs API says of a run."""
    status = run.status
    state = status.state.value if status and status.state else "UNKNOWN"
    why = (status.termination_details or status.queue_details) if status else None
    if state == _ENDED and why is not None and why.code is not None:
        state = why.code.value
    return RunStatus(
        int(run.run_id or 0),
        state,
        _moment(run.start_time),
        _moment(run.end_time),
        (why.message if why is not None else None) or "",
        run.run_page_url or "",
    )


def trigger_of(job: DeployedJob) -> str:
    """What starts the job by itself, and whether that is paused; empty for one that is started by hand."""
    for name in _TRIGGERS:
        trigger = getattr(job.settings, name)
        if trigger is not None:
            what = trigger.quartz_cron_expression if name == "schedule" else name
            paused = trigger.pause_status is not None and trigger.pause_status.value == "PAUSED"
            return f"{what}, paused" if paused else str(what)
    return ""


def set_paused(client: WorkspaceClient, job: DeployedJob, *, paused: bool) -> str | None:
    """Pauses a job's trigger, or lets it go on.

    The trigger is sent back as it was read, less its pause: an update replaces it whole, and the SDK's own types would
    leave out what they do not know.

    Returns:
        The kind of trigger that was changed; None if the job has none, or it was so already.
    """
    settings: dict[str, Any] = client.api_client.do("GET", "/api/2.2/jobs/get", query={"job_id": job.id})["settings"]
    wanted = "PAUSED" if paused else "UNPAUSED"
    for name in _TRIGGERS:
        trigger = settings.get(name)
        if trigger is not None and trigger.get("pause_status", "UNPAUSED") != wanted:
            changed = {name: trigger | {"pause_status": wanted}}
            client.api_client.do("POST", "/api/2.2/jobs/update", body={"job_id": job.id, "new_settings": changed})
            return name
    return None


def start(client: WorkspaceClient, job: DeployedJob, words: Sequence[str] = ()) -> int:
    """Starts a run, instead of the present one of a continuous job; its id.

    Args:
        words: that take the place of the task's parameters.

    Raises:
        UsageError: Databricks does not take one of them.
    """
    if other := [word for word in words if not word.isascii()]:
        raise UsageError(f"a run's parameters: Databricks takes ASCII alone, found {', '.join(map(repr, other))}")
    return int(client.jobs.run_now(job.id, python_params=list(words) or None).response.run_id or 0)


def stop_runs(client: WorkspaceClient, job: DeployedJob) -> None:
    """Ends the job's runs, those that wait, too."""
    client.jobs.cancel_all_runs(job_id=job.id)


def awaited(client: WorkspaceClient, run: int, say: Callable[[str], None]) -> RunStatus:
    """Waits until a run has ended; says how it stands whenever that changes."""
    before = ""
    while True:
        status = run_status(client.jobs.get_run(run))
        if status.state != before:
            say(f"run {run}: {status.state}{': ' if status.says else ''}{status.says}")
            before = status.state
        if status.state not in _ALIVE:
            return status
        time.sleep(POLL_SECONDS)


@dataclass(frozen=True)
class TaskOutput:
    """What one task of a run wrote.

    Attributes:
        written: to standard output and standard error, the last 5 MB.
        error: what it failed with; empty if it did not.
    """

    task: str
    written: str
    cut: bool
    error: str


def outputs(client: WorkspaceClient, run: int) -> Iterator[TaskOutput]:
    """What the last attempt of each task of a run wrote.

    Raises:
        RemoteError: there is no such run.
    """
    found = client.jobs.get_run(run)
    attempts = sorted(found.tasks or (), key=lambda task: task.attempt_number or 0)
    last: dict[str, RunTask] = {task.task_key: task for task in attempts}
    if not last:
        raise RemoteError(f"run {run} has no tasks: nothing was run, {run_status(found).says or 'and it says no more'}")
    for key, task in last.items():
        output = client.jobs.get_run_output(int(task.run_id or 0))
        told = [text for text in (output.error, output.error_trace) if text]
        yield TaskOutput(key, output.logs or "", bool(output.logs_truncated), "\n".join(told))


def _moment(ms: int | None) -> datetime | None:
    return datetime.fromtimestamp(ms / 1000, UTC) if ms else None
