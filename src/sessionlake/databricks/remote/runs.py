"""Runs of the bundle's jobs: their status and output, and functions to start, stop, pause and wait for them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from sessionlake.databricks.remote.deployment import DeployedJob
from sessionlake.errors import DatabricksWorkspaceError, UsageError

if TYPE_CHECKING:
    from databricks.sdk import WorkspaceClient
    from databricks.sdk.service.jobs import BaseRun, Run, RunTask

POLL_SECONDS = 5.0
# Settings that start a job automatically. Each can be paused.
_TRIGGERS = ("continuous", "schedule", "trigger")
_ALIVE = ("BLOCKED", "PENDING", "QUEUED", "RUNNING", "TERMINATING", "WAITING")
_ENDED = "TERMINATED"
_DONE = ("SUCCESS", "SUCCESS_WITH_FAILURES")


@dataclass(frozen=True)
class JobRunStatus:
    """Status of a run of a job.

    Attributes:
        run: Id of the run.
        state: Life cycle state while it runs, then the termination code, in the Jobs API's terms.
        started: When it started; None before.
        ended: When it ended; None before.
        message: Why it ended this way, or what it waits for.
        page: URL of its page in the workspace.
    """

    run: int
    state: str
    started: datetime | None
    ended: datetime | None
    message: str
    page: str

    @property
    def has_succeeded(self) -> bool:
        """True if the run succeeded."""
        return self.state in _DONE


def find_latest_run_of_job(client: WorkspaceClient, job: DeployedJob, *, ended: bool = False) -> JobRunStatus | None:
    """Returns the status of a job's latest run; with `ended`, of the latest that has ended. None if there is none."""
    runs = client.jobs.list_runs(job_id=job.id, limit=1, completed_only=ended or None)
    return next(map(convert_to_job_run_status, runs), None)


def convert_to_job_run_status(run: BaseRun | Run) -> JobRunStatus:
    """Converts a run, as the Databricks SDK returns it, to a `JobRunStatus`."""
    status = run.status
    state = status.state.value if status and status.state else "UNKNOWN"
    why = (status.termination_details or status.queue_details) if status else None
    if state == _ENDED and why is not None and why.code is not None:
        state = why.code.value
    return JobRunStatus(
        int(run.run_id or 0),
        state,
        _convert_ms_to_datetime(run.start_time),
        _convert_ms_to_datetime(run.end_time),
        (why.message if why is not None else None) or "",
        run.run_page_url or "",
    )


def describe_job_trigger(job: DeployedJob) -> str:
    """Returns what starts the job automatically, and whether that is paused; empty if it is started by hand."""
    for name in _TRIGGERS:
        trigger = getattr(job.settings, name)
        if trigger is not None:
            what = trigger.quartz_cron_expression if name == "schedule" else name
            paused = trigger.pause_status is not None and trigger.pause_status.value == "PAUSED"
            return f"{what}, paused" if paused else str(what)
    return ""


def pause_or_resume_job_trigger(client: WorkspaceClient, job: DeployedJob, *, paused: bool) -> str | None:
    """Pauses a job's trigger, or resumes it.

    An update replaces the whole trigger, so it is sent as it was read with only the pause changed. The SDK's types are
    not used because they drop fields they do not know.

    Returns:
        The kind of trigger that was changed, such as `schedule`; None if the job has none or already had this state.
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


def start_job_run(client: WorkspaceClient, job: DeployedJob, parameters: Sequence[str] = ()) -> int:
    """Starts a run of a job and returns the run's id. For a continuous job the new run replaces the current one.

    Args:
        client: Client of the workspace.
        job: The job to start.
        parameters: Parameters that replace those of the job's task; empty keeps them.

    Raises:
        UsageError: A parameter has characters that Databricks does not accept.
    """
    if not_ascii := [word for word in parameters if not word.isascii()]:
        raise UsageError(
            f"remote run: the command has characters that are not ASCII: {', '.join(map(repr, not_ascii))}",
            why="Databricks accepts only ASCII in a job's parameters",
            fix="Write the command without them",
        )
    return int(client.jobs.run_now(job.id, python_params=list(parameters) or None).response.run_id or 0)


def cancel_job_runs(client: WorkspaceClient, job: DeployedJob) -> None:
    """Cancels all runs of the job, including queued ones."""
    client.jobs.cancel_all_runs(job_id=job.id)


def wait_for_end_of_job_run(client: WorkspaceClient, run: int, say: Callable[[str], None]) -> JobRunStatus:
    """Waits until a run has ended, and returns its last status. Reports each change of its state to `say`."""
    before = ""
    while True:
        status = convert_to_job_run_status(client.jobs.get_run(run))
        if status.state != before:
            say(f"run {run}: {status.state}{': ' if status.message else ''}{status.message}")
            before = status.state
        if status.state not in _ALIVE:
            return status
        time.sleep(POLL_SECONDS)


@dataclass(frozen=True)
class TaskOutput:
    """Output of one task of a run.

    Attributes:
        task: Key of the task.
        text: The last 5 MB of its standard output and standard error.
        is_truncated: True if the beginning of the output is missing.
        error: The error that it failed with; empty if it succeeded.
    """

    task: str
    text: str
    is_truncated: bool
    error: str


def read_task_outputs(client: WorkspaceClient, run: int) -> Iterator[TaskOutput]:
    """Yields the output of each task of a run, from the task's last attempt.

    Raises:
        DatabricksWorkspaceError: The run does not exist or has no tasks.
    """
    found = client.jobs.get_run(run)
    attempts = sorted(found.tasks or (), key=lambda task: task.attempt_number or 0)
    last: dict[str, RunTask] = {task.task_key: task for task in attempts}
    if not last:
        reason = convert_to_job_run_status(found).message or "The run gives no reason"
        raise DatabricksWorkspaceError(
            f"the run {run} has no tasks, so it has run nothing",
            why=reason,
            fix="Start the job again with `sessionlake remote run`",
        )
    for key, task in last.items():
        output = client.jobs.get_run_output(int(task.run_id or 0))
        errors = [text for text in (output.error, output.error_trace) if text]
        yield TaskOutput(key, output.logs or "", bool(output.logs_truncated), "\n".join(errors))


def _convert_ms_to_datetime(ms: int | None) -> datetime | None:
    return datetime.fromtimestamp(ms / 1000, UTC) if ms else None
