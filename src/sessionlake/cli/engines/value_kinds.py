"""Finds the kinds of values, such as integer or text, of a statement's expressions, by the names of their columns.

An expression may have several kinds, if several tables or parts of the statement use the same name. Every kind that it
could have is returned. `UNKNOWN` is one of them if a name or function is not known.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from sessionlake.cli.sql_names import SqlNode

COUNT, SMALL, INTEGER, DOUBLE, DECIMAL = "count", "small integer", "integer", "double", "decimal"
TEXT, BOOLEAN, BINARY, TIME, DATE, INTERVAL = "text", "boolean", "binary", "time", "date", "interval"
NESTED, NULL, UNKNOWN = "nested", "null", "unknown"
ValueKinds = frozenset[str]

_OF_TYPE = {
    "TINYINT": SMALL, "SMALLINT": SMALL, "INT": SMALL, "BIGINT": INTEGER, "DOUBLE": DOUBLE, "FLOAT": DOUBLE,
    "DECIMAL": DECIMAL, "VARCHAR": TEXT, "TEXT": TEXT, "BOOLEAN": BOOLEAN, "BINARY": BINARY, "TIMESTAMPTZ": TIME,
    "TIMESTAMP": TIME, "DATE": DATE,
}  # fmt: skip
_DELTA_TYPES = {
    "byte": SMALL, "short": SMALL, "integer": SMALL, "long": INTEGER, "double": DOUBLE, "float": DOUBLE,
    "string": TEXT, "boolean": BOOLEAN, "binary": BINARY, "timestamp": TIME, "date": DATE,
}  # fmt: skip
# Functions whose result has the kinds of these arguments, by position; None for all arguments.
_LIKE_ARGUMENTS: Mapping[str, tuple[int, ...] | None] = {
    "sum": (0,), "min": (0,), "max": (0,), "min_by": (0,), "max_by": (0,), "lag": (0,), "lead": (0,),
    "first_value": (0,), "last_value": (0,), "abs": (0,), "nullif": (0,), "coalesce": None, "ifnull": None,
    "nvl": None, "greatest": None, "least": None, "if": (1, 2), "nvl2": (1, 2),
}  # fmt: skip
_RESULTS = {
    COUNT: "count count_if row_number rank dense_rank ntile length char_length octet_length size cardinality "
    "unix_timestamp unix_micros year quarter month day dayofmonth dayofyear hour minute second dayofweek weekday "
    "weekofyear instr locate ascii extract timestampdiff datediff date_diff crc32",
    INTEGER: "ceil ceiling floor",
    DOUBLE: "avg stddev stddev_pop stddev_samp variance var_pop var_samp corr sqrt exp ln log10 pow power percent_rank "
    "cume_dist median nanvl",
    TEXT: "upper lower trim ltrim rtrim substring substr left right replace concat concat_ws split_part lpad rpad "
    "regexp_extract regexp_replace reverse repeat translate date_format from_unixtime hex base64 md5 sha2 typeof",
    BOOLEAN: "startswith endswith contains rlike regexp_like like ilike exists isnull isnotnull bool_and bool_or "
    "every some any array_contains map_contains_key",
    TIME: "date_trunc current_timestamp now timestamp_seconds timestamp_millis timestamp_micros to_timestamp "
    "timestampadd dateadd",
    DATE: "current_date date to_date date_add date_sub last_day",
}
RESULT_KIND = {function: kind for kind, names in _RESULTS.items() for function in names.split()}
"""The kind of a function's result, by the function's name, if it does not depend on the arguments."""
_MOST_LITERAL = 1_000_000
LAKE_COUNTS = frozenset(
    """
    applied attempts batch batch_id batches changes checks checks_failed duplicates first first_offset gaps held ignored
    last last_offset late lost messages number offset _offset ordinal partition parts pending points position _position
    quarantined removed rows source_from source_to unaccounted _batch
    """.split()  # noqa: SIM905 - names read better as text
)
"""Columns and fields of the lake's own tables that are counts or offsets, so that sums of two never overflow."""


