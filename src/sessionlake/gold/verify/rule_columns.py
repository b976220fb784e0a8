"""Rules as Spark columns. Gold evaluates rules on arrays; these columns are only used to verify the result."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import TYPE_CHECKING

from sessionlake.gold.aggregate.functions import ORDER_SQL
from sessionlake.gold.aggregate.sources import DeclaredColumns, build_number_column_name, build_text_column_name
from sessionlake.gold.rules.condition_tree import (
    OPERATORS,
    AllOf,
    AnyOf,
    Compared,
    Deleted,
    FieldIs,
    Function,
    Not,
    Operand,
    Pattern,
    Selection,
    Tree,
    Window,
    find_selection,
)
from sessionlake.protocol.names import quote

if TYPE_CHECKING:
    from pyspark.sql import Column
    from pyspark.sql.window import WindowSpec

_TOLERANCE = 1e-9
_ADDITIVE = (Function.SUM, Function.AVG)


def build_minute_aggregate_columns(windows: Sequence[Window], topics: Sequence[str]) -> list[Column]:
    """Returns Spark aggregates of the numbers that windows read, seven for each window, for a `groupBy` by minute.

    The columns are `count`, `sum`, `size` (sum of absolute numbers), `min`, `max`, `first` and `last`, each followed by
    the window's index.

    Args:
        windows: the windows of a rule.
        topics: all topics with changes.
    """
    from pyspark.sql import functions as F

    found: list[Column] = []
    for i, window in enumerate(windows):
        value = F.when(_build_selection_filter(window.of, topics) & (F.col("metric") == window.metric), F.col("value"))
        order = F.when(value.isNotNull(), F.expr(ORDER_SQL))
        found += [
            F.count(value).alias(f"count{i}"), F.sum(value).alias(f"sum{i}"), F.sum(F.abs(value)).alias(f"size{i}"),
            F.min(value).alias(f"min{i}"), F.max(value).alias(f"max{i}"),
            F.min_by(value, order).alias(f"first{i}"), F.max_by(value, order).alias(f"last{i}"),
        ]  # fmt: skip
    return found


def build_sliding_window_columns(windows: Sequence[Window], window_spec: WindowSpec) -> list[Column]:
    """Returns three Spark columns for each window of a rule, which ends at minute `end` of a row.

    These are `points` (number of points in the window), `value` (value of its function) and `size` (sum of absolute
    numbers, by which rounding errors of `value` are judged). The columns' names also say which window they are for.

    Args:
        windows: the windows of the rule.
        window_spec: Spark window that orders the minutes of a key by `end`.
    """
    from pyspark.sql import functions as F

    found: list[Column] = []
    for i, window in enumerate(windows):
        over = window_spec.rangeBetween(1 - window.minutes, 0)
        points = F.coalesce(F.sum(f"count{i}").over(over), F.lit(0))
        total = F.sum(f"sum{i}").over(over)
        value = {
            Function.COUNT: points.cast("double"),
            Function.SUM: F.coalesce(total, F.lit(0.0)),
            Function.AVG: total / F.when(points > 0, points),
            Function.MIN: F.min(f"min{i}").over(over),
            Function.MAX: F.max(f"max{i}").over(over),
            Function.FIRST: F.first(f"first{i}", ignorenulls=True).over(over),
            Function.LAST: F.last(f"last{i}", ignorenulls=True).over(over),
        }[window.function]
        size = F.coalesce(F.sum(f"size{i}").over(over), F.lit(0.0)) if window.function in _ADDITIVE else F.lit(0.0)
        found += [
            points.alias(_build_window_column_name("points", window)),
            value.alias(_build_window_column_name("value", window)),
        ]
        found.append(size.alias(_build_window_column_name("size", window)))
    return found


def build_has_points_column(windows: Sequence[Window]) -> Column:
    """Returns a Spark column that is true where at least one of a rule's windows contains a point."""
    from pyspark.sql import functions as F

    return reduce(lambda a, b: a | b, (F.col(_quote_column_name("points", window)) > 0 for window in windows))


