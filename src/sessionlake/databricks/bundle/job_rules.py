"""Checks jobs: faults that a deployment accepts and that make a run fail."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator
from zoneinfo import available_timezones

from sessionlake.databricks.bundle.files import Tree
from sessionlake.settings.file import KeyPath

JobFault = tuple[KeyPath, str]
"""Path of keys within the job, and the fault's description."""
Refused = Callable[[list[str]], str | None]
"""Returns why the package's command line rejects parameters, or None if it accepts them."""

RUNTIME_CONF = frozenset(
    {
        "spark.databricks.cluster.profile",
        "spark.databricks.delta.autoCompact.enabled",
        "spark.databricks.delta.optimizeWrite.enabled",
        "spark.master",
        "spark.scheduler.mode",
        "spark.sql.redaction.options.regex",
        "spark.sql.streaming.stateStore.providerClass",
        "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled",
    }
)
"""Spark settings that clusters of this bundle may have. Spark accepts a misspelt one silently, without effect."""
PACKAGE = "sessionlake"
ENTRY_POINT = "sessionlake-job"
"""Entry point for jobs. Unlike the package's other entry point, it rejects commands that jobs may not run."""
_MODES = {"SINGLE_USER", "DATA_SECURITY_MODE_DEDICATED"}
_MONTHS = ["JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC"]
_DAYS = ["SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT"]
# Fields of a Quartz expression: name, lowest value, highest value, and names for the values from the lowest on.
_FIELDS: list[tuple[str, int, int, list[str]]] = [
    ("second", 0, 59, []),
    ("minute", 0, 59, []),
    ("hour", 0, 23, []),
    ("day of month", 1, 31, []),
    ("month", 1, 12, _MONTHS),
    ("day of week", 1, 7, _DAYS),
    ("year", 1970, 2099, []),
]
_DAY_OF_MONTH = re.compile(r"L(-\d{1,2})?|LW|\d{1,2}W")
_DAY_OF_WEEK = re.compile(r"L|[1-7]L|[1-7]#[1-5]|[A-Z]{3}L|[A-Z]{3}#[1-5]")


def find_job_faults(job: Tree, refused: Refused) -> Iterator[JobFault]:
    """Yields all faults of one resolved job."""
    yield from _find_task_faults(job)
    yield from _find_command_faults(job, refused)
    yield from _find_trigger_faults(job)
    yield from _find_schedule_faults(job)
    yield from _find_cluster_faults(job)


def find_cron_fault(expression: str) -> str | None:
    """Returns the fault in a Quartz expression, or None."""
    fields = expression.split()
    if len(fields) not in (6, 7):
        return f"cron '{expression}': 6 or 7 fields are needed, found {len(fields)}"
    for (name, low, high, names), text in zip(_FIELDS, fields, strict=False):
        if not all(_is_valid_item(name, item, low, high, names) for item in text.split(",")):
            return f"cron '{expression}': {name} '{text}'"
    if (fields[3] == "?") == (fields[5] == "?"):
        return f"cron '{expression}': exactly one of day of month and day of week must be ?"
    return None


def _find_task_faults(job: Tree) -> Iterator[JobFault]:
    tasks = job.get("tasks", [])
    if not tasks:
        yield (), "the job has no tasks: is its key misspelt?"
    keys = [task["task_key"] for task in tasks]
    yield from ((("tasks",), f"task key {key!r} is used {n} times") for key, n in Counter(keys).items() if n > 1)
    defined = {
        "environment_key": {item["environment_key"] for item in job.get("environments", [])},
        "job_cluster_key": {item["job_cluster_key"] for item in job.get("job_clusters", [])},
    }
    for number, task in enumerate(tasks):
        for needed in (item["task_key"] for item in task.get("depends_on", [])):
            if needed == task["task_key"]:
                yield ("tasks", number, "depends_on"), f"task {needed!r} depends on itself"
            elif needed not in keys:
                yield (
                    ("tasks", number, "depends_on"),
                    f"task {task['task_key']!r} depends on {needed!r}, which is not a task",
                )
        for field, known in defined.items():
            if field in task and task[field] not in known:
                yield ("tasks", number, field), f"task {task['task_key']!r}: {field} {task[field]!r} is not defined"


