"""Checks SQL queries over the lake's tables: names of tables, columns, fields, functions and parameters."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from sessionlake.databricks.bundle.models import suggest_similar_name
from sessionlake.delta.schemas.definition import DECLARED
from sessionlake.delta.schemas.tables import TABLES
from sessionlake.gold.sql.views import DEFINITIONS
from sessionlake.spark.sql_functions import SAFE_FUNCTIONS

ColumnsOfTables = Mapping[str, Mapping[str, str]]
"""The SQL type of each column, by the two-level name of its table."""
SqlNode = Any
"""A node of sqlglot's syntax tree of a query. sqlglot is imported only when a query is checked."""
QueryFault = tuple[int, str]
"""Line within the query, from 1, and the fault's description."""
PREFIXED = re.compile(r"IDENTIFIER\(:prefix \|\| '([\w.]+)'\)")
"""The name of a table in the files of resources/queries, which every deployment writes in another way."""
_UNKNOWN = re.compile(r"<([\w.]+)>")
_FIELD = re.compile(r"[<,](\w+):")
_TABLE_NAME = re.compile(r"(bronze|silver|gold|ops|reference)\.\w+")
_PLACE = re.compile(r"Line:? (\d+)")
_NAMED = re.compile(r"'([\w.]+)'|: (\w+)$")


@dataclass(frozen=True)
class CheckedQuery:
    """The result of checking a query.

    Attributes:
        faults: The query's faults: line, from 1, and text of each.
        outputs: Names of the columns that it returns; empty if it cannot be parsed.
        tables: Two-level names of the tables that it reads.
    """

    faults: list[QueryFault]
    outputs: list[str]
    tables: frozenset[str] = frozenset()


def list_lake_columns(declared: Mapping[str, str]) -> ColumnsOfTables:
    """Returns the SQL type of each column of each table and view of the lake, by the table's name.

    Args:
        declared: The SQL type of each column that the settings declare.
    """
    tables = {
        name: {
            column: kind
            for own, sql in table.column_types
            for column, kind in (declared.items() if own == DECLARED else [(own, sql)])
        }
        for name, table in TABLES.items()
    }
    return tables | {name: dict.fromkeys(view.columns, "string") for name, view in DEFINITIONS.items()}


def check_query(
    sql: str,
    columns: ColumnsOfTables,
    schemas: Mapping[str, str] | None = None,
    parameters: frozenset[str] = frozenset(),
) -> CheckedQuery:
    """Checks a SQL query over the lake's tables: its tables, columns, functions and parameters must exist.

    Args:
        sql: The query. It names tables by schema and name, or as `IDENTIFIER(:prefix || 'ops.ledger')`.
        columns: The columns of each table of the lake, by the table's name.
        schemas: For each schema's name in the deployment, such as `dev_ada_ops`, its name in the lake, such as `ops`;
            None if both are equal.
        parameters: The parameters that the query may use.
    """
    # Targets share most queries, and sqlglot takes a second for all of them.
    tables = tuple((table, tuple(own.items())) for table, own in columns.items())
    return _check_query_with_cache(sql, tables, tuple((schemas or {}).items()), parameters)


@lru_cache(maxsize=256)
def _check_query_with_cache(
    sql: str,
    tables: tuple[tuple[str, tuple[tuple[str, str], ...]], ...],
    renamed: tuple[tuple[str, str], ...],
    parameters: frozenset[str],
) -> CheckedQuery:
    from sqlglot import errors, exp, parse

    columns, schemas = {table: dict(own) for table, own in tables}, dict(renamed)
    text = _UNKNOWN.sub(r"\1", PREFIXED.sub(r"\1", sql))
    try:
        trees = [tree for tree in parse(text, dialect="databricks") if tree is not None]
    except errors.ParseError as error:
        first = error.errors[0]
        what = " ".join(f"{first['description']} near {first['highlight']!r}".split())
        return CheckedQuery([(int(first["line"] or 1), f"the query is not valid SQL: {what}")], [])
    except errors.SqlglotError as error:
        return CheckedQuery([(1, f"the query is not valid SQL: {' '.join(str(error).split())}")], [])
    if len(trees) != 1 or not isinstance(trees[0], exp.Query):
        return CheckedQuery([(1, "the query must be one SELECT statement")], [])
    tree: SqlNode = trees[0]
    _replace_schemas_of_deployment(tree, schemas)
    faults = [
        *_find_unknown_tables(tree, columns),
        *_find_undeclared_parameters(tree, sql, parameters),
        *_find_unknown_functions(tree),
        *_find_unions_of_unequal_width(tree),
    ]
    found = frozenset(_get_table_name(table) for table in tree.find_all(exp.Table) if table.db)
    if not faults and all(
        columns.get(name, {"": ""}) for name in found
    ):  # columns of the user's own tables are not known
        faults = [*_find_unknown_struct_fields(tree, columns)] or [*_find_unknown_columns(tree, sql, columns)]
    outputs = [str(name) for name in tree.named_selects]
    return CheckedQuery([(line or _find_line_of_fault(sql, text), text) for line, text in faults], outputs, found)