def build_condition_columns(tree: Tree) -> tuple[Column, Column]:
    """Returns two Spark columns: true where the condition is met, and true where rounding errors could change that."""
    from pyspark.sql import functions as F

    match tree:
        case AllOf(parts) | AnyOf(parts):
            met, near = zip(*map(build_condition_columns, parts), strict=True)
            both = isinstance(tree, AllOf)
            return reduce(lambda a, b: a & b if both else a | b, met), reduce(lambda a, b: a | b, near)
        case Not(part):
            met_one, near_one = build_condition_columns(part)
            return ~met_one, near_one
        case Compared(left, compare, right):
            a, b, size = (
                _build_operand_column(left),
                _build_operand_column(right),
                _build_operand_magnitude_column(left) + _build_operand_magnitude_column(right),
            )
            near_two = (size > 0) & (F.abs(a - b) <= _TOLERANCE * size)
            return _replace_null_by_false(OPERATORS[compare](a, b)), _replace_null_by_false(
                near_two
            ) | _replace_null_by_false(F.isnan(a) | F.isnan(b))
    raise TypeError(f"{tree} is not a condition")


def build_event_column(tree: Tree, topics: Sequence[str], declared: DeclaredColumns) -> Column:
    """Returns a Spark column that is true for changes that meet the condition of an event.

    Args:
        tree: the event's condition.
        topics: all topics with changes.
        declared: the declared columns.
    """
    from pyspark.sql import functions as F

    match tree:
        case AllOf(parts):
            return reduce(lambda a, b: a & b, (build_event_column(part, topics, declared) for part in parts))
        case AnyOf(parts):
            return reduce(lambda a, b: a | b, (build_event_column(part, topics, declared) for part in parts))
        case Not(part):
            return _build_event_selection_filter(part, topics) & ~build_event_column(part, topics, declared)
        case Deleted(of):
            return _build_selection_filter(of, topics) & F.col("deleted")
        case FieldIs(of, column, compare, value):
            if column in declared.numbers:
                found = F.col(quote(build_number_column_name(declared.numbers.index(column))))
                found = F.when(~F.isnan(found), found)
            else:
                found = F.col(quote(build_text_column_name(declared.texts.index(column))))
            return _build_selection_filter(of, topics) & _replace_null_by_false(OPERATORS[compare](found, F.lit(value)))
    raise TypeError(f"{tree} is not an event")


def _build_event_selection_filter(tree: Tree, topics: Sequence[str]) -> Column:
    """Returns a Spark column that is true for changes in the topics and rows that an event's condition reads."""
    if isinstance(tree, Pattern):
        raise TypeError(f"{tree} is not an event")
    return _build_selection_filter(find_selection(tree), topics)


def _build_selection_filter(selection: Selection, topics: Sequence[str]) -> Column:
    from pyspark.sql import functions as F

    found = F.col("topic").isin([topic for topic in topics if selection.includes_topic(topic)])
    return found & F.col("row_id").isin(list(selection.rows)) if selection.rows else found


def _replace_null_by_false(met: Column) -> Column:
    """Returns a Spark column with false instead of null, because a comparison with a missing value is false."""
    from pyspark.sql import functions as F

    return F.coalesce(met, F.lit(False))


def _build_operand_column(operand: Operand) -> Column:
    from pyspark.sql import functions as F

    return F.col(_quote_column_name("value", operand)) if isinstance(operand, Window) else F.lit(operand)


def _build_operand_magnitude_column(operand: Operand) -> Column:
    from pyspark.sql import functions as F

    return F.col(_quote_column_name("size", operand)) if isinstance(operand, Window) else F.lit(0.0)


def _build_window_column_name(prefix: str, window: Window) -> str:
    return f"{prefix} {window.function} {window.metric} {window.minutes} {window.of!r}"


def _quote_column_name(prefix: str, window: Window) -> str:
    return quote(_build_window_column_name(prefix, window))