class ValueKindFinder:
    """Finds the kinds of values that expressions of one statement may have.

    Args:
        columns: The kinds of the tables' columns and of the fields inside them, by name in lower case.
        trees: sqlglot's syntax trees of the statement and of the views that it reads. Their aliases are names too.
        get_called_name: Returns the name by which a node calls a function.
    """

    def __init__(
        self, columns: Mapping[str, ValueKinds], trees: Iterable[SqlNode], get_called_name: Callable[[SqlNode], str]
    ) -> None:
        from sqlglot import exp

        self._columns, self._name_of = columns, get_called_name
        self._aliases: dict[str, list[SqlNode]] = {}
        self._renamed: set[str] = set()
        self._open: set[str] = set()
        for tree in trees:
            for node in tree.find_all(exp.Alias):
                self._aliases.setdefault(node.alias.lower(), []).append(node.this)
            for node in tree.find_all(exp.TableAlias):
                self._record_renamed_columns(node)

    def _record_renamed_columns(self, table_alias: SqlNode) -> None:
        from sqlglot import exp

        names = [column.name.lower() for column in table_alias.args.get("columns") or ()]
        if not isinstance(table_alias.parent, exp.Values):
            self._renamed |= set(names)
            return
        for row in table_alias.parent.expressions:
            for name, value in zip(names, row.expressions if isinstance(row, exp.Tuple) else [row], strict=False):
                self._aliases.setdefault(name, []).append(value)

    def find_value_kinds(self, node: SqlNode) -> ValueKinds:
        """Returns all kinds that the values of an expression (a node of the syntax tree) may have."""
        from sqlglot import exp

        wrappers = exp.Alias | exp.Paren | exp.Filter | exp.Window | exp.Distinct | exp.Ordered
        if isinstance(node, wrappers) or is_added_by_sqlglot(node):
            inner = node.expressions[0] if isinstance(node, exp.Distinct) else node.this
            return self.find_value_kinds(inner)
        if isinstance(node, exp.Column | exp.Dot):
            return self._find_kinds_of_column(node.name.lower())
        if isinstance(node, exp.Literal):
            return frozenset({_find_kind_of_literal(node)})
        if isinstance(node, exp.Cast):
            return frozenset({_OF_TYPE.get(node.to.this.name, UNKNOWN)})
        is_operation = isinstance(node, exp.Connector) or not isinstance(node, exp.Func)
        if is_operation and isinstance(node, exp.Binary | exp.Unary | exp.Predicate):
            return self._find_kinds_of_operation(node)
        return self._find_kinds_of_other_expression(node)

    def _find_kinds_of_column(self, name: str) -> ValueKinds:
        if name in self._open:
            return frozenset()  # an alias of an expression with a column of the same name
        self._open.add(name)
        try:
            found = self._columns.get(name, frozenset()).union(*map(self.find_value_kinds, self._aliases.get(name, ())))
        finally:
            self._open.remove(name)
        return found | {UNKNOWN} if name in self._renamed or not found else found

    def _find_kinds_of_operation(self, node: SqlNode) -> ValueKinds:
        from sqlglot import exp

        if isinstance(node, exp.Neg):
            return self.find_value_kinds(node.this)
        if isinstance(node, exp.DPipe):
            return frozenset({TEXT})
        if isinstance(node, exp.Div):
            return frozenset({DOUBLE})
        if isinstance(node, exp.Mod | exp.IntDiv):
            return frozenset({INTEGER})
        if isinstance(node, exp.Add | exp.Sub | exp.Mul):
            return self._find_kinds_of_arithmetic(self.find_value_kinds(node.left), self.find_value_kinds(node.right))
        return frozenset({BOOLEAN})

    def _find_kinds_of_arithmetic(self, left: ValueKinds, right: ValueKinds) -> ValueKinds:
        both = left | right
        if both <= {COUNT}:
            return both
        if left <= {DOUBLE} or right <= {DOUBLE}:
            return frozenset({DOUBLE})
        if both & {TIME, DATE} and INTERVAL in both:
            return both - {INTERVAL}
        return frozenset({INTEGER}) if both <= {COUNT, SMALL, INTEGER} else frozenset({UNKNOWN})

    def _find_kinds_of_other_expression(self, node: SqlNode) -> ValueKinds:
        from sqlglot import exp

        simple = {exp.Null: NULL, exp.Boolean: BOOLEAN, exp.Interval: INTERVAL, exp.HexString: BINARY}
        if type(node) in simple:
            return frozenset({simple[type(node)]})
        if isinstance(node, exp.Bracket):
            return self.find_value_kinds(node.this) - {NESTED}
        if isinstance(node, exp.Case):
            results = [one.args["true"] for one in node.args["ifs"]] + [node.args.get("default")]
            return frozenset[str]().union(*(self.find_value_kinds(one) for one in results if one is not None))
        if isinstance(node, exp.Subquery | exp.Select):
            select = node.find(exp.Select)
            return (
                self.find_value_kinds(select.selects[0])
                if select and len(select.selects) == 1
                else frozenset({UNKNOWN})
            )
        return self._find_kinds_of_function_result(node) if isinstance(node, exp.Func) else frozenset({UNKNOWN})

    def _find_kinds_of_function_result(self, node: SqlNode) -> ValueKinds:
        name = self._name_of(node)
        if name in RESULT_KIND:
            return frozenset({RESULT_KIND[name]})
        if name not in _LIKE_ARGUMENTS:
            return frozenset({UNKNOWN})
        given, places = list_call_arguments(node), _LIKE_ARGUMENTS[name]
        chosen = given if places is None else [given[place] for place in places if place < len(given)]
        found = frozenset[str]().union(*map(self.find_value_kinds, chosen))
        return found - {SMALL} | {COUNT} if name == "sum" and SMALL in found else found


