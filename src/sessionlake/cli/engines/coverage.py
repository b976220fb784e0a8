"""Says which statements Sail may run: those whose parts are all covered by the tests that compare Sail with Spark.

What is not listed here is left to Spark. `tests/spark/test_query_engines.py` compares the results of both engines for
each function and node in these lists. `sail_support` leaves out the kinds of values for which they differ.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from sessionlake.cli.engines.sail_support import SailSupportRules
from sessionlake.cli.engines.value_kinds import ValueKindFinder, ValueKinds, is_added_by_sqlglot
from sessionlake.cli.sql_names import SqlNode, is_explain_statement, parse_statements
from sessionlake.cli.sql_reading import find_tables_and_functions_read, list_names_of_called_function
from sessionlake.errors import UsageError

TABLE_FEATURES = frozenset(
    {"appendOnly", "changeDataFeed", "checkConstraints", "deletionVectors", "generatedColumns", "invariants"}
)
"""Features of Delta tables that the tests cover. A table that lists another one is left to Spark."""
FUNCTIONS = frozenset(
    """
    abs avg bool_and bool_or cardinality case ceil ceiling char_length coalesce concat concat_ws contains count
    count_if cume_dist current_timestamp date date_add date_trunc day dayofmonth dayofweek dayofyear dense_rank
    endswith every exists exp explode first_value floor greatest hour if ifnull instr isnotnull isnull lag last_day
    last_value lead least left length ln locate lower lpad ltrim max max_by median min min_by minute month now ntile
    nullif nvl nvl2 octet_length percent_rank quarter rank repeat replace reverse right row_number rpad rtrim second
    size some split_part sqrt startswith stddev stddev_pop stddev_samp substr substring sum timestamp_micros
    timestamp_millis timestamp_seconds to_date trim unix_micros unix_timestamp upper var_pop var_samp variance year
    """.split()  # noqa: SIM905 - names read better as text
)
"""Functions that the tests cover, by the names by which a statement calls them."""
NODES = frozenset(
    """
    Add Alias And Between Boolean Bracket CTE Cast Column DPipe DataType Distinct Div Dot EQ Except Filter From GT GTE
    Group Having Identifier In Intersect Interval Is Join LT LTE Lambda Lateral Like Limit Literal Mod Mul NEQ
    Neg Not Null NullSafeEQ Offset Or Order Ordered Paren Select Star Sub Subquery Table TableAlias Tuple Union Values
    Var Where Window WindowSpec With
    """.split()  # noqa: SIM905 - names read better as text
)
"""Nodes of sqlglot's syntax trees that the tests cover, apart from functions."""


def explain_why_sail_cannot_run(sql: str, view_queries: Sequence[str], columns: Mapping[str, ValueKinds]) -> str | None:
    """Returns why Spark must run a statement, as the end of a sentence; None if Sail may run it.

    Args:
        sql: The statement.
        view_queries: The queries of those views of the lake that the statement reads.
        columns: For each column of the tables that are read, the kinds of its values. Names are in lower case.
    """
    from sqlglot import exp

    trees = parse_statements(sql)
    if len(trees) != 1 or not isinstance(trees[0], exp.Query) or is_explain_statement(sql):
        return "only single queries are covered"
    try:
        find_tables_and_functions_read(sql)
    except UsageError as error:
        return str(error).partition("\n")[0]
    if "\\" in sql or '"' in sql:
        return "texts with a backslash or in double quotes are not covered"
    texts = {id(tree): text for text in (sql, *view_queries) for tree in parse_statements(text)}

    def get_called_name(node: SqlNode) -> str:
        names = list_names_of_called_function(node, texts[id(node.root())])
        return min(names & FUNCTIONS or names)

    views = [tree for query in view_queries for tree in parse_statements(query)]
    kinds = ValueKindFinder(columns, [trees[0], *views], get_called_name)
    return next(_explain_unsupported_parts(trees[0], SailSupportRules(kinds, get_called_name)), None)


def _explain_unsupported_parts(tree: SqlNode, rules: SailSupportRules) -> Iterator[str]:
    from sqlglot import exp

    for node in tree.walk():
        is_call = isinstance(node, exp.Func) and not isinstance(node, exp.Binary | exp.Cast)
        if is_added_by_sqlglot(node):
            continue
        if is_call:
            if (name := rules.get_called_name(node)) not in FUNCTIONS:
                yield f"{name} is not covered"
            elif why := rules.explain_unsupported_call(node, name):
                yield why
        elif type(node).__name__ not in NODES:
            yield f"{type(node).__name__} is not covered"
        if why := rules.explain_unsupported_node(node):
            yield why
