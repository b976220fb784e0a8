"""A deployment keeps what the workspace decides: pauses, and who owns a job."""

import pytest
from databricks.bundles.alerts import Alert
from databricks.bundles.core import Bundle
from databricks.bundles.jobs import Job
from databricks.bundles.sql_warehouses import SqlWarehouse

from sessionlake.databricks.deploy.workspace_state import (
    choose_pause_status,
    keep_alert_status,
    keep_job_owner,
    keep_job_status,
    keep_warehouse_owner,
    replace_owner,
)
from support.workspace import TOKEN, Workspace, serving

PROD, START = Bundle(target="prod"), Bundle(target="prod", variables={"start": "true"})
SILVER = {"name": "sessionlake-silver", "continuous": {"pause_status": "UNPAUSED", "task_retry_mode": "NEVER"}}
ADA, GRACE = {"user_name": "ada@example.com"}, {"user_name": "grace@example.com"}


@pytest.fixture
def workspace(monkeypatch):
    """A workspace that the functions reach as at a deployment: by the environment that the CLI gives them."""
    content = Workspace()
    with serving(content) as url:
        monkeypatch.setenv("DATABRICKS_HOST", url)
        monkeypatch.setenv("DATABRICKS_TOKEN", TOKEN)
        yield content


def deploy(bundle, job):
    return keep_job_status.function(bundle, Job.from_dict(job)).as_dict()


@pytest.mark.usefixtures("workspace")
def test_a_new_job_is_paused_whatever_its_target_says():
    assert deploy(PROD, SILVER)["continuous"] == {"pause_status": "PAUSED", "task_retry_mode": "NEVER"}


@pytest.mark.parametrize("status", ["PAUSED", "UNPAUSED"])
@pytest.mark.parametrize("wanted", ["PAUSED", "UNPAUSED"])
def test_a_job_stays_as_it_is_in_the_workspace(workspace, status, wanted):
    workspace.add_job("sessionlake-silver", continuous={"pause_status": status})
    job = SILVER | {"continuous": {"pause_status": wanted}}
    assert deploy(PROD, job)["continuous"]["pause_status"] == status


def test_a_schedule_is_kept_too_and_a_job_without_a_trigger_is_unchanged(workspace):
    schedule = {"quartz_cron_expression": "0 17 * * * ?", "timezone_id": "UTC"}
    workspace.add_job("sessionlake-maintenance", schedule=schedule | {"pause_status": "PAUSED"})
    job = {"name": "sessionlake-maintenance", "schedule": schedule | {"pause_status": "UNPAUSED"}}
    assert deploy(PROD, job)["schedule"] == schedule | {"pause_status": "PAUSED"}
    assert deploy(PROD, {"name": "sessionlake-operate"}) == {"name": "sessionlake-operate"}


def test_start_sets_the_pause_of_the_target(workspace):
    workspace.add_job("sessionlake-silver", continuous={"pause_status": "PAUSED"})
    assert deploy(START, SILVER)["continuous"]["pause_status"] == "UNPAUSED"


def test_the_job_of_another_target_or_bundle_says_nothing(workspace):
    workspace.add_job("sessionlake-silver", target="staging", continuous={"pause_status": "UNPAUSED"})
    workspace.add_job("sessionlake-silver", target="", continuous={"pause_status": "UNPAUSED"})
    assert deploy(PROD, SILVER)["continuous"]["pause_status"] == "PAUSED"


def test_an_alert_stays_as_it_is_and_a_new_one_is_paused(workspace):
    schedule = {"quartz_cron_schedule": "0 0 * * * ?", "timezone_id": "UTC"}
    source = {"comparison_operator": "GREATER_THAN", "source": {"name": "n"}}
    given = {"display_name": "backlog", "query_text": "SELECT 1 AS n", "warehouse_id": "w1", "evaluation": source}
    alert = Alert.from_dict(given | {"schedule": schedule | {"pause_status": "UNPAUSED"}})

    def status(bundle: Bundle) -> str:
        return keep_alert_status.function(bundle, alert).as_dict()["schedule"]["pause_status"]

    assert (status(PROD), status(START)) == ("PAUSED", "UNPAUSED")
    workspace.alerts.append({"id": "a1", "display_name": "backlog", "schedule": schedule})
    assert status(PROD) == "UNPAUSED"  # the workspace leaves out the pause of what is not paused
    workspace.alerts[0]["schedule"] = schedule | {"pause_status": "PAUSED"}
    assert status(PROD) == "PAUSED"


def test_a_second_user_s_deployment_keeps_the_owner(workspace):
    number = workspace.add_job("sessionlake-silver")
    owner = {"user_name": "ada@example.com", "all_permissions": [{"permission_level": "IS_OWNER"}]}
    workspace.permissions |= {
        f"{kind}": {"access_control_list": [owner]} for kind in (f"jobs/{number}", "sql/warehouses/w1")
    }
    given = [{"level": "CAN_MANAGE", **ADA}, {"level": "IS_OWNER", **GRACE}]
    kept = [{"level": "CAN_MANAGE", **GRACE}, {"level": "IS_OWNER", **ADA}]
    job = keep_job_owner.function(PROD, Job.from_dict(SILVER | {"permissions": given}))
    warehouse = keep_warehouse_owner.function(PROD, SqlWarehouse.from_dict({"name": "lake", "permissions": given}))
    assert job.as_dict()["permissions"] == warehouse.as_dict()["permissions"] == kept


@pytest.mark.usefixtures("workspace")
def test_at_the_first_deployment_the_deployer_becomes_the_owner():
    given = [{"level": "IS_OWNER", **GRACE}]
    assert (
        keep_job_owner.function(PROD, Job.from_dict(SILVER | {"permissions": given})).as_dict()["permissions"] == given
    )


def test_of_several_jobs_with_the_name_each_must_run():
    assert [choose_pause_status(found) for found in ([], ["UNPAUSED"], ["UNPAUSED", "PAUSED"])] == [
        "PAUSED",
        "UNPAUSED",
        "PAUSED",
    ]


def test_there_is_one_owner_and_no_name_twice():
    entries = [{"level": "IS_OWNER", **ADA}, {"level": "CAN_MANAGE", **GRACE}, {"level": "CAN_VIEW", "group_name": "g"}]
    assert replace_owner(entries, {"level": "IS_OWNER", **GRACE}) == [
        {"level": "CAN_MANAGE", **ADA},
        {"level": "CAN_VIEW", "group_name": "g"},
        {"level": "IS_OWNER", **GRACE},
    ]
