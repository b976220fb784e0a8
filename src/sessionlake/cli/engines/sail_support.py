"""Rules that say for which kinds of values Sail computes the same results as Spark. Each returns a reason, or None.

Sail 0.7 differs from Spark in these ways, among others. Integers overflow without an error. Decimals have another scale
and are cut instead of rounded. When rows are sorted or joined, -0.0 is not equal to 0.0. round() rounds binary digits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from sessionlake.cli.engines.value_kinds import (
    BINARY,
    BOOLEAN,
    COUNT,
    DATE,
    DECIMAL,
    DOUBLE,
    INTEGER,
    INTERVAL,
    NULL,
    SMALL,
    TEXT,
    TIME,
    ValueKindFinder,
    ValueKinds,
    list_call_arguments,
)
from sessionlake.cli.sql_names import SqlNode

_INTEGERS = frozenset({COUNT, SMALL, INTEGER})
_NUMBERS = _INTEGERS | {DOUBLE}
_FAMILIES = [
    kinds | {NULL}
    for kinds in (_INTEGERS, *(frozenset({one}) for one in (DOUBLE, DECIMAL, TEXT, BOOLEAN, BINARY, TIME, DATE)))
]
# Kinds that may be compared with each other; doubles not for equality.
_COMPARED = [*_FAMILIES, _NUMBERS | {NULL}, _INTEGERS | {DECIMAL, NULL}]
_SORTED = _INTEGERS | {DECIMAL, TEXT, BOOLEAN, BINARY, TIME, DATE}
_CASTS: Mapping[str, ValueKinds] = {
    "VARCHAR": _INTEGERS | {TEXT, BOOLEAN, TIME, DATE}, "TEXT": _INTEGERS | {TEXT, BOOLEAN, TIME, DATE},
    "BIGINT": _INTEGERS,
    "DOUBLE": _NUMBERS, "DATE": frozenset({TIME, DATE}), "TIMESTAMPTZ": frozenset({TIME}),
    "TIMESTAMP": frozenset({TIME}),
}  # fmt: skip
_TYPED_TEXTS = ("DATE", "TIMESTAMPTZ", "TIMESTAMP")
_SAME_FAMILY = frozenset({"concat", "concat_ws", "coalesce", "ifnull", "nvl", "nullif", "greatest", "least"})
_TIMES = ("hour", "minute", "second", "unix_timestamp", "unix_micros")
_DAYS = ("year", "quarter", "month", "day", "dayofmonth", "dayofweek", "dayofyear", "date", "to_date")
_SPREADS = ("stddev", "stddev_pop", "stddev_samp", "variance", "var_pop", "var_samp", "median")
_TEXTS = (
    *("concat", "length", "char_length", "octet_length", "left", "right", "substring", "substr", "upper", "lower"),
    *("trim", "ltrim", "rtrim", "replace", "split_part", "startswith", "endswith", "contains", "lpad", "rpad"),
    *("concat_ws", "instr", "locate", "repeat", "reverse"),
)
_FIRST_ARGUMENT: Mapping[str, ValueKinds] = {
    "sum": frozenset({COUNT, SMALL, DOUBLE}), "avg": _NUMBERS, "abs": _NUMBERS, "greatest": _SORTED | {NULL},
    "least": _SORTED | {NULL}, "timestamp_seconds": _INTEGERS, "timestamp_millis": _INTEGERS,
    "timestamp_micros": _INTEGERS,
    "min": _SORTED | {DOUBLE}, "max": _SORTED | {DOUBLE}, "bool_and": frozenset({BOOLEAN}),
    "bool_or": frozenset({BOOLEAN}), "count_if": frozenset({BOOLEAN}), "if": frozenset({BOOLEAN}),
    "ceil": frozenset({DOUBLE}), "ceiling": frozenset({DOUBLE}), "floor": frozenset({DOUBLE}), "sqrt": _NUMBERS,
    "exp": _NUMBERS, "ln": _NUMBERS, "every": frozenset({BOOLEAN}),
    "some": frozenset({BOOLEAN}), "date_add": frozenset({DATE}),
    "last_day": frozenset({DATE}), **dict.fromkeys(_DAYS, frozenset({TIME, DATE})),
    **dict.fromkeys(_SPREADS, frozenset({COUNT, SMALL, DOUBLE})),
    **dict.fromkeys(_TEXTS, frozenset({TEXT})), **dict.fromkeys(_TIMES, frozenset({TIME})),
}  # fmt: skip
_UNITS = frozenset({"SECOND", "MINUTE", "HOUR", "DAY", "WEEK", "MONTH", "YEAR"})
_PLURALS = _UNITS | {f"{unit}S" for unit in _UNITS}
_LONGEST = 60


class SailSupportRules:
    """Explains which parts of one statement Sail may not compute, because its results could differ from Spark's.

    Each method `_explain_unsupported_…` gets a node of the syntax tree, and returns why Sail may not compute it; None
    if it may.

    Args:
        kinds: Finds the kinds of values of the statement's expressions.
        get_called_name: Returns the name by which a node of the syntax tree calls a function.
    """

    def __init__(self, kinds: ValueKindFinder, get_called_name: Callable[[SqlNode], str]) -> None:
        from sqlglot import exp

        self._find, self.get_called_name = kinds.find_value_kinds, get_called_name
        self._rules: list[tuple[Any, Callable[[SqlNode], str | None]]] = [
            (exp.Add | exp.Sub | exp.Mul, self._explain_unsupported_arithmetic),
            (exp.Div, self._explain_unsupported_division),
            (exp.Mod, self._explain_unsupported_remainder),
            (exp.EQ | exp.NEQ | exp.NullSafeEQ, self._explain_unsupported_equality),
            (exp.GT | exp.GTE | exp.LT | exp.LTE, self._explain_unsupported_inequality),
            (exp.Between, self._explain_unsupported_between),
            (exp.In, self._explain_unsupported_in_predicate),
            (exp.Cast, self._explain_unsupported_cast),
            (exp.Neg, self._explain_unsupported_negation),
            (exp.Where | exp.Having | exp.Not, lambda node: self._explain_unsupported_kinds(node.this, {BOOLEAN})),
            (exp.And | exp.Or, self._explain_unsupported_and_or),
            (exp.Join, self._explain_unsupported_join),
            (exp.DPipe | exp.Like, self._explain_unsupported_text_operation),
            (exp.Order, self._explain_unsupported_order_by),
            (exp.Window, self._explain_unsupported_window_function),
            (exp.Group, self._explain_unsupported_group_by),
            (exp.SetOperation, self._explain_unsupported_set_operation),
            (exp.Values, self._explain_unsupported_values_clause),
            (exp.Interval, _explain_unsupported_interval),
            (exp.Select, _explain_unsupported_unnamed_columns),
            (exp.Subquery, _explain_unsupported_scalar_subquery),
            (exp.Lateral, _explain_unsupported_lateral_clause),
            (exp.Table, _explain_unsupported_table_version),
            (exp.Explode, _explain_unsupported_explode),
        ]

    def explain_unsupported_node(self, node: SqlNode) -> str | None:
        """Returns why Sail may not compute a node of the syntax tree; None if it may."""
        return next((why for kind, rule in self._rules if isinstance(node, kind) and (why := rule(node))), None)

    def explain_unsupported_call(self, node: SqlNode, name: str) -> str | None:
        """Returns why Sail may not call a function with the arguments of this node; None if it may."""
        from sqlglot import exp

        given = list_call_arguments(node)
        why: str | None = None
        if name == "exists" and isinstance(node.this, exp.Query | exp.Subquery):
            return "EXISTS with a subquery is not covered"
        if name in _FIRST_ARGUMENT:
            why = self._explain_unsupported_kinds(given[0], _FIRST_ARGUMENT[name])
        if name == "date_trunc" and str(node.args["unit"].name).upper() not in _UNITS:
            why = "this unit of date_trunc is not covered"
        elif isinstance(node, exp.Case):
            results = [one.args["true"] for one in node.args["ifs"]]
            given = [*results, *filter(None, [node.args.get("default")])]
            why = self._explain_mixed_kinds(given) if node.this is None else "CASE with a value is not covered"
        elif name in ("date_add", "repeat") and not _is_number_literal(
            node.args.get("expression") or node.args.get("times")
        ):
            why = f"{name} with a computed number is not covered"
        elif name in _SAME_FAMILY:
            why = why or self._explain_mixed_kinds(given)
        elif name in ("if", "nvl2") and not isinstance(node.parent, exp.Case):
            why = why or self._explain_mixed_kinds(given[1:])
        return why

    def _explain_unsupported_kinds(self, node: SqlNode, allowed: Iterable[str]) -> str | None:
        found = self._find(node)
        if found and found <= frozenset(allowed):
            return None
        return f"{_format_shortened_sql(node)} with values of the kind {', '.join(sorted(found))} is not covered"

    def _explain_mixed_kinds(self, nodes: Iterable[SqlNode]) -> str | None:
        nodes = list(nodes)
        found = frozenset[str]().union(*map(self._find, nodes))
        if any(found <= family for family in _FAMILIES):
            return None
        return f"{', '.join(map(_format_shortened_sql, nodes))} have values of several kinds, which is not covered"

    def _explain_unsupported_arithmetic(self, node: SqlNode) -> str | None:
        from sqlglot import exp

        left, right = self._find(node.left), self._find(node.right)
        if left | right <= _NUMBERS and ({DOUBLE} in (left, right)):
            return None
        if not isinstance(node, exp.Mul):
            if left | right <= {COUNT} and node.find(exp.Column, exp.AggFunc):
                return None
            if (left <= {TIME} or left <= {DATE}) and right <= {INTERVAL}:
                return None
        return f"{_format_shortened_sql(node)} may overflow or need decimals, which is not covered"

    def _explain_unsupported_division(self, node: SqlNode) -> str | None:
        return self._explain_unsupported_kinds(node.left, _NUMBERS) or self._explain_unsupported_kinds(
            node.right, _NUMBERS | {NULL}
        )

    def _explain_unsupported_remainder(self, node: SqlNode) -> str | None:
        return self._explain_unsupported_kinds(node.left, _INTEGERS) or self._explain_unsupported_kinds(
            node.right, _INTEGERS
        )

    def _explain_unsupported_negation(self, node: SqlNode) -> str | None:
        return self._explain_unsupported_kinds(node.this, _NUMBERS)

    def _explain_unsupported_comparison(self, nodes: Iterable[SqlNode], *, equality: bool) -> str | None:
        from sqlglot import exp

        nodes = list(nodes)
        found = frozenset[str]().union(*map(self._find, nodes))
        texts = [one for one in nodes if isinstance(one, exp.Literal) and one.is_string]
        if found - {TEXT} in ({TIME}, {DATE}) and all(one in texts for one in nodes if TEXT in self._find(one)):
            return None
        if not any(found <= kinds for kinds in _COMPARED) or (equality and DOUBLE in found):
            return f"the comparison of {', '.join(map(_format_shortened_sql, nodes))} is not covered"
        return None

    def _explain_unsupported_equality(self, node: SqlNode) -> str | None:
        return self._explain_unsupported_comparison((node.left, node.right), equality=True)

    def _explain_unsupported_inequality(self, node: SqlNode) -> str | None:
        return self._explain_unsupported_comparison((node.left, node.right), equality=False)

    def _explain_unsupported_between(self, node: SqlNode) -> str | None:
        return self._explain_unsupported_comparison((node.this, node.args["low"], node.args["high"]), equality=False)

    def _explain_unsupported_in_predicate(self, node: SqlNode) -> str | None:
        query = node.args.get("query")
        if query is not None and (why := _explain_unsupported_correlation(query.this)):
            return why
        return self._explain_unsupported_comparison(
            [node.this, *([query] if query else node.expressions)], equality=True
        )

    def _explain_unsupported_and_or(self, node: SqlNode) -> str | None:
        return self._explain_unsupported_kinds(node.left, {BOOLEAN, NULL}) or self._explain_unsupported_kinds(
            node.right, {BOOLEAN, NULL}
        )

    def _explain_unsupported_text_operation(self, node: SqlNode) -> str | None:
        return self._explain_unsupported_kinds(node.left, {TEXT}) or self._explain_unsupported_kinds(node.right, {TEXT})

    def _explain_unsupported_cast(self, node: SqlNode) -> str | None:
        from sqlglot import exp

        target = node.to.this.name
        if isinstance(node.this, exp.Literal):
            is_typed = target in _TYPED_TEXTS if node.this.is_string else target in ("BIGINT", "DOUBLE")
            return None if is_typed else f"{_format_shortened_sql(node)} is not covered"
        if target not in _CASTS or node.to.expressions:
            return f"{_format_shortened_sql(node)} is not covered"
        return self._explain_unsupported_kinds(node.this, _CASTS[target])

    def _explain_unsupported_join(self, node: SqlNode) -> str | None:
        from sqlglot import exp

        if node.method or node.kind in ("APPLY", "ASOF"):
            return "joins of this kind are not covered"
        if node.args.get("on") is not None and (why := self._explain_unsupported_kinds(node.args["on"], {BOOLEAN})):
            return why
        for name in node.args.get("using") or ():
            found = self._find(exp.column(name.name))
            if DOUBLE in found or not any(found <= family for family in _FAMILIES):
                return f"USING ({name.name}) is not covered"
        return None

    def _explain_unsupported_order_by(self, node: SqlNode) -> str | None:
        from sqlglot import exp

        for place, key in enumerate(node.expressions, start=1):
            is_last = place == len(node.expressions) and not isinstance(node.parent, exp.Window)
            is_number = isinstance(key.this, exp.Literal)
            if is_number and not is_last:
                return "sorting by the number of a column before others is not covered"
            if not is_number and (
                why := self._explain_unsupported_kinds(key.this, _SORTED | ({DOUBLE} if is_last else set()))
            ):
                return why
        return None

    def _explain_unsupported_window_function(self, node: SqlNode) -> str | None:
        spec = node.args.get("spec")
        if spec is not None and spec.args.get("kind") != "ROWS":
            return "windows by RANGE are not covered"
        keys = (self._explain_unsupported_kinds(one, _SORTED) for one in node.args.get("partition_by") or ())
        return next(filter(None, keys), None)

    def _explain_unsupported_group_by(self, node: SqlNode) -> str | None:
        from sqlglot import exp

        keys = [one for one in node.expressions if not isinstance(one, exp.Literal)]
        if any(value for part, value in node.args.items() if part != "expressions"):
            return "GROUP BY with ALL, CUBE, ROLLUP or GROUPING SETS is not covered"
        return next(filter(None, (self._explain_unsupported_kinds(one, _SORTED | {DOUBLE}) for one in keys)), None)

    def _explain_unsupported_set_operation(self, node: SqlNode) -> str | None:
        left, right = node.left.selects, node.right.selects
        if len(left) != len(right) or any(one.is_star for one in (*left, *right)):
            return "UNION, INTERSECT and EXCEPT are covered only for the same number of named columns"
        return next(filter(None, (self._explain_mixed_kinds(pair) for pair in zip(left, right, strict=True))), None)

    def _explain_unsupported_values_clause(self, node: SqlNode) -> str | None:
        from sqlglot import exp

        rows = [one.expressions if isinstance(one, exp.Tuple) else [one] for one in node.expressions]
        if len({len(row) for row in rows}) != 1:
            return "VALUES with rows of several lengths is not covered"
        return next(filter(None, (self._explain_mixed_kinds(column) for column in zip(*rows, strict=True))), None)


def _explain_unsupported_interval(node: SqlNode) -> str | None:
    number, unit = node.this, node.args.get("unit")
    if number is None or unit is None or not str(number.name).isdigit() or unit.name.upper() not in _PLURALS:
        return "only intervals such as INTERVAL 7 DAYS are covered"
    return None


def _explain_unsupported_unnamed_columns(select: SqlNode) -> str | None:
    """Returns why Spark must run a SELECT with unnamed expressions (Sail names some otherwise); None if Sail may."""
    from sqlglot import exp

    simple = (exp.Count, exp.Sum, exp.Min, exp.Max, exp.Avg)
    is_later_part = isinstance(select.parent, exp.SetOperation) and select.parent.left is not select
    if isinstance(select.parent, exp.In | exp.Exists) or is_later_part:
        return None
    for one in select.selects:
        named = isinstance(one, exp.Alias | exp.Aliases | exp.Column | exp.Star)
        if not named and not (isinstance(one, simple) and isinstance(one.this, exp.Column | exp.Star)):
            return f"{_format_shortened_sql(one)} without a name (AS) is not covered"
        if isinstance(one, exp.Star) and any(one.args.values()):
            return "* with EXCEPT is not covered"
    return None


def _explain_unsupported_scalar_subquery(node: SqlNode) -> str | None:
    """Returns why Spark must run a subquery for a single value; None if it aggregates all its rows."""
    from sqlglot import exp

    if isinstance(node.parent, exp.From | exp.Join | exp.In | exp.SetOperation | exp.CTE | exp.Lateral):
        return None
    query = node.this
    if why := _explain_unsupported_correlation(query):
        return why
    if isinstance(query, exp.Select) and not query.args.get("group") and query.find(exp.AggFunc):
        return None
    return "a subquery for one value is covered only if it aggregates all its rows"


def _is_number_literal(node: SqlNode) -> bool:
    from sqlglot import exp

    return isinstance(node.this if isinstance(node, exp.Neg) else node, exp.Literal)


def _explain_unsupported_correlation(query: SqlNode) -> str | None:
    """Returns why Spark must run a subquery that reads columns of the query around it; None if it reads none."""
    from sqlglot import exp

    inside = {one.alias_or_name.lower() for one in query.find_all(exp.Table, exp.Subquery, exp.Lateral)}
    inside |= {one.name.lower() for one in query.find_all(exp.TableAlias)}
    outside = (one for one in query.find_all(exp.Column) if one.table and one.table.lower() not in inside)
    found = next(outside, None)
    return None if found is None else f"{_format_shortened_sql(found)} of the query around the subquery is not covered"


def _explain_unsupported_lateral_clause(node: SqlNode) -> str | None:
    from sqlglot import exp

    return None if isinstance(node.this, exp.Explode) and node.args.get("view") else "only LATERAL VIEW is covered"


def _explain_unsupported_explode(node: SqlNode) -> str | None:
    from sqlglot import exp

    return None if isinstance(node.parent, exp.Lateral) else "explode is covered only in LATERAL VIEW"


def _explain_unsupported_table_version(node: SqlNode) -> str | None:
    return "a version of a table is not covered" if node.args.get("version") else None


def _format_shortened_sql(node: SqlNode) -> str:
    from sqlglot.errors import SqlglotError

    try:
        text = node.sql(dialect="databricks")
    except SqlglotError:
        return type(node).__name__
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"
