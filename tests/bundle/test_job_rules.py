"""Faults of a job that deployment accepts and a run trips over. Each rule is shown on a job that breaks it."""

import pytest

from sessionlake.databricks.bundle.cron import find_cron_fault
from sessionlake.databricks.bundle.files import ResolvedTarget
from sessionlake.databricks.bundle.job_rules import find_job_faults
from sessionlake.databricks.bundle.value_rules import find_value_faults


def test_real_jobs_have_no_fault(bundle):
    assert {key: list(find_job_faults(job, lambda _, __: None)) for key, job in bundle.jobs.items()} == {
        key: [] for key in bundle.jobs
    }


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
            "a job may not have both continuous and schedule",
        ),
        ({"continuous": {}, "trigger": {"periodic": {}}}, "a job may not have both continuous and trigger"),
        (
            {"continuous": {}, "tasks": [{"task_key": "a", "max_retries": 3}]},
            "task 'a': a continuous job may not have max_retries",
        ),
        (
            {"schedule": {"quartz_cron_expression": "0 3 * * *", "timezone_id": "UTC"}},
            "cron '0 3 * * *': 6 or 7 fields are needed, found 5",
        ),
        (
            {"schedule": {"quartz_cron_expression": "0 0 3 * * ?", "timezone_id": "Europe/Zürich"}},
            "time zone 'Europe/Zürich' is unknown. Did you mean 'Europe/Zurich'?",
        ),
    ],
)
def test_rule_names_the_fault(change, fault):
    assert faults({"tasks": [{"task_key": "a"}]} | change) == [fault]


def test_sound_job_with_dependencies_and_environment_passes():
    tasks = [
        {"task_key": "a", "environment_key": "default"},
        {"task_key": "b", "depends_on": [{"task_key": "a"}], "job_cluster_key": "small"},
    ]
    cluster = {"data_security_mode": "SINGLE_USER", "num_workers": 2, "spark_version": "17.3.x-scala2.13"}
    cluster["node_type_id"] = "m6id.xlarge"
    job = {"tasks": tasks, "environments": [{"environment_key": "default"}]}
    assert faults(job | {"job_clusters": [{"job_cluster_key": "small", "new_cluster": cluster}]}) == []


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
    assert find_cron_fault(expression) is None


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
    assert find_cron_fault(expression) == f"cron '{expression}': {fault}"


def faults(job):
    work = {"run_job_task": {"job_id": 1}}
    complete = job | {"tasks": [work | task for task in job["tasks"]]}
    values = find_value_faults(ResolvedTarget("prod", {}), "jobs", complete)
    return [text for _, text in (*find_job_faults(complete, lambda _, __: None), *values)]
