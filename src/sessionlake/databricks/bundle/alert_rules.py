"""Checks the alerts of a bundle: the query, and what is compared with which threshold."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from sessionlake.databricks.bundle.files import YamlMapping
from sessionlake.databricks.bundle.models import suggest_similar_name
from sessionlake.databricks.bundle.query_rules import PREFIXED, ColumnsOfTables, check_query
from sessionlake.settings.file import KeyPath

TextFault = tuple[KeyPath, str, int]
"""Path of keys within the resource, the fault's description, and the line within the text there, or 0."""
_WITHOUT_THRESHOLD = {"IS_NULL", "IS_NOT_NULL"}


def find_alert_faults(
    alert: YamlMapping, columns: ColumnsOfTables, schemas: Mapping[str, str], catalog: str, queries: Mapping[str, str]
) -> Iterator[TextFault]:
    """Yields the faults of an alert: the key in the alert, the fault's text, and the line within the key's text, or 0.

    Args:
        alert: The alert as the bundle declares it, with all variables replaced by their values.
        columns: The columns of each table of the lake, by the table's name.
        schemas: For each schema's name in the deployment, such as `dev_ada_silver`, its name in the lake, such as
            `silver`.
        catalog: The catalog of the lake.
        queries: The text of each file in resources/queries, by its name.
    """
    sql = str(alert.get("query_text", ""))
    checked = check_query(sql, columns, schemas)
    yield from ((("query_text",), text, line) for line, text in checked.faults)
    yield from _find_outdated_query_copy(sql, schemas, catalog, queries)
    evaluation = alert.get("evaluation") or {}
    for path in (("source",), ("threshold", "column")):
        node = evaluation
        for part in path:
            node = (node or {}).get(part) or {}
        name = node.get("name") if isinstance(node, dict) else None
        if name and checked.outputs and name not in checked.outputs:
            text = f"the query returns no column {name!r}, it returns {', '.join(checked.outputs)}"
            yield ("evaluation", *path, "name"), text + suggest_similar_name(name, checked.outputs), 0
    yield from _find_alert_threshold_faults(evaluation)
    for number, own in enumerate((evaluation.get("notification") or {}).get("subscriptions") or ()):
        if isinstance(own, dict) and len({"user_email", "destination_id"} & own.keys()) != 1:
            key = ("evaluation", "notification", "subscriptions", number)
            yield key, "a subscription must have either user_email or destination_id", 0


def _find_alert_threshold_faults(evaluation: YamlMapping) -> Iterator[TextFault]:
    operator, threshold = evaluation.get("comparison_operator"), evaluation.get("threshold") or {}
    if operator in _WITHOUT_THRESHOLD:
        return
    if len({"value", "column"} & threshold.keys()) != 1:
        yield ("evaluation", "threshold"), f"{operator} needs a threshold with either a value or a column", 0
    value = threshold.get("value")
    if isinstance(value, dict) and len(value) != 1:
        yield ("evaluation", "threshold", "value"), "a threshold must have exactly one value", 0


def _find_outdated_query_copy(
    sql: str, schemas: Mapping[str, str], catalog: str, queries: Mapping[str, str]
) -> Iterator[TextFault]:
    """Yields a fault if the alert's query begins like a file in resources/queries, but differs from it below."""
    names = {plain: given for given, plain in schemas.items()}

    def replace_prefixed_table_name(found: re.Match[str]) -> str:
        schema, _, table = found[1].partition(".")
        return f"{catalog}.{names[schema]}.{table}" if schema in names else found[0]

    for name, original in queries.items():
        own, copied = sql.splitlines(), PREFIXED.sub(replace_prefixed_table_name, original).splitlines()
        if not own or own[0] != original.splitlines()[0]:
            continue
        for number, (ours, theirs) in enumerate(zip(own, copied, strict=False), 1):
            if ours != theirs:
                yield (
                    ("query_text",),
                    f"this line differs from queries/{name}.sql, which has {theirs.strip()!r}",
                    number,
                )
                return
        if len(own) != len(copied):
            yield ("query_text",), f"the query differs from queries/{name}.sql: it has {len(own)} lines", len(own)
