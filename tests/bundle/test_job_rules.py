"""Faults of a job that deployment accepts and a run trips over. Each rule is shown on a job that breaks it."""

import re
from collections import Counter
from collections.abc import Iterator
from zoneinfo import available_timezones

import pytest

MONTHS = ["JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC"]
DAYS = ["SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT"]
# Quartz: name, lowest and highest value, names that count up from the lowest value.
FIELDS = [
    ("second", 0, 59, []),
    ("minute", 0, 59, []),
    ("hour", 0, 23, []),
    ("day of month", 1, 31, []),
    ("month", 1, 12, MONTHS),
    ("day of week", 1, 7, DAYS),
    ("year", 1970, 2099, []),
]
DAY_OF_MONTH = re.compile(r"L(-\d{1,2})?|LW|\d{1,2}W")
DAY_OF_WEEK = re.compile(r"L|[1-7]L|[1-7]#[1-5]|[A-Z]{3}L|[A-Z]{3}#[1-5]")


def test_real_jobs_have_no_fault(bundle):
    assert {key: job_faults(job) for key, job in bundle.jobs.items()} == {key: [] for key in bundle.jobs}


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({"tasks": [{"task_key": "a"}, {"task_key": "a"}]}, "task key 'a' is used 2 times"),
        (
            {"tasks": [{"task_key": "a", "depends_on": [{"task_key": "b"}]}]},
            "task 'a' depends on 'b', which is not a task",
        ),
        ({"tasks": [{"task_key": "a", "depends_on": [{"task_key": "a"}]}]}, "task 'a' depends on itself"),
        (
            {"tasks": [{"task_key": "a", "environment_key": "default"}]},
            "task 'a': environment_key 'default' is not defined",
        ),
        (
            {"tasks": [{"task_key": "a", "job_cluster_key": "small"}]},
            "task 'a': job_cluster_key 'small' is not defined",
        ),
        (
            {"continuous": {}, "schedule": {"quartz_cron_expression": "0 0 3 * * ?", "timezone_id": "UTC"}},
            "continuous together with schedule",
        ),
        ({"continuous": {}, "trigger": {"periodic": {}}}, "continuous together with trigger"),
        (
            {"continuous": {}, "tasks": [{"task_key": "a", "max_retries": 3}]},
            "task 'a': a continuous job takes no max_retries",
        ),
        (
            {"schedule": {"quartz_cron_expression": "0 3 * * *", "timezone_id": "UTC"}},
            "cron '0 3 * * *': 6 or 7 fields are needed, found 5",
        ),
        (
            {"schedule": {"quartz_cron_expression": "0 0 3 * * ?", "timezone_id": "Europe/Zürich"}},
            "time zone 'Europe/Zürich' is unknown",
        ),
    ],
)
def test_rule_names_the_fault(change, fault):
    assert job_faults({"tasks": [{"task_key": "a"}]} | change) == [fault]


def test_sound_job_with_dependencies_and_environment_passes():
    tasks = [
        {"task_key": "a", "environment_key": "default"},
        {"task_key": "b", "depends_on": [{"task_key": "a"}], "job_cluster_key": "small"},
    ]
    job = {"tasks": tasks, "environments": [{"environment_key": "default"}]}
    assert job_faults(job | {"job_clusters": [{"job_cluster_key": "small"}]}) == []


@pytest.mark.parametrize(
    "expression",
    [
        "0 0 3 * * ?",
        "0 0/15 * ? * MON-FRI",
        "0 0 12 1,15 * ?",
        "0 0 0 L * ?",
        "0 30 8 15W JAN,JUL ? 2026-2030",
        "0 0 6 ? * 6#3",
        "0 0 6 ? * FRIL",
        "0 0 22-2 * * ?",
    ],
)
def test_quartz_expression_is_accepted(expression):
    assert cron_fault(expression) is None


