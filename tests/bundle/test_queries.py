"""Alerts and the dashboard ask what stands in resources/queries, and nothing else."""

import json
import re
from pathlib import Path

import pytest

from sessionlake.delta.schemas.tables import TABLES
from sessionlake.gold.sql.views import DEFINITIONS

RESOURCES = Path(__file__).parents[2] / "resources"
QUERIES = {file.stem: file.read_text() for file in RESOURCES.glob("queries/*.sql")}
COMMENT = re.compile(r"--[^\n]*")
TABLE = re.compile(r"IDENTIFIER\(:prefix \|\| '(\w+)\.(\w+)'\)")


@pytest.fixture
def dashboard(bundle):
    return json.loads(bundle.list_resources_of_kind("dashboards")["dashboard"]["serialized_dashboard"])


@pytest.fixture
def widgets(dashboard):
    return [item["widget"] for page in dashboard["pages"] for item in page["layout"]]


def test_a_query_reads_tables_and_views_of_the_lake_by_their_names_alone():
    for name, sql in QUERIES.items():
        assert {".".join(found) for found in TABLE.findall(sql)} <= {*TABLES, *DEFINITIONS}, name
        assert sql.count("IDENTIFIER(") == len(TABLE.findall(sql)), name


def test_an_alert_asks_a_query_over_the_schemas_of_its_target(files):
    asked = {}
    for key, alert in files.merged_content["resources"]["alerts"].items():
        here = r"${var.catalog}.${resources.schemas.\1_schema.name}.\2"
        named = {name: TABLE.sub(here, sql) for name, sql in QUERIES.items()}
        asked[key] = [name for name, sql in named.items() if sql == alert["query_text"]]
        last = COMMENT.sub("", alert["query_text"]).rpartition("\nSELECT")[2]
        assert re.search(rf"\bAS {alert['evaluation']['source']['name']}\b", last)
    assert asked == {
        "backlog": ["backlog"],
        "bronze_idle": ["bronze_idle"],
        "stopped_layers": ["backlog"],
        "violations": ["violations"],
        "quarantine_rate": ["quarantine_rate"],
    }


def test_the_dashboard_asks_every_query_and_no_other(dashboard):
    asked = {dataset["name"]: "".join(dataset["queryLines"]) for dataset in dashboard["datasets"]}
    assert asked == QUERIES
    assert all([own["keyword"] for own in dataset["parameters"]] == ["prefix"] for dataset in dashboard["datasets"])


def test_the_dashboard_shows_the_tables_of_its_target_unless_others_are_chosen(bundle, dashboard):
    [shown] = {
        value["value"]
        for dataset in dashboard["datasets"]
        for parameter in dataset["parameters"]
        for value in parameter["defaultSelection"]["values"]["values"]
    }
    for schema in ("bronze", "silver", "gold", "ops"):
        assert bundle.list_resources_of_kind("schemas")[f"{schema}_schema"]["name"] == f"{shown}{schema}"


def test_the_dashboard_has_a_page_each_for_freshness_integrity_and_analytics(dashboard, widgets):
    assert [page["name"] for page in dashboard["pages"]] == ["freshness", "integrity", "analytics", "settings"]
    names = [widget["name"] for widget in widgets]
    assert len(set(names)) == len(names)
    for page in dashboard["pages"]:
        taken = [cell for item in page["layout"] for cell in cells(item["position"])]
        assert len(set(taken)) == len(taken), page["name"]


def test_a_widget_shows_what_its_query_gives(dashboard, widgets):
    known = {dataset["name"] for dataset in dashboard["datasets"]}
    for widget in widgets:
        queries = {query["name"]: query["query"] for query in widget["queries"]}
        assert {query["datasetName"] for query in queries.values()} <= known
        fields = {field["name"] for query in queries.values() for field in query.get("fields", [])}
        parameters = {own["queryName"] for own in texts_of(widget["spec"], "queryName")}
        assert {own["fieldName"] for own in texts_of(widget["spec"], "fieldName")} == fields
        assert parameters == (queries.keys() if parameters else set())


@pytest.mark.parametrize("key", ["allowHTML", "displayAs", "linkUrlTemplate", "linkTextTemplate", "imageUrlTemplate"])
def test_the_dashboard_shows_ids_as_text_whatever_they_hold(dashboard, key):
    assert texts_of(dashboard, key) == []  # unless a column says so, it is no markup, link or image


def cells(position):
    """The cells of the page's grid that a widget takes."""
    across, down = int(position["width"]), int(position["height"])
    return [(position["x"] + x, position["y"] + y) for x in range(across) for y in range(down)]


def texts_of(node, key):
    """Every mapping below a node that has the key."""
    if isinstance(node, list):
        return [found for item in node for found in texts_of(item, key)]
    if not isinstance(node, dict):
        return []
    return ([node] if key in node else []) + [found for value in node.values() for found in texts_of(value, key)]