def _find_line_of_fault(sql: str, fault: str) -> int:
    """Returns the first line of a query in which the name occurs that a fault's text has; 1 if there is none."""
    named = _NAMED.search(fault)
    word = (named[1] or named[2]) if named else ""
    return next((number for number, text in enumerate(sql.splitlines(), 1) if word and word in text), 1)


def _replace_schemas_of_deployment(tree: SqlNode, schemas: Mapping[str, str]) -> None:
    """Replaces, in a syntax tree, the deployment's schemas by those of the lake, and removes catalogs.

    Args:
        tree: The syntax tree, changed in place.
        schemas: For each schema's name in the deployment, its name in the lake.
    """
    from sqlglot import exp

    for table in tree.find_all(exp.Table):
        if table.db:
            table.set("catalog", None)
            table.set("db", exp.to_identifier(schemas.get(table.db, table.db)))


def _get_table_name(table: SqlNode) -> str:
    return f"{table.db}.{table.name}"


def _find_unknown_tables(tree: SqlNode, columns: ColumnsOfTables) -> Iterator[tuple[int | None, str]]:
    from sqlglot import exp

    defined = {cte.alias.lower() for cte in tree.find_all(exp.CTE)}
    for table in tree.find_all(exp.Table):
        if isinstance(table.this, exp.Func):
            continue
        name, line = _get_table_name(table), table.this.meta.get("line")
        if not table.db and table.name.lower() not in defined:
            hint = suggest_similar_name(table.name, [*defined, *(own.partition(".")[2] for own in columns)])
            yield line, f"the table {table.name!r} has no schema, and the query defines no such name{hint}"
        elif table.db and name not in columns:
            yield line, f"the lake has no table {name!r}{suggest_similar_name(name, list(columns))}"
    for literal in tree.find_all(exp.Literal):
        # The ledger names tables as texts.
        if literal.is_string and _TABLE_NAME.fullmatch(literal.name) and literal.name not in columns:
            yield None, f"the lake has no table {literal.name!r}{suggest_similar_name(literal.name, list(columns))}"


def _find_undeclared_parameters(
    tree: SqlNode, sql: str, parameters: frozenset[str]
) -> Iterator[tuple[int | None, str]]:
    from sqlglot import exp

    used = {str(own.name) for own in tree.find_all(exp.Placeholder)}
    used |= {"prefix"} if PREFIXED.search(sql) else set()
    for name in sorted(used - parameters):
        line = next((n for n, text in enumerate(sql.splitlines(), 1) if f":{name}" in text), 1)
        known = ", ".join(sorted(parameters)) or "none"
        yield line, f"the parameter :{name} is not declared; declared are {known}. Declare it, or leave it out"


def _find_unknown_functions(tree: SqlNode) -> Iterator[tuple[int | None, str]]:
    from sqlglot import exp

    for call in tree.find_all(exp.Anonymous):
        name = str(call.name).lower()
        if name not in SAFE_FUNCTIONS and not isinstance(call.parent, exp.Dot | exp.Table):
            yield (
                call.meta.get("line"),
                f"there is no function {call.name!r}{suggest_similar_name(name, sorted(SAFE_FUNCTIONS))}",
            )


def _find_unions_of_unequal_width(tree: SqlNode) -> Iterator[tuple[int | None, str]]:
    from sqlglot import exp

    for union in tree.find_all(exp.SetOperation):
        left, right = len(union.left.selects), len(union.right.selects)
        if left != right:
            yield None, f"the parts of a UNION must have as many columns each, found {left} and {right}"


def _find_unknown_struct_fields(tree: SqlNode, columns: ColumnsOfTables) -> Iterator[tuple[int | None, str]]:
    """Yields line and text of a fault for each field of a list's item that no struct of the lake has."""
    from sqlglot import exp

    items = {str(own.name) for call in tree.find_all(exp.Lambda) for own in call.expressions}
    for lateral in tree.find_all(exp.Lateral):
        items |= {str(own.name) for own in lateral.args["alias"].columns} if lateral.args.get("alias") else set()
    fields = {field for table in columns.values() for kind in table.values() for field in _FIELD.findall(kind)}
    for node in tree.find_all(exp.Column, exp.Dot):
        item, name = (node.table, node.name) if isinstance(node, exp.Column) else (node.this.name, node.name)
        if item in items and name and name not in fields:
            line = node.this.meta.get("line") if isinstance(node, exp.Column) else None
            yield line, f"no struct of the lake has a field {name!r}{suggest_similar_name(name, sorted(fields))}"


def _find_unknown_columns(tree: SqlNode, sql: str, columns: ColumnsOfTables) -> Iterator[tuple[int | None, str]]:
    from sqlglot.errors import SqlglotError
    from sqlglot.optimizer.qualify import qualify

    nested: dict[str, Any] = {}
    for table, own in columns.items():
        schema, _, name = table.partition(".")
        if not own:
            continue
        nested.setdefault(schema, {})[name] = own
    try:
        qualify(tree.copy(), schema=nested, dialect="databricks", quote_identifiers=False, identify=False)
    except SqlglotError as error:
        text = " ".join(str(error).split())
        place = _PLACE.search(text)
        known = sorted({column for table in columns.values() for column in table})
        named = _NAMED.search(text)
        hint = suggest_similar_name(named[1] or named[2], known) if named else ""
        yield int(place[1]) if place else _find_line_of_fault(sql, text), f"{text}{hint}"
