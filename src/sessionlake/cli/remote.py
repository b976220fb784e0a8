"""`sessionlake remote`: controls the bundle's jobs, and queries its tables, in a Databricks workspace.

The Databricks SDK takes two seconds to import, so only these commands import it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from sessionlake.cli.context import Config, Form, load_config, print_to_stderr
from sessionlake.cli.options import DecisionOptions, SqlCommand, add_decision_options
from sessionlake.cli.show import OutputFormat, write_text

if TYPE_CHECKING:
    from databricks.sdk import WorkspaceClient

    from sessionlake.databricks.remote.deployment import DeployedJob
    from sessionlake.settings.model import Settings

OPERATE = "operate"
"""The job that runs any allowed command line once."""

remote_app = typer.Typer(no_args_is_help=True, help="Control the jobs and query the tables in Databricks.")

Profile = Annotated[
    str | None,
    typer.Option(
        "--profile",
        help="A profile in ~/.databrickscfg [default: $DATABRICKS_CONFIG_PROFILE, else $DATABRICKS_HOST and its "
        "credentials].",
    ),
]
Target = Annotated[str | None, typer.Option("--target", help="The bundle's target, if several are deployed.")]
Warehouse = Annotated[
    str | None,
    typer.Option(
        "--warehouse", help="Id or name of the SQL warehouse [default: $DATABRICKS_WAREHOUSE_ID, else the bundle's]."
    ),
]
Job = Annotated[str, typer.Argument(metavar="JOB", help="The job without its prefix: `silver` is sessionlake-silver.")]
Jobs = Annotated[
    list[str], typer.Argument(metavar="JOB...", help="The jobs without their prefix: `silver` is sessionlake-silver.")
]


@remote_app.command("status")
def remote_status(
    warehouse: Warehouse = None,
    target: Target = None,
    profile: Profile = None,
    form: Form = OutputFormat.TABLE,
    config: Config = None,
) -> None:
    """Show the latest run of each job.

    With --warehouse it also shows each layer's batches of the last hour.
    """
    settings = load_config(config)
    from sessionlake.cli.remote_tables import read_batch_figures_of_last_hour
    from sessionlake.cli.show import show_rows
    from sessionlake.databricks.remote.deployment import find_deployed_jobs
    from sessionlake.databricks.remote.runs import describe_job_trigger, find_latest_run_of_job
    from sessionlake.databricks.remote.workspace import open_workspace

    with open_workspace(profile) as client:
        jobs = find_deployed_jobs(client, target)
        names, hour = read_batch_figures_of_last_hour(client, settings, jobs, warehouse)
        rows = []
        for word, job in jobs.items():
            run = find_latest_run_of_job(client, job)
            last = (
                (run.run, run.state, run.started, run.ended, run.message) if run else (None, "never run", *[None] * 3)
            )
            rows.append((word, job.target, describe_job_trigger(job), *last, *hour.get(word, [None] * len(names))))
    show_rows(("job", "target", "starts", "run", "state", "started", "ended", "says", *names), rows, form)


@remote_app.command("logs")
def remote_logs(
    job: Job,
    run: Annotated[
        int | None, typer.Option("--run", help="The run's id [default: the latest run that has ended].", min=1)
    ] = None,
    target: Target = None,
    profile: Profile = None,
) -> None:
    """Show the output and the error of a run."""
    from sessionlake.databricks.remote.deployment import choose_job, find_deployed_jobs
    from sessionlake.databricks.remote.runs import convert_to_job_run_status, find_latest_run_of_job
    from sessionlake.databricks.remote.workspace import open_workspace
    from sessionlake.errors import DatabricksWorkspaceError

    with open_workspace(profile) as client:
        if run is None:
            status = find_latest_run_of_job(client, choose_job(find_deployed_jobs(client, target), job), ended=True)
        else:
            status = convert_to_job_run_status(client.jobs.get_run(run))
        if status is None:
            raise DatabricksWorkspaceError(
                f"remote: no run of the job {job} has ended yet, so there is no output to show",
                fix="Wait until `sessionlake remote status` shows that the run has ended",
            )
        print_to_stderr(f"run {status.run}, started {status.started}: {status.state} {status.message}; {status.page}")
        _print_task_outputs(client, status.run)


@remote_app.command("run")
def remote_run(
    job: Job,
    words: Annotated[
        list[str] | None,
        typer.Argument(help="Only for the job `operate`: the command to run, after --. Waits until it has ended."),
    ] = None,
    once: Annotated[bool, typer.Option("--once", help="Start a single run. A paused job stays paused.")] = False,
    target: Target = None,
    profile: Profile = None,
) -> None:
    """Resume a paused job, or start a job that is not paused.

    A job that is running is restarted, so that it uses a new deployment. Example: sessionlake remote run operate --
    doctor
    """
    from sessionlake.databricks.remote.deployment import choose_job, find_deployed_jobs
    from sessionlake.databricks.remote.runs import pause_or_resume_job_trigger, start_job_run
    from sessionlake.databricks.remote.workspace import open_workspace
    from sessionlake.errors import UsageError

    if job == OPERATE and not words:
        raise UsageError(
            f"remote run: the job {OPERATE} runs any command of sessionlake, and no command was given",
            fix=f"Write the command after --, as in `sessionlake remote run {OPERATE} -- doctor`",
        )
    if job != OPERATE and words:
        raise UsageError(
            f"remote run: the job {job} always does the same, so it takes no command after --",
            fix=f"Leave the command out, or run it with the job {OPERATE}: `sessionlake remote run "
            f"{OPERATE} -- COMMAND`",
        )
    with open_workspace(profile) as client:
        deployed_job = choose_job(find_deployed_jobs(client, target), job)
        if words:
            _run_command_in_job(client, deployed_job, words)
        elif not once and pause_or_resume_job_trigger(client, deployed_job, paused=False) == "continuous":
            print_to_stderr(f"{deployed_job.name} is resumed: Databricks starts its run")
        else:
            print_to_stderr(f"{deployed_job.name}: run {start_job_run(client, deployed_job)} is started")


@remote_app.command("pause")
def remote_pause(jobs: Jobs, target: Target = None, profile: Profile = None) -> None:
    """Pause jobs and end their runs, until `remote run`.

    A new deployment leaves them paused, unless its variable `start` is true.
    """
    from sessionlake.databricks.remote.deployment import choose_job, find_deployed_jobs
    from sessionlake.databricks.remote.runs import cancel_job_runs, pause_or_resume_job_trigger
    from sessionlake.databricks.remote.workspace import open_workspace

    with open_workspace(profile) as client:
        deployed = find_deployed_jobs(client, target)
        for job in [choose_job(deployed, word) for word in jobs]:
            changed = pause_or_resume_job_trigger(client, job, paused=True)
            cancel_job_runs(client, job)
            print_to_stderr(f"{job.name} {'is paused' if changed else 'has no trigger to pause'}; its runs are ended")


@remote_app.command("resolve")
@add_decision_options
def remote_resolve(
    options: DecisionOptions,
    target: Target = None,
    profile: Profile = None,
) -> None:
    """Decide about a message at which silver has stopped.

    Does the same as `sessionlake resolve`, in a run of the job `operate`, and shows its output.
    """
    from sessionlake.cli.resolve import parse_chosen_decision
    from sessionlake.databricks.remote.deployment import choose_job, find_deployed_jobs
    from sessionlake.databricks.remote.workspace import open_workspace

    parse_chosen_decision(options)
    flags = {"--accept-gap": options.accept_gap, "--isolate": options.isolate, "--withdraw": options.withdraw}
    values = {"--session": options.session, "--topic": options.topic, "--partition": options.partition}
    values |= {"--offset": options.offset, "--skip-message": options.skip_message}
    with open_workspace(profile) as client:
        job = choose_job(find_deployed_jobs(client, target), OPERATE)
        # The job's principal is stored as the one who decided, so the reason names the user.
        values["--why"] = f"{options.why or 'decided'} (asked for by {client.current_user.me().user_name})"
        words = [f"{option}={value}" for option, value in values.items() if value is not None]
        _run_command_in_job(client, job, ["resolve", *words, *(flag for flag, given in flags.items() if given)])


@remote_app.command("query", cls=SqlCommand)
def remote_query(
    sql: Annotated[str, typer.Argument(help='One SQL statement that reads, such as "SELECT * FROM gold.metrics_1h".')],
    warehouse: Warehouse = None,
    target: Target = None,
    profile: Profile = None,
    form: Form = OutputFormat.TABLE,
    config: Config = None,
) -> None:
    """Run a SQL query over the tables on a SQL warehouse.

    The tables have the same names as on a laptop.
    """
    show_remote_query(load_config(config), sql, form, warehouse, target, profile)


def show_remote_query(
    settings: Settings,
    sql: str,
    form: OutputFormat,
    warehouse: str | None = None,
    target: str | None = None,
    profile: str | None = None,
) -> None:
    """Runs a statement on a SQL warehouse over a deployment's tables, and prints its result.

    Args:
        settings: The configuration.
        sql: The statement.
        form: The format of the output.
        warehouse: Id or name of the warehouse. None is the default of `sessionlake remote query`.
        target: Target of the deployment; None if there is only one.
        profile: Profile of the workspace's configuration; None is the default one.

    Raises:
        UsageError: The statement does more than read tables.
        DatabricksWorkspaceError: The statement fails.
    """
    from sessionlake.cli.remote_tables import require_read_only_statement, run_query_on_warehouse
    from sessionlake.cli.show import show_rows
    from sessionlake.databricks.remote.deployment import find_deployed_jobs
    from sessionlake.databricks.remote.workspace import open_workspace

    require_read_only_statement(settings, sql)
    with open_workspace(profile) as client:
        answer = run_query_on_warehouse(client, settings, find_deployed_jobs(client, target), warehouse, sql)
    show_rows(answer.names, answer.rows, form)


def _run_command_in_job(client: WorkspaceClient, job: DeployedJob, words: list[str]) -> None:
    """Runs a command line in a new run of the job, waits for its end, and shows its output.

    Raises:
        DatabricksWorkspaceError: The run failed.
    """
    from sessionlake.databricks.remote.runs import start_job_run, wait_for_end_of_job_run
    from sessionlake.errors import DatabricksWorkspaceError

    run = start_job_run(client, job, words)
    print_to_stderr(
        f"{job.name}: run {run} is started; it continues even if you interrupt this command (see `sessionlake remote "
        f"logs {job.short_name} --run {run}`)"
    )
    status = wait_for_end_of_job_run(client, run, print_to_stderr)
    _print_task_outputs(client, run)
    if not status.has_succeeded:
        raise DatabricksWorkspaceError(
            f"the run {run} of the job {job.name} ended as {status.state}: {status.message}",
            fix=f"Look at the run's output above, or on its page {status.page}",
        )


def _print_task_outputs(client: WorkspaceClient, run: int) -> None:
    from sessionlake.databricks.remote.runs import read_task_outputs

    tasks = list(read_task_outputs(client, run))
    for task in tasks:
        if len(tasks) > 1:
            print_to_stderr(f"task {task.task}:")
        if task.is_truncated:
            print_to_stderr("Databricks has removed the output before this:")
        if task.text:
            write_text(task.text.rstrip("\n"))
        if task.error:
            print_to_stderr(task.error)
        if not (task.text or task.error):
            print_to_stderr("no output yet: Databricks shows a task's output when the task has ended")