def _find_command_faults(job: Tree, refused: Refused) -> Iterator[JobFault]:
    """Yields faults in the entry point and parameters of tasks that run the package's wheel."""
    for number, task in enumerate(job.get("tasks", [])):
        wheel, key = task.get("python_wheel_task", {}), ("tasks", number, "python_wheel_task")
        if wheel.get("package_name") != PACKAGE:
            continue
        if wheel["entry_point"] != ENTRY_POINT:
            yield (*key, "entry_point"), f"the entry point of a job must be {ENTRY_POINT}, not {wheel['entry_point']!r}"
        if why := refused([str(word) for word in wheel.get("parameters", [])]):
            yield (*key, "parameters"), f"task {task['task_key']!r}: {why}"


def _find_trigger_faults(job: Tree) -> Iterator[JobFault]:
    if "continuous" not in job:
        return
    for kind in ("schedule", "trigger"):
        if kind in job:
            yield (kind,), f"a job may not have both continuous and {kind}"
    if job["continuous"].get("task_retry_mode", "NEVER") != "NEVER":
        # A task that is retried within its run keeps the run alive, so no notification reports the failure.
        yield (
            ("continuous", "task_retry_mode"),
            "task_retry_mode must be NEVER, so that a failure is reported and a new run starts",
        )
    for number, task in enumerate(job.get("tasks", [])):
        for field in ("depends_on", "max_retries"):
            if field in task:
                yield ("tasks", number, field), f"task {task['task_key']!r}: a continuous job may not have {field}"


def _find_schedule_faults(job: Tree) -> Iterator[JobFault]:
    if "schedule" not in job:
        return
    if fault := find_cron_fault(job["schedule"]["quartz_cron_expression"]):
        yield ("schedule", "quartz_cron_expression"), fault
    zone = job["schedule"]["timezone_id"]
    if zone not in available_timezones():
        yield ("schedule", "timezone_id"), f"time zone {zone!r} is unknown"


def _find_cluster_faults(job: Tree) -> Iterator[JobFault]:
    for number, item in enumerate(job.get("job_clusters", [])):
        cluster, key = item.get("new_cluster", {}), ("job_clusters", number, "new_cluster")
        if cluster.get("data_security_mode") not in _MODES:
            yield key, f"data_security_mode must be SINGLE_USER, found {cluster.get('data_security_mode')}"
        for conf in cluster.get("spark_conf", {}).keys() - RUNTIME_CONF:
            yield (*key, "spark_conf", conf), f"spark_conf: {conf} is not one of the known settings (RUNTIME_CONF)"
        if bool(cluster.get("autoscale")) == ("num_workers" in cluster):
            yield key, "a cluster must have either autoscale or num_workers"


def _is_valid_item(name: str, item: str, low: int, high: int, names: list[str]) -> bool:
    """Returns True if one item of a Quartz field is valid.

    An item is `*`, `?`, a value, a range, any of these with a step, or a special form of a day field.
    """
    if item == "?" and name.startswith("day"):
        return True
    if (name == "day of month" and _DAY_OF_MONTH.fullmatch(item)) or (
        name == "day of week" and _DAY_OF_WEEK.fullmatch(item)
    ):
        return True
    span, slash, step = item.partition("/")
    if slash and not (step.isdecimal() and 1 <= int(step) <= high):
        return False
    if span == "*":
        return True
    values = [low + names.index(part) if part in names else part for part in span.split("-")]
    # A range may wrap around, such as the hours 22-2.
    return len(values) <= 2 and all(str(value).isdecimal() and low <= int(value) <= high for value in values)  # noqa: PLR2004 - a range has two ends