def is_added_by_sqlglot(node: SqlNode) -> bool:
    """Returns True if sqlglot itself put this node around an argument, as it does in year()."""
    from sqlglot import exp

    return isinstance(node, exp.TsOrDsToDate) and "start" not in node.meta


def list_call_arguments(node: SqlNode) -> list[SqlNode]:
    """Returns the arguments of a function call, in order."""
    from sqlglot import exp

    found: list[SqlNode] = []
    for value in node.args.values():
        found += [one for one in (value if isinstance(value, list) else [value]) if isinstance(one, exp.Expression)]
    return found


def map_columns_to_value_kinds(
    fields: Iterable[Mapping[str, Any]], count_columns: Iterable[str] = ()
) -> dict[str, ValueKinds]:
    """Returns the kinds of values of columns and of all fields inside them, by name in lower case.

    Args:
        fields: The columns' `name` and `type` in Delta's JSON form.
        count_columns: Names of integer columns and fields that are counts or offsets, and so far from overflowing.
    """
    found: dict[str, ValueKinds] = {}
    for one in fields:
        _add_kinds_of_delta_type(found, one["name"].lower(), one["type"], frozenset(count_columns))
    return found


def _add_kinds_of_delta_type(
    kinds_by_name: dict[str, ValueKinds], name: str, delta_type: Any, count_columns: ValueKinds
) -> None:
    if isinstance(delta_type, str):
        simple = DECIMAL if delta_type.startswith("decimal") else _DELTA_TYPES.get(delta_type, UNKNOWN)
        simple = COUNT if simple in (SMALL, INTEGER) and name in count_columns else simple
        kinds_by_name[name] = kinds_by_name.get(name, frozenset()) | {simple}
        return
    kinds_by_name[name] = kinds_by_name.get(name, frozenset()) | {NESTED}
    for field in delta_type.get("fields", ()):
        _add_kinds_of_delta_type(kinds_by_name, field["name"].lower(), field["type"], count_columns)
    for part in ("elementType", "keyType", "valueType"):
        if part in delta_type:
            _add_kinds_of_delta_type(
                kinds_by_name, name if part != "keyType" else "key", delta_type[part], count_columns
            )
            if part == "valueType":
                _add_kinds_of_delta_type(kinds_by_name, "value", delta_type[part], count_columns)


def _find_kind_of_literal(node: SqlNode) -> str:
    if node.is_string:
        return TEXT
    if not node.this.isdigit():
        return DECIMAL
    return COUNT if int(node.this) <= _MOST_LITERAL else INTEGER
