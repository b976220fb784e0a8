"""Checks dashboards: their keys, their queries, and that each widget shows what its query returns."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

import yaml

from sessionlake.databricks.bundle.alert_rules import TextFault
from sessionlake.databricks.bundle.files import YamlMapping, iterate_nested_texts
from sessionlake.databricks.bundle.models import find_key_and_type_faults, suggest_similar_name
from sessionlake.databricks.bundle.query_rules import CheckedQuery, ColumnsOfTables, check_query
from sessionlake.databricks.bundle.root_models import DASHBOARD, WIDGET_VERSIONS, read_models_of_all_bundle_files
from sessionlake.protocol.columns import find_repeated_names
from sessionlake.settings.file import KeyPath, find_line_numbers

CONTENT = "serialized_dashboard"


def find_dashboard_faults(
    dashboard: YamlMapping, columns: ColumnsOfTables, schemas: Mapping[str, str], queries: Mapping[str, str]
) -> Iterator[TextFault]:
    """Yields the faults of a dashboard: the key in it, the fault's text, and the line within the key's text, or 0.

    Args:
        dashboard: The dashboard as the bundle declares it, with all variables replaced by their values.
        columns: The columns of each table of the lake, by the table's name.
        schemas: For each schema's name in the deployment, such as `dev_ada_silver`, its name in the lake, such as
            `silver`.
        queries: The text of each file in resources/queries, by its name.
    """
    text = dashboard.get(CONTENT)
    if text is None:
        return
    if not isinstance(text, str):
        yield (CONTENT,), "must be a text of JSON: as YAML, each plan would report its numbers as changed", 0
        return
    try:
        content = json.loads(text)
    except json.JSONDecodeError as error:
        yield (CONTENT,), f"the dashboard is not valid JSON: {error.msg}, column {error.colno}", error.lineno
        return
    faults = list(_find_dashboard_content_faults(content, columns, schemas, queries))
    # JSON is YAML, whose parser tells the line of each key. It is slow, so a dashboard without faults is not parsed.
    lines = find_line_numbers(yaml.compose(text, Loader=yaml.SafeLoader)) if faults else {}
    for key, fault in faults:
        line = next((lines[key[:n]] for n in range(len(key), 0, -1) if key[:n] in lines), 1)
        yield (CONTENT,), fault, line


def _find_dashboard_content_faults(
    content: Any, columns: ColumnsOfTables, schemas: Mapping[str, str], queries: Mapping[str, str]
) -> Iterator[tuple[KeyPath, str]]:
    wrong = list(find_key_and_type_faults(read_models_of_all_bundle_files(), DASHBOARD, content))
    yield from wrong
    if wrong:
        return
    checked: dict[str, CheckedQuery] = {}
    for number, dataset in enumerate(content["datasets"]):
        key: KeyPath = ("datasets", number)
        sql, parameters = _read_query_of_dataset(dataset), dataset.get("parameters") or []
        own = check_query(sql, columns, None, frozenset(one["keyword"] for one in parameters))
        checked[dataset["name"]] = own
        where = "queryLines" if "queryLines" in dataset else "query"
        for line, text in own.faults:
            yield (*key, where, *((line - 1,) if where == "queryLines" else ())), f"{dataset['name']}: {text}"
        for position, one in enumerate(parameters):
            if f":{one['keyword']}" not in sql:
                text = f"{dataset['name']}: the query does not use the parameter {one['keyword']!r}"
                yield (*key, "parameters", position, "keyword"), text
        yield from _find_outdated_query_copy(key, dataset, sql, queries)
        yield from _find_wrong_schema_prefix(key, parameters, own, schemas)
    for kind in ("datasets", "pages"):
        for name in find_repeated_names(one["name"] for one in content[kind]):
            yield (kind,), f"the name {name!r} occurs twice in {kind}"
    for number, page in enumerate(content["pages"]):
        yield from _find_dashboard_page_faults(("pages", number), page, checked)


def _read_query_of_dataset(dataset: YamlMapping) -> str:
    return "".join(dataset.get("queryLines") or ()) or str(dataset.get("query", ""))


def _find_outdated_query_copy(
    key: KeyPath, dataset: YamlMapping, sql: str, queries: Mapping[str, str]
) -> Iterator[tuple[KeyPath, str]]:
    original = queries.get(dataset["name"])
    if original is None or original == sql:
        return
    pairs = zip(sql.splitlines(), original.splitlines(), strict=False)
    number = next((n for n, (ours, theirs) in enumerate(pairs) if ours != theirs), 0)
    text = f"{dataset['name']}: the query differs here from queries/{dataset['name']}.sql:{number + 1}. Make them equal"
    yield (*key, "queryLines", number), text


def _find_wrong_schema_prefix(
    key: KeyPath, parameters: list[YamlMapping], query: CheckedQuery, schemas: Mapping[str, str]
) -> Iterator[tuple[KeyPath, str]]:
    """Yields default values of the dashboard's parameter `prefix` that lead to schemas which this target does not have.

    Args:
        key: Path of the dataset's key in the dashboard.
        parameters: The parameters of the dataset.
        query: The dataset's query.
        schemas: For each schema's name in the deployment, its name in the lake.
    """
    for number, parameter in enumerate(parameters):
        values = ((parameter.get("defaultSelection") or {}).get("values") or {}).get("values") or []
        if parameter["keyword"] != "prefix" or not values:
            continue
        for schema in {table.partition(".")[0] for table in query.tables}:
            name = f"{values[0].get('value')}{schema}"
            if name not in schemas and not name.startswith("<"):
                text = f"with the prefix {values[0].get('value')!r} the dashboard shows the schema {name!r}, which this"
                yield (*key, "parameters", number), f"{text} target does not have. Correct schema_prefix"


def _find_dashboard_page_faults(
    key: KeyPath, page: YamlMapping, checked: Mapping[str, CheckedQuery]
) -> Iterator[tuple[KeyPath, str]]:
    cells: dict[tuple[int, int], str] = {}
    for number, placed in enumerate(page.get("layout") or ()):
        widget, own = placed["widget"], (*key, "layout", number)
        yield from _find_dashboard_widget_faults((*own, "widget"), widget, checked)
        position = placed["position"]
        taken = [
            (position["x"] + x, position["y"] + y) for x in range(position["width"]) for y in range(position["height"])
        ]
        if other := next((cells[cell] for cell in taken if cell in cells), None):
            yield (*own, "position"), f"the widget {widget['name']!r} overlaps {other!r}"
        cells |= dict.fromkeys(taken, widget["name"])


def _find_dashboard_widget_faults(
    key: KeyPath, widget: YamlMapping, checked: Mapping[str, CheckedQuery]
) -> Iterator[tuple[KeyPath, str]]:
    fields: set[str] = set()
    names = {query["name"] for query in widget.get("queries") or ()}
    for number, named in enumerate(widget.get("queries") or ()):
        query, own = named["query"], (*key, "queries", number, "query")
        if query["datasetName"] not in checked:
            hint = suggest_similar_name(query["datasetName"], list(checked))
            yield (*own, "datasetName"), f"there is no dataset {query['datasetName']!r}{hint}"
            continue
        outputs = checked[query["datasetName"]].outputs
        for position, field in enumerate(query.get("fields") or ()):
            fields.add(field["name"])
            yield from (
                ((*own, "fields", position, "expression"), text) for text in _find_widget_field_faults(field, outputs)
            )
    spec = widget.get("spec") or {}
    kind, version = str(spec.get("widgetType")), spec.get("version")
    if spec and version != WIDGET_VERSIONS[kind]:
        yield (*key, "spec", "version"), f"a widget of type {kind} needs version {WIDGET_VERSIONS[kind]}, not {version}"
    for path, value in iterate_nested_texts(spec.get("encodings") or {}, (*key, "spec", "encodings")):
        name, known = path[-1], fields if path[-1] == "fieldName" else names
        if name in {"fieldName", "queryName"} and value not in known:
            what = "field" if name == "fieldName" else "query"
            yield path, f"the widget has no {what} {value!r}, it has {', '.join(sorted(known)) or 'none'}"


def _find_widget_field_faults(field: YamlMapping, outputs: list[str]) -> Iterator[str]:
    """Yields what is wrong with a field's expression: it is not valid SQL, or its dataset does not return a column.

    Args:
        field: The field of a widget.
        outputs: Names of the columns that the dataset returns.
    """
    from sqlglot import errors, exp, parse_one

    try:
        tree = parse_one(field["expression"], dialect="databricks")
    except errors.SqlglotError:
        yield f"the expression {field['expression']!r} is not valid SQL"
        return
    for column in tree.find_all(exp.Column):
        if outputs and column.name not in outputs:
            yield f"the dataset returns no column {column.name!r}{suggest_similar_name(column.name, outputs)}"
