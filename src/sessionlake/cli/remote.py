"""The bundle's jobs and tables in a Databricks workspace, from a laptop.

The Databricks SDK takes two seconds to import: it is, when one of these commands runs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from sessionlake.cli.context import Config, Form, say, settings_of
from sessionlake.cli.options import DecisionOptions, TakesSql, takes_decision
from sessionlake.cli.show import OutputFormat, write_text

if TYPE_CHECKING:
    from databricks.sdk import WorkspaceClient

    from sessionlake.databricks.remote.deployment import DeployedJob

OPERATE = "operate"
"""The job that runs any command line, once."""

remote_app = typer.Typer(no_args_is_help=True, help="The bundle's jobs and tables in a Databricks workspace.")

Profile = Annotated[
    str | None, typer.Option("--profile", help="Of ~/.databrickscfg [DATABRICKS_CONFIG_PROFILE, DATABRICKS_HOST, …]")
]
Target = Annotated[str | None, typer.Option("--target", help="The bundle's target, where several are deployed.")]
Warehouse = Annotated[
    str | None,
    typer.Option("--warehouse", help="By id or name [DATABRICKS_WAREHOUSE_ID, else the bundle's]"),
]
Job = Annotated[str, typer.Argument(metavar="JOB", help="As in silver: sessionlake-silver.")]
Jobs = Annotated[list[str], typer.Argument(metavar="JOB...", help="As in silver: sessionlake-silver.")]


@remote_app.command("status")
def remote_status(
    warehouse: Warehouse = None,
    target: Target = None,
    profile: Profile = None,
    form: Form = OutputFormat.TABLE,
    config: Config = None,
) -> None:
    """Each job's latest run; of a layer, with --warehouse, its batches of the last hour, too."""
    settings = settings_of(config)
    from sessionlake.cli.remote_tables import hour_of
    from sessionlake.cli.show import show
    from sessionlake.databricks.remote.deployment import deployed_jobs
    from sessionlake.databricks.remote.runs import latest_run, trigger_of
    from sessionlake.databricks.remote.workspace import workspace

    with workspace(profile) as client:
        jobs = deployed_jobs(client, target)
        names, hour = hour_of(client, settings, jobs, warehouse)
        rows = []
        for word, job in jobs.items():
            run = latest_run(client, job)
            told = (run.run, run.state, run.started, run.ended, run.says) if run else (None, "never run", *[None] * 3)
            rows.append((word, job.target, trigger_of(job), *told, *hour.get(word, [None] * len(names))))
    show(("job", "target", "starts", "run", "state", "started", "ended", "says", *names), rows, form)


@remote_app.command("logs")
def remote_logs(
    job: Job,
    run: Annotated[int | None, typer.Option("--run", help="Which [the latest that has ended].", min=1)] = None,
    target: Target = None,
    profile: Profile = None,
) -> None:
    """What a run wrote, and what it failed with."""
    from sessionlake.databricks.remote.deployment import deployed_jobs, job_called
    from sessionlake.databricks.remote.runs import latest_run, run_status
    from sessionlake.databricks.remote.workspace import workspace
    from sessionlake.errors import RemoteError

    with workspace(profile) as client:
        if run is None:
            status = latest_run(client, job_called(deployed_jobs(client, target), job), ended=True)
        else:
            status = run_status(client.jobs.get_run(run))
        if status is None:
            raise RemoteError(f"no run of {job} has ended yet: `sessionlake remote status` says how it stands")
        say(f"run {status.run}, begun {status.started}: {status.state} {status.says}; {status.page}")
        _write_outputs(client, status.run)


@remote_app.command("run")
def remote_run(
    job: Job,
    words: Annotated[
        list[str] | None, typer.Argument(help="For operate: a command line's words, behind --; it is waited for.")
    ] = None,
    once: Annotated[bool, typer.Option("--once", help="Start one run; a paused job stays paused.")] = False,
    target: Target = None,
    profile: Profile = None,
) -> None:
    """Let a paused job go on; start any other now, instead of its present run, so that it takes a new deployment."""
    from sessionlake.databricks.remote.deployment import deployed_jobs, job_called
    from sessionlake.databricks.remote.runs import set_paused, start
    from sessionlake.databricks.remote.workspace import workspace
    from sessionlake.errors import UsageError

    if (job == OPERATE) != bool(words):
        raise UsageError(f"words go with {OPERATE}, and only with it: sessionlake remote run {OPERATE} -- doctor")
    with workspace(profile) as client:
        found = job_called(deployed_jobs(client, target), job)
        if words:
            _operate(client, found, words)
        elif not once and set_paused(client, found, paused=False) == "continuous":
            say(f"{found.name} goes on: Databricks starts its run")
        else:
            say(f"{found.name}: run {start(client, found)} is started")


