"""Decides, with sqlglot, whether a statement for a Databricks SQL warehouse only reads.

`sessionlake remote` has no Spark, and a warehouse shows no plan before it runs a statement. So the rule of
`spark.reading_plan` is applied to sqlglot's syntax tree: a statement is sent only if all its parts are listed here.
"""

from __future__ import annotations

from collections.abc import Iterator

from sessionlake.cli.sql_names import SqlNode, parse_statements
from sessionlake.errors import UsageError
from sessionlake.spark.sql_functions import SAFE_FUNCTIONS, WHO

_LISTS = ("SHOW",)
_NODES = frozenset(
    """
    Alias Aliases All Any Between Boolean Bracket CTE Cluster Column ColumnDef ColumnPosition Cube DataType
    DataTypeParam Describe Distinct Distribute Dot Escape Except Fetch Filter From Group GroupingSets Having Hint
    Identifier IgnoreNulls In Intersect Interval IntervalSpan JSONPath JSONPathKey JSONPathRoot JSONPathSubscript
    JSONPathWildcard Join Kwarg Lambda Lateral Limit Literal National Null Offset Order Ordered Parameter Paren Pivot
    PivotAlias PivotAny Placeholder PropertyEQ Qualify RespectNulls Rollup Select Slice Sort Star Subquery Table
    TableAlias TableSample Tuple Union UnpivotColumns Values Var Version Where Window WindowSpec With WithinGroup
    """.split()  # noqa: SIM905 - names read better as text
)
# Operators and keywords that sqlglot represents as functions, although no function is called by name.
_OPERATORS = frozenset(
    """
    and array case cast exists extract if ilike json_extract map or regexp_like str_position struct timestampadd
    timestampdiff trim try_cast xor
    """.split()  # noqa: SIM905 - names read better as text
)

# Functions that sqlglot represents by a node with another name and without a position.
_CALLED_AS = {
    "approx_quantile": ("approx_percentile", "percentile_approx"),
    "decode_case": ("decode",),
    "group_concat": ("listagg", "string_agg"),
    "quantile": ("percentile",),
}
# Nodes that sqlglot adds around arguments, such as that of year(), although no function is called.
_ADDED = frozenset({"cast_to_str_type", "time_str_to_time", "ts_or_ds_to_date"})


def find_tables_and_functions_read(sql: str) -> list[tuple[str, ...]]:
    """Returns the names of the tables and functions with a schema that a statement reads, split and in lower case.

    Leaves out names that the statement defines itself (WITH).

    Raises:
        UsageError: The statement does more than read, is not a single statement, or cannot be parsed.
    """
    from sqlglot import exp

    trees = parse_statements(sql)
    if len(trees) != 1:
        what = "more than one statement" if trees else "no statement that sqlglot can parse"
        raise UsageError(
            f"query: expected one statement that reads, but found {what}", fix="Give a single SELECT statement"
        )
    [tree] = trees
    if isinstance(tree, exp.Command):
        if str(tree.this).upper() not in _LISTS:
            raise UsageError(
                f"query: the statement contains {tree.this}, which does more than read, so it was not sent",
                fix="Use SELECT, or run the statement in a SQL editor of the workspace",
            )
        return []
    if not isinstance(tree, exp.Query | exp.Values | exp.Describe) or (
        isinstance(tree, exp.Select) and not tree.selects
    ):
        raise UsageError(
            "query: the statement is not a SELECT, so it was not sent",
            fix="Use SELECT, or run the statement in a SQL editor of the workspace",
        )
    for node in tree.walk(prune=lambda one: isinstance(one, exp.Hint)):
        _require_read_only_node(node, sql)
    tables = (table for table in tree.find_all(exp.Table) if table.find_ancestor(exp.Hint) is None)
    return [name for table in tables for name in _list_name_unless_defined_by_with(table)]


def list_names_of_called_function(node: SqlNode, sql: str) -> set[str]:
    """Returns the lower-case name by which a statement calls a function; for an operator, all names it may have.

    Args:
        node: The call in sqlglot's syntax tree.
        sql: The statement.
    """
    from sqlglot import exp

    if isinstance(node.parent, exp.Dot):
        return {node.parent.sql().partition("(")[0].lower()}
    if isinstance(node, exp.Anonymous):
        return {node.name.lower()}
    if (name := type(node).sql_names()[0].lower()) in _CALLED_AS:
        return set(_CALLED_AS[name])
    if "start" in node.meta:  # operators and keywords have no position of a name
        return {sql[node.meta["start"] : node.meta["end"] + 1].lower()}
    return {name.lower() for name in type(node).sql_names()}


def _require_read_only_node(node: SqlNode, sql: str) -> None:
    from sqlglot import exp

    kind = type(node)
    if isinstance(node, exp.Func) and not isinstance(node, exp.Binary):
        if isinstance(node.parent, exp.Table) and node.parent.db:
            return  # a table function with a schema is checked together with the tables
        names = list_names_of_called_function(node, sql)
        if names.isdisjoint(SAFE_FUNCTIONS) and names.isdisjoint(_OPERATORS | _ADDED):
            raise UsageError(
                f"query: the statement calls the function {min(names)}, so it was not sent",
                why="Only functions that compute from their arguments, and the lake's own functions, are allowed",
                fix="Leave it out, or run the statement in a SQL editor of the workspace",
            )
    elif isinstance(node, exp.Column) and not node.table and node.name.lower() in WHO:
        raise UsageError(
            f"query: {node.name} without a table's name can mean the user who runs the command, so "
            "the statement was not sent",
            fix=f"For a column of that name, write the table before it, as in t.{node.name}",
        )
    elif kind.__name__ not in _NODES and not isinstance(node, exp.Binary | exp.Unary):
        raise UsageError(
            f"query: the statement contains {kind.__name__}, which may do more than read, so it was not sent",
            fix="Leave that part out, or run the statement in a SQL editor of the workspace",
        )


def _list_name_unless_defined_by_with(table: SqlNode) -> Iterator[tuple[str, ...]]:
    """Yields the table's name, split into parts, unless the statement itself defines that name (WITH)."""
    name = tuple(part.lower() for part in (table.catalog, table.db, table.this.name) if part)
    if len(name) == 1 and (_is_function_call(table) or name[0] in _find_names_defined_by_with(table)):
        return
    yield name


def _is_function_call(table: SqlNode) -> bool:
    from sqlglot import exp

    return isinstance(table.this, exp.Func)


def _find_names_defined_by_with(table: SqlNode) -> set[str]:
    """Returns the names of the queries (WITH) that can be used at the place of this table in the statement."""
    from sqlglot import exp

    names: set[str] = set()
    inside: SqlNode | None = table
    while inside is not None:
        holder = inside.parent
        if isinstance(holder, exp.With):  # a query sees those before it, and itself if it is recursive
            visible = holder.expressions.index(inside) + bool(holder.args.get("recursive"))
            names |= {cte.alias.lower() for cte in holder.expressions[:visible]}
        own_with = holder and (holder.args.get("with_") or holder.args.get("with"))
        if own_with and inside is not own_with:
            names |= {cte.alias.lower() for cte in own_with.expressions}
        inside = holder
    return names
