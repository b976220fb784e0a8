"""Whether a statement for a SQL warehouse only reads, told without the warehouse: by sqlglot's tree of it.

There is no Spark where `sessionlake remote` runs, and a warehouse has no look at its plan before it runs. So the same
rule as in `spark.reading_plan` is applied to another parser's tree: only what is listed here is sent.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from sessionlake.cli.sql_names import trees_of
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
# What sqlglot makes of operators and keywords: they are no calls by a name.
_OPERATORS = frozenset(
    """
    and array case cast exists extract if ilike json_extract map or regexp_like str_position struct timestampadd
    timestampdiff trim try_cast xor
    """.split()  # noqa: SIM905 - names read better as text
)


def tables_of(sql: str) -> list[tuple[str, ...]]:
    """The names of the tables and functions with a schema that a statement reads, in lower case.

    Names that the statement gives itself (WITH) are not among them.

    Raises:
        UsageError: it does more than read, it is not one statement, or sqlglot cannot parse it.
    """
    from sqlglot import exp

    trees = trees_of(sql)
    if len(trees) != 1:
        what = "more than one statement" if trees else "no statement that can be parsed here"
        raise UsageError(f"expected one statement that reads, found {what}")
    [tree] = trees
    if isinstance(tree, exp.Command):
        if str(tree.this).upper() not in _LISTS:
            raise UsageError(f"{tree.this} is not something that only reads, so it is not sent")
        return []
    if not isinstance(tree, exp.Query | exp.Values | exp.Describe) or (
        isinstance(tree, exp.Select) and not tree.selects
    ):
        raise UsageError("this is no query, so it is not sent")
    for node in tree.walk(prune=lambda one: isinstance(one, exp.Hint)):
        _require_listed(node, sql)
    tables = (table for table in tree.find_all(exp.Table) if table.find_ancestor(exp.Hint) is None)
    return [name for table in tables for name in _outside(table)]


def _require_listed(node: Any, sql: str) -> None:
    from sqlglot import exp

    kind = type(node)
    if isinstance(node, exp.Func) and not isinstance(node, exp.Binary):
        names = {name.lower() for name in (kind.sql_names() if kind is not exp.Anonymous else [node.name])}
        if "start" in node.meta and kind is not exp.Anonymous:  # else a keyword, which has no name of its own
            names = {sql[node.meta["start"] : node.meta["end"] + 1].lower()}
        if isinstance(node.parent, exp.Table) and node.parent.db:
            return  # a table function with a schema: its name is looked at with those of tables
        if isinstance(node.parent, exp.Dot):
            names = {node.parent.sql().partition("(")[0].lower()}
        if names.isdisjoint(SAFE_FUNCTIONS) and names.isdisjoint(_OPERATORS):
            raise UsageError(
                f"the function {min(names)} may not be called: only those that compute, and the lake's own"
            )
    elif isinstance(node, exp.Column) and not node.table and node.name.lower() in WHO:
        raise UsageError(f"{node.name} alone may be whom the command runs as: a column is written t.{node.name}")
    elif kind.__name__ not in _NODES and not isinstance(node, exp.Binary | exp.Unary):
        raise UsageError(f"{kind.__name__} is not something that only reads, so it is not sent")


def _outside(table: Any) -> Iterator[tuple[str, ...]]:
    """The table's name, unless it is one that the statement gives to a query of its own there."""
    name = tuple(part.lower() for part in (table.catalog, table.db, table.this.name) if part)
    if len(name) == 1 and (_is_call(table) or name[0] in _defined(table)):
        return
    yield name


def _is_call(table: Any) -> bool:
    from sqlglot import exp

    return isinstance(table.this, exp.Func)


def _defined(table: Any) -> set[str]:
    """Names of the queries (WITH) that a place of the statement sees."""
    from sqlglot import exp

    found: set[str] = set()
    inside: Any | None = table
    while inside is not None:
        holder = inside.parent
        if isinstance(holder, exp.With):  # only those before it, and itself if it is recursive
            own = holder.expressions.index(inside) + bool(holder.args.get("recursive"))
            found |= {cte.alias.lower() for cte in holder.expressions[:own]}
        own_with = holder and (holder.args.get("with_") or holder.args.get("with"))
        if own_with and inside is not own_with:
            found |= {cte.alias.lower() for cte in own_with.expressions}
        inside = holder
    return found