@remote_app.command("pause")
def remote_pause(jobs: Jobs, target: Target = None, profile: Profile = None) -> None:
    """Start jobs no more, and end their runs, until `remote run`. A new deployment sets what its target says."""
    from sessionlake.databricks.remote.deployment import deployed_jobs, job_called
    from sessionlake.databricks.remote.runs import set_paused, stop_runs
    from sessionlake.databricks.remote.workspace import workspace

    with workspace(profile) as client:
        there = deployed_jobs(client, target)
        for job in [job_called(there, word) for word in jobs]:
            changed = set_paused(client, job, paused=True)
            stop_runs(client, job)
            say(f"{job.name} {'is paused' if changed else 'starts nothing by itself'}; its runs are ended")


@remote_app.command("resolve")
@takes_decision
def remote_resolve(
    asked: DecisionOptions,
    target: Target = None,
    profile: Profile = None,
) -> None:
    """Decide as `sessionlake resolve` does, by a run of the job operate, and show what it says."""
    from sessionlake.cli.resolve import chosen
    from sessionlake.databricks.remote.deployment import deployed_jobs, job_called
    from sessionlake.databricks.remote.workspace import workspace

    chosen(asked)
    flags = {"--accept-gap": asked.accept_gap, "--isolate": asked.isolate, "--withdraw": asked.withdraw}
    values = {"--session": asked.session, "--topic": asked.topic, "--partition": asked.partition}
    values |= {"--offset": asked.offset, "--skip-message": asked.skip_message}
    with workspace(profile) as client:
        job = job_called(deployed_jobs(client, target), OPERATE)
        # There the decision is the job's principal's; who asked for it is said with its reason.
        values["--why"] = f"{asked.why or 'decided'} (asked for by {client.current_user.me().user_name})"
        words = [f"{option}={value}" for option, value in values.items() if value is not None]
        _operate(client, job, ["resolve", *words, *(flag for flag, given in flags.items() if given)])


@remote_app.command("query", cls=TakesSql)
def remote_query(
    sql: Annotated[str, typer.Argument(help='One statement, as in "SELECT * FROM gold.metrics_1h".')],
    warehouse: Warehouse = None,
    target: Target = None,
    profile: Profile = None,
    form: Form = OutputFormat.TABLE,
    config: Config = None,
) -> None:
    """Ask the tables in SQL on a warehouse, under the names that they have on a laptop."""
    settings = settings_of(config)
    from sessionlake.cli.remote_tables import asked, require_reading
    from sessionlake.cli.show import show
    from sessionlake.databricks.remote.deployment import deployed_jobs
    from sessionlake.databricks.remote.workspace import workspace

    require_reading(settings, sql)
    with workspace(profile) as client:
        answer = asked(client, settings, deployed_jobs(client, target), warehouse, sql)
    show(answer.names, answer.rows, form)


def _operate(client: WorkspaceClient, job: DeployedJob, words: list[str]) -> None:
    """Runs a command line by the job, to its end, and shows what it wrote.

    Raises:
        RemoteError: it failed.
    """
    from sessionlake.databricks.remote.runs import start, wait_for_run
    from sessionlake.errors import RemoteError

    run = start(client, job, words)
    say(f"{job.name}: run {run} is started; interrupted, it goes on (`sessionlake remote logs {job.word} --run {run}`)")
    status = wait_for_run(client, run, say)
    _write_outputs(client, run)
    if not status.done:
        raise RemoteError(f"run {run} of {job.name} ended as {status.state}: {status.says}; {status.page}")


def _write_outputs(client: WorkspaceClient, run: int) -> None:
    from sessionlake.databricks.remote.runs import outputs

    tasks = list(outputs(client, run))
    for task in tasks:
        if len(tasks) > 1:
            say(f"task {task.task}:")
        if task.cut:
            say("what it wrote before this is cut by Databricks:")
        if task.written:
            write_text(task.written.rstrip("\n"))
        if task.error:
            say(task.error)
        if not (task.written or task.error):
            say("nothing is written yet: Databricks tells a task's output when it has ended")
