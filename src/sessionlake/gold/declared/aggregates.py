"""The aggregates of a declared product, and the columns with state that they need."""

from __future__ import annotations

from sessionlake.gold.aggregate.decimals import DecimalMean, DecimalSum
from sessionlake.gold.aggregate.functions import (
    Aggregate,
    Count,
    DerivedAggregate,
    Endmost,
    Extreme,
    Mean,
    Sum,
    Variance,
)
from sessionlake.gold.aggregate.sketches import Buckets, Distinct, Quantile, Registers
from sessionlake.gold.aggregate.sources import (
    VALUE_AS_DOUBLE,
)
from sessionlake.protocol.columns import is_decimal_type, parse_arrow_type
from sessionlake.protocol.names import add_internal_prefix
from sessionlake.settings.capture import CaptureSettings
from sessionlake.settings.gold import (
    AggregateKind,
    EventKind,
    ProductSettings,
)

_SUM, _COUNT, _SQUARES, _BUCKETS, _REGISTERS = map(
    add_internal_prefix, ("sum", "count", "squares", "buckets", "registers")
)
_AGGREGATES: dict[AggregateKind, Aggregate | DerivedAggregate] = {
    AggregateKind.COUNT: Count(),
    AggregateKind.SUM: Sum("value"),
    AggregateKind.MIN: Extreme("value", greatest=False),
    AggregateKind.MAX: Extreme("value", greatest=True),
    AggregateKind.MEAN: Mean(_SUM, _COUNT),
    AggregateKind.VARIANCE: Variance(_SUM, _SQUARES, _COUNT),
    AggregateKind.FIRST: Endmost("value", last=False),
    AggregateKind.LAST: Endmost("value", last=True),
    AggregateKind.FIRST_TS: Extreme("ts", greatest=False, type="bigint"),
    AggregateKind.LAST_TS: Extreme("ts", greatest=True, type="bigint"),
    AggregateKind.P50: Quantile(_BUCKETS, 0.5),
    AggregateKind.P90: Quantile(_BUCKETS, 0.9),
    AggregateKind.P95: Quantile(_BUCKETS, 0.95),
    AggregateKind.P99: Quantile(_BUCKETS, 0.99),
    AggregateKind.APPROX_DISTINCT: Distinct(_REGISTERS),
}
_SUMS: dict[str, Aggregate] = {_COUNT: Count(), _SUM: Sum("value")}
_BUCKET_COUNTS: dict[str, Aggregate] = {_BUCKETS: Buckets("value")}
_QUANTILES = (AggregateKind.P50, AggregateKind.P90, AggregateKind.P95, AggregateKind.P99)
# The columns with state (names start with an underscore) that each kind of aggregate needs.
_HIDDEN_AGGREGATES: dict[AggregateKind, dict[str, Aggregate]] = {
    AggregateKind.MEAN: _SUMS,
    AggregateKind.VARIANCE: _SUMS | {_SQUARES: Sum("value", squared=True)},
    **dict.fromkeys(_QUANTILES, _BUCKET_COUNTS),
    AggregateKind.APPROX_DISTINCT: {_REGISTERS: Registers("value")},
}
# Of a source's decimal column, these functions aggregate the nearest doubles.
_DOUBLE_SUM = add_internal_prefix("double_sum")
_INEXACT_AGGREGATES: dict[AggregateKind, Aggregate | DerivedAggregate] = {
    AggregateKind.VARIANCE: Variance(_DOUBLE_SUM, _SQUARES, _COUNT, VALUE_AS_DOUBLE),
}
_HIDDEN_INEXACT_AGGREGATES: dict[AggregateKind, dict[str, Aggregate]] = {
    AggregateKind.VARIANCE: {
        _COUNT: Count(),
        _DOUBLE_SUM: Sum(VALUE_AS_DOUBLE),
        _SQUARES: Sum(VALUE_AS_DOUBLE, squared=True),
    },
    **{kind: {_BUCKETS: Buckets(VALUE_AS_DOUBLE)} for kind in _QUANTILES},
}


def create_declared_aggregates(
    declared: ProductSettings, capture: CaptureSettings | None, value_type: str | None
) -> dict[str, Aggregate | DerivedAggregate]:
    """Returns the aggregates of a declared product by column name: its results, and the columns with state.

    Args:
        declared: The product's declaration.
        capture: The columns that the declaration may name; None if it names none.
        value_type: With a source table, the Spark SQL type of its column `value`; None if it is not known.
    """
    functions, hidden = _AGGREGATES, _HIDDEN_AGGREGATES
    if capture is not None and declared.source is None and declared.value is not None:
        functions, hidden = _create_exact_decimal_aggregates(capture.find_column(declared.value).sql)
    elif is_source_value_decimal(declared, value_type):
        exact, exact_hidden = _create_exact_decimal_aggregates(str(value_type))
        functions, hidden = exact | _INEXACT_AGGREGATES, exact_hidden | _HIDDEN_INEXACT_AGGREGATES
    aggregates = {name: functions[kind] for name, kind in declared.aggregates.items()}
    for kind in sorted({*declared.aggregates.values()}):
        aggregates |= hidden.get(kind, {})
    return aggregates


def _create_exact_decimal_aggregates(
    decimal_type: str,
) -> tuple[dict[AggregateKind, Aggregate | DerivedAggregate], dict[AggregateKind, dict[str, Aggregate]]]:
    """Returns, for a decimal column, the aggregate of each kind of result, and the columns with state that it needs."""
    scale = parse_arrow_type(decimal_type).scale
    total = DecimalSum("value", scale)
    exact: dict[AggregateKind, Aggregate | DerivedAggregate] = {
        AggregateKind.SUM: total,
        AggregateKind.MEAN: DecimalMean(_SUM, _COUNT, scale),
        AggregateKind.MIN: Extreme("value", greatest=False, type=decimal_type),
        AggregateKind.MAX: Extreme("value", greatest=True, type=decimal_type),
        AggregateKind.FIRST: Endmost("value", last=False, type=decimal_type),
        AggregateKind.LAST: Endmost("value", last=True, type=decimal_type),
    }
    return _AGGREGATES | exact, {AggregateKind.MEAN: {_COUNT: Count(), _SUM: total}}


def is_source_value_decimal(declared: ProductSettings, value_type: str | None) -> bool:
    """Returns True if the product aggregates a decimal column of a source table."""
    is_of_numbers = declared.source is not None and declared.of is EventKind.NUMBERS
    return is_of_numbers and value_type is not None and is_decimal_type(value_type)