@pytest.mark.parametrize(
    ("expression", "fault"),
    [
        ("60 0 3 * * ?", "second '60'"),
        ("0 0 24 * * ?", "hour '24'"),
        ("0 0 3 0 * ?", "day of month '0'"),
        ("0 0 3 32 * ?", "day of month '32'"),
        ("0 0 3 ? 13 MON", "month '13'"),
        ("0 0 3 ? * 0", "day of week '0'"),
        ("0 0 3 ? * MOO", "day of week 'MOO'"),
        ("0 30-60 3 * * ?", "minute '30-60'"),
        ("0 0/0 3 * * ?", "minute '0/0'"),
        ("0 0 3 * * *", "exactly one of day of month and day of week must be ?"),
        ("0 0 3 ? * ?", "exactly one of day of month and day of week must be ?"),
        ("0 0 3 * * ? 1969", "year '1969'"),
    ],
)
def test_quartz_expression_is_refused(expression, fault):
    assert cron_fault(expression) == f"cron '{expression}': {fault}"


def job_faults(job):
    """Everything wrong with one job, as texts; none for a sound one."""
    return [*_task_faults(job), *_trigger_faults(job), *_schedule_faults(job)]


def cron_fault(expression):
    """What is wrong with a Quartz expression, or None."""
    fields = expression.split()
    if len(fields) not in (6, 7):
        return f"cron '{expression}': 6 or 7 fields are needed, found {len(fields)}"
    for (name, low, high, names), text in zip(FIELDS, fields, strict=False):
        if not all(_item_fits(name, item, low, high, names) for item in text.split(",")):
            return f"cron '{expression}': {name} '{text}'"
    if (fields[3] == "?") == (fields[5] == "?"):
        return f"cron '{expression}': exactly one of day of month and day of week must be ?"
    return None


def _task_faults(job) -> Iterator[str]:
    tasks = job.get("tasks", [])
    keys = [task["task_key"] for task in tasks]
    yield from (f"task key {key!r} is used {n} times" for key, n in Counter(keys).items() if n > 1)
    defined = {
        "environment_key": {item["environment_key"] for item in job.get("environments", [])},
        "job_cluster_key": {item["job_cluster_key"] for item in job.get("job_clusters", [])},
    }
    for task in tasks:
        for needed in (item["task_key"] for item in task.get("depends_on", [])):
            if needed == task["task_key"]:
                yield f"task {needed!r} depends on itself"
            elif needed not in keys:
                yield f"task {task['task_key']!r} depends on {needed!r}, which is not a task"
        for field, known in defined.items():
            if field in task and task[field] not in known:
                yield f"task {task['task_key']!r}: {field} {task[field]!r} is not defined"


def _trigger_faults(job) -> Iterator[str]:
    if "continuous" not in job:
        return
    yield from (f"continuous together with {kind}" for kind in ("schedule", "trigger") if kind in job)
    for task in job.get("tasks", []):
        for field in ("depends_on", "max_retries"):
            if field in task:
                yield f"task {task['task_key']!r}: a continuous job takes no {field}"


def _schedule_faults(job) -> Iterator[str]:
    if "schedule" not in job:
        return
    if fault := cron_fault(job["schedule"]["quartz_cron_expression"]):
        yield fault
    zone = job["schedule"]["timezone_id"]
    if zone not in available_timezones():
        yield f"time zone {zone!r} is unknown"


def _item_fits(name, item, low, high, names) -> bool:
    """One item of a field: `*`, `?`, a value, a range, any of these with a step, or a day's special forms."""
    if item == "?" and name.startswith("day"):
        return True
    if (name == "day of month" and DAY_OF_MONTH.fullmatch(item)) or (
        name == "day of week" and DAY_OF_WEEK.fullmatch(item)
    ):
        return True
    span, slash, step = item.partition("/")
    if slash and not (step.isdecimal() and 1 <= int(step) <= high):
        return False
    if span == "*":
        return True
    values = [low + names.index(part) if part in names else part for part in span.split("-")]
    # A range may wrap around: 22-2 is a night.
    return len(values) <= 2 and all(str(value).isdecimal() and low <= int(value) <= high for value in values)
