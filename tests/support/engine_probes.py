"""Statements that probe how an engine computes, and the table that they read: nulls, extremes, and each covered type.

A statement reads the table as `{t}`. A plain expression is computed for each of its rows.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import write_deltalake

_LIST = pa.list_(pa.struct([("topic", pa.string()), ("n", pa.int64())]))
SCHEMA = pa.schema(
    [
        ("k", pa.int64()), ("i", pa.int32()), ("l", pa.int64()), ("d", pa.float64()), ("f", pa.float32()),
        ("s", pa.string()), ("b", pa.bool_()), ("t", pa.timestamp("us", "UTC")), ("dt", pa.date32()),
        ("e", pa.decimal128(10, 2)), ("x", pa.binary()), ("a", pa.list_(pa.int32())),
        ("st", pa.struct([("g", pa.int32()), ("h", pa.string())])), ("m", pa.map_(pa.string(), pa.int64())),
        ("sa", _LIST), ("_offset", pa.int64()),
    ]
)  # fmt: skip


_VALUES: list[tuple[Any, ...]] = [
    (1, 1, 10, 1.5, 0.5, "a", True, datetime(2026, 1, 1, 0, 30, 0, 123456, UTC), date(2026, 1, 1),
         Decimal("1.25"), b"\x00\xff", [1, 2, None], {"g": 1, "h": "x"}, [("k", 1)],
     [{"topic": "t", "n": 1}, {"topic": "u", "n": 2}], 0),
    (2, -7, -3, -0.0, -0.0, "", False, datetime(1969, 12, 31, 23, 59, 59, 999999, UTC), date(1969, 12, 31),
         Decimal("-7.99"), b"", [], {"g": None, "h": "y"}, [], [], 1),
    (3, *[None] * 15),
    (4, 2**31 - 1, 2**63 - 1, math.nan, math.nan, "Ärger 🚀 x", True,
         datetime(9999, 12, 31, 23, 59, 59, 999999, UTC), date(9999, 12, 31), Decimal("99999999.99"), b"abc", [3],
         {"g": 3, "h": None}, [("z", None), ("y", 2)], [{"topic": None, "n": None}], 2),
    (5, -(2**31), -(2**63), math.inf, math.inf, "A", False, datetime(1, 1, 1, tzinfo=UTC), date(1, 1, 1),
         Decimal("0.05"), b"ABC", [None], {"g": 4, "h": ""}, [("k", 5)], [{"topic": "t", "n": 5}], 3),
    (6, 0, 0, 0.0, 0.0, "it's %_x", None, datetime(2026, 3, 29, 1, 59, 59, 500000, UTC), date(2024, 2, 29),
         Decimal("0.00"), b"\xf0", [2, 2, 1], {"g": 5, "h": "z"}, [("a", 0)], [{"topic": "v", "n": 0}], 4),
    (7, 3, 7, 2.5, 2.5, "  a b ", True, datetime(2026, 1, 1, 0, 30, 0, 123000, UTC), date(2026, 1, 5),
         Decimal("2.50"), b"\x01", [9, 8], {"g": 6, "h": "q"}, [("k", 9)], [{"topic": "t", "n": 9}], 5),
    (8, 3, 7, -1e308, -2.5, "a", True, datetime(2026, 1, 1, 5, tzinfo=UTC), date(2026, 1, 5), Decimal("-2.50"),
         b"\x01", [9, 8], {"g": 6, "h": "q"}, [("k", 9)], [{"topic": "t", "n": 9}], 2**62),
]  # fmt: skip
ROWS = [dict(zip(SCHEMA.names, values, strict=True)) for values in _VALUES]
"""The probed rows. `_offset` is a column that the lake counts among its own: it is far from the limits of its type."""


def write_probes(folder: Path) -> None:
    """Writes the rows to a new Delta table, in two versions."""
    table = pa.Table.from_pylist(ROWS, SCHEMA)
    write_deltalake(folder, table.slice(0, 4))
    write_deltalake(folder, table.slice(4), mode="append")


def write_probes_again(folder: Path) -> None:
    """Appends all rows once more."""
    write_deltalake(folder, pa.Table.from_pylist(ROWS, SCHEMA), mode="append")


# Sail runs them, each with Spark's result.
SAME = """
i; l; d; f; s; b; t; dt; e; x; a; st; m; sa; st.g; st.h; m['k']; m['none']; NULL; true; 1; 'x'
d + 1; d - k; d * 2; d * d; d / 2; f + d; i / 2; k / 7; l / 3; d / NULL; i % 3; l % 4; -d; -k
_offset + 1; _offset - 5; unix_timestamp(t) - 10; t + INTERVAL 1 DAY; t - INTERVAL 2 HOURS
dt + INTERVAL 1 DAY
d > 0; d >= 0; d < 1; d <= 0; d BETWEEN 0 AND 2; i > 0; l <= 7; i = 3; i <> 3; i <=> NULL; i IN (1, 3); l NOT IN (7)
i IN (1, NULL); i BETWEEN 1 AND 3; k = i; l > d; s = 'a'; s > 'A'; s <> ''; s <=> NULL; s IN ('a', 'A'); s LIKE 'a%'
s LIKE '%b%'; s >= 'Ä'; b = true; t = TIMESTAMP'2026-01-01 00:30:00.123456'; t > '2026-01-01'
t >= TIMESTAMP'2026-01-01 00:30:00.123456'; dt = DATE'2026-01-05'; dt > '2026-01-01'; t < current_timestamp()
t > now() - INTERVAL 7 DAYS; e = 1.25; e > 0; e <= k; s IS NULL; s IS NOT NULL; NOT b; b AND i > 0; b OR i > 0
(i IS NULL); isnull(i); isnotnull(i); coalesce(i, 0); coalesce(s, 'none'); ifnull(i, 5); nvl(i, 5); nvl2(i, 1, 2)
nullif(i, 3)
if(b, 1, 2); CASE WHEN i > 0 THEN 'p' WHEN i < 0 THEN 'n' END; CASE WHEN b THEN k ELSE 0 END; greatest(i, l)
least(i, l)
greatest(s, 'b'); least(t, TIMESTAMP'2026-01-01 00:00:00'); abs(d); abs(k)
s || 'x'; concat(s, 'x', s); length(s); char_length(s); octet_length(s); upper(s); lower(s); trim(s); ltrim(s); rtrim(s)
substring(s, 2, 2); substring(s, -2); substr(s, 0, 2); left(s, 2); right(s, 2); replace(s, 'a', 'b')
contains(s, ' ')
startswith(s, 'a'); endswith(s, 'x'); split_part(s, ' ', 1); size(a); cardinality(a); size(m)
exists(sa, v -> v.topic = 't' AND v.n > 1)
CAST(i AS STRING); CAST(b AS STRING); CAST(t AS STRING); CAST(dt AS STRING); CAST(k AS DOUBLE); CAST(i AS BIGINT)
CAST(t AS DATE); CAST(s AS STRING); 1.5D; 7L; DATE'2026-01-01'; TIMESTAMP'2026-01-01 00:00:00'
hour(t); minute(t); second(t); unix_timestamp(t); unix_micros(t)
timestamp_seconds(k); timestamp_millis(k); timestamp_micros(l)
year(t); year(dt); quarter(t); quarter(dt); month(t); month(dt); day(t); day(dt); dayofmonth(dt); dayofweek(t)
dayofweek(dt); dayofyear(t); dayofyear(dt); date(t); date(dt); to_date(t); to_date(dt); last_day(dt)
date_add(dt, 1); date_add(dt, -400)
floor(d); floor(f); ceil(d); ceil(f); ceiling(d); sqrt(d); sqrt(k); exp(d); exp(k); ln(d); ln(i); ln(f)
instr(s, 'a'); instr(s, ''); locate('a', s); locate('', s); lpad(s, 5, '.'); lpad(s, 1, 'xy'); lpad(s, 0, '.')
rpad(s, 5, '.')
rpad(s, 3, 'xy'); rpad(s, 5, ''); reverse(s); repeat(s, 2); repeat(s, 0); repeat(s, -1); concat_ws('-', s, 'x', s)
concat_ws('', s, NULL)
"""
# Sail runs them, each with Spark's result.
SAME_STATEMENTS = """
SELECT count(*), count(i), count(DISTINCT i) AS n, min(d), max(d), min(s), max(t), min(dt) FROM {t}
SELECT max(b), min(e), max(x) FROM {t}
SELECT sum(_offset), sum(d), avg(k), avg(d), sum(i) FROM {t} WHERE k IN (1, 2, 6, 7)
SELECT sum(d) AS n, avg(i) AS m FROM {t} WHERE false
SELECT count_if(i > 0) AS a, bool_and(b) AS c, bool_or(b) AS g, min_by(s, k) AS h, max_by(s, i) AS j FROM {t}
SELECT sum(i) FILTER (WHERE b) AS n, count(*) FILTER (WHERE i > 0) AS m FROM {t}
SELECT d, count(*) FROM {t} GROUP BY d
SELECT DISTINCT d FROM {t}
SELECT s, count(*) AS n FROM {t} GROUP BY s HAVING count(*) > 0 ORDER BY n DESC, s
SELECT b, i, count(*) AS n FROM {t} GROUP BY 1, i ORDER BY b, i LIMIT 4 OFFSET 1
SELECT e, x, count(*) AS n FROM {t} GROUP BY e, x ORDER BY e, x
SELECT date_trunc('HOUR', t) AS a, date_trunc('DAY', t) AS c, date_trunc('MINUTE', t) AS g FROM {t} WHERE k IN (1, 2, 6)
SELECT date_trunc('WEEK', t) AS a, date_trunc('MONTH', t) AS c, date_trunc('YEAR', t) AS g FROM {t} WHERE k IN (1, 2, 6)
SELECT k, d FROM {t} ORDER BY b, d DESC
SELECT k, s FROM {t} ORDER BY s NULLS LAST, k
SELECT k, s FROM {t} ORDER BY s DESC NULLS FIRST, k DESC
SELECT k, t FROM {t} ORDER BY t DESC, k LIMIT 3
SELECT k, row_number() OVER (PARTITION BY b ORDER BY k) AS n FROM {t} ORDER BY k
SELECT k, rank() OVER (ORDER BY i) AS n, dense_rank() OVER (ORDER BY i DESC) AS m FROM {t} ORDER BY k
SELECT k, lag(k) OVER (ORDER BY k) AS a, lead(k, 2, 0L) OVER (ORDER BY k) AS c FROM {t} ORDER BY k
SELECT k, sum(d) OVER (ORDER BY k ROWS BETWEEN 1 PRECEDING AND CURRENT ROW) AS a FROM {t} WHERE k < 4 ORDER BY k
SELECT k, first_value(s) OVER (ORDER BY k) AS a, last_value(s) OVER (ORDER BY k) AS c FROM {t} ORDER BY k
SELECT a.k, c.k AS o FROM {t} a JOIN {t} c ON a.i = c.i ORDER BY a.k, o
SELECT a.k, c.k AS o FROM {t} a LEFT JOIN {t} c ON a.i = c.l ORDER BY a.k, o
SELECT a.k, c.k AS o FROM {t} a RIGHT JOIN {t} c ON a.i = c.l AND c.b ORDER BY a.k, o
SELECT a.k, c.k AS o FROM {t} a FULL JOIN {t} c ON a.i = c.l ORDER BY a.k, o
SELECT a.k FROM {t} a LEFT SEMI JOIN {t} c ON a.i = c.l ORDER BY k
SELECT a.k FROM {t} a LEFT ANTI JOIN {t} c ON a.i = c.l ORDER BY k
SELECT a.k, c.k AS o FROM {t} a CROSS JOIN {t} c WHERE a.k < c.k ORDER BY a.k, o
SELECT * FROM {t} a JOIN {t} c USING (k) ORDER BY k
SELECT k FROM {t} WHERE i IN (SELECT i FROM {t} WHERE k > 5) ORDER BY k
SELECT k FROM {t} WHERE i NOT IN (SELECT i FROM {t} WHERE k < 4) ORDER BY k
SELECT k, (SELECT max(k) AS m FROM {t}) AS m FROM {t} ORDER BY k
WITH q AS (SELECT b, sum(i) AS n FROM {t} GROUP BY b) SELECT q.b, n FROM q ORDER BY n
SELECT i FROM {t} UNION SELECT l FROM {t} ORDER BY i
SELECT i FROM {t} UNION ALL SELECT k FROM {t} ORDER BY i
SELECT i FROM {t} INTERSECT SELECT i FROM {t} WHERE k > 6 ORDER BY i
SELECT i FROM {t} EXCEPT SELECT i FROM {t} WHERE k > 6 ORDER BY i
SELECT k, v.topic, v.n FROM {t} LATERAL VIEW explode(sa) AS v ORDER BY k, v.n
SELECT k, v.topic, v.n FROM {t} LATERAL VIEW OUTER explode(sa) AS v ORDER BY k, v.n
SELECT q.x, q.y FROM (VALUES (1, 'a'), (2, NULL)) AS q(x, y) ORDER BY q.x
SELECT * FROM {t} ORDER BY k
SELECT {t}.k, K, I FROM {t} ORDER BY k
SELECT count(*), count(i), sum(d), min(s), max(s), avg(k) FROM {t} WHERE k IN (1, 2)
SELECT count(*) AS `two words`, 1 AS `a.b` FROM {t}
SELECT k, sa[0].n AS n FROM {t} WHERE size(sa) > 0 ORDER BY k
SELECT 100.0D * sum(_offset) / nullif(sum(i), 0) AS percent FROM {t} WHERE k IN (1, 6)
SELECT k FROM {t} WHERE t > TIMESTAMP'2026-01-01 00:30:00.123455' AND t < TIMESTAMP'2026-01-01 00:30:00.123457'
SELECT k FROM {t} WHERE t = TIMESTAMP'9999-12-31 23:59:59.999999' OR t = TIMESTAMP'0001-01-01 00:00:00'
SELECT k FROM {t} WHERE d > 1e308D OR e > 2.4 OR s >= 'Ä' OR b ORDER BY k
SELECT k FROM {t} WHERE t = '2026-01-01' OR dt = '2026-01-05' ORDER BY k
SELECT count(*) AS n FROM {t} WHERE year(t) = 2026
SELECT year(t) AS yy, month(t) AS mm, count(*) AS n FROM {t} GROUP BY 1, 2 ORDER BY yy, mm
SELECT to_date(t) AS r, count(*) AS n FROM {t} GROUP BY to_date(t) ORDER BY r
SELECT k, ntile(3) OVER (ORDER BY k) AS a, percent_rank() OVER (ORDER BY i) AS c FROM {t} ORDER BY k
SELECT k, cume_dist() OVER (PARTITION BY b ORDER BY i) AS a FROM {t} ORDER BY k
SELECT stddev(d) AS a, stddev_pop(d) AS c, stddev_samp(d) AS g, variance(d) AS h FROM {t} WHERE k IN (1, 2, 3, 6, 7)
SELECT var_pop(d) AS a, var_samp(d) AS c, median(d) AS g, median(i) AS h FROM {t} WHERE k IN (1, 2, 3, 6, 7)
SELECT stddev(i) AS aa, stddev_pop(i) AS c, variance(i) AS g, median(i) AS h FROM {t} WHERE k IN (1, 2, 3, 6, 7)
SELECT stddev(d) AS a, stddev_pop(d) AS c, var_samp(d) AS g, var_pop(i) AS h, median(d) AS j FROM {t} WHERE k = 1
SELECT stddev(d) AS a, stddev_pop(d) AS c, var_samp(d) AS g, var_pop(i) AS h, median(d) AS j FROM {t} WHERE k = 3
SELECT b, stddev(d) AS a, median(d) AS c FROM {t} WHERE k IN (1, 2, 3, 6, 7) GROUP BY b
SELECT every(b) AS a, some(b) AS c FROM {t}
"""
# Sail would answer them differently, or answer what Spark refuses. So they are left to Spark.
LEFT_TO_SPARK = """
i + 1; l + 1; i - l; i * l; _offset * 1000; i * 2; 2147483647 + 1; round(d, 1); round(f); bround(d); sign(d)
greatest(d, 0); e + 1; e * 2; e / 7; e % 2; k / 0.3; 1.5 * k; CAST(d AS STRING); CAST(f AS STRING); CAST(t AS BIGINT)
CAST(a AS STRING); CAST(s AS INT); CAST(e AS DOUBLE); dt - DATE'2025-01-01'; unix_seconds(t); unix_millis(t); isnan(d)
timestamp_seconds(k / 2); datediff(dt, DATE'2026-01-01'); array_contains(a, 2); initcap(s); s = 1; b = 1; i = '3'; d = 0
d IN (0, 1.5D); d <=> 0; concat(s, 1); coalesce(i, 'x'); s LIKE '\\%'; extract(SECOND FROM t); typeof(i)
date_trunc('QUARTER', t); INTERVAL '1 2' DAY TO HOUR; try_add(i, 1); i DIV 2; uuid(); rand(); "s"
floor(e); ceil(k); year(s); date_add(t, 1); date_add(dt, k)
weekday(t); date_format(t, 'yyyy'); initcap(s); array_contains(a, 2); CASE d WHEN 1.5D THEN 1 END
CASE i WHEN 1 THEN 'x' END
CASE i WHEN '1' THEN 2 END
repeat(s, i); concat_ws('-', i); d || 'x'; abs(e); regexp_replace(s, 'a', 'b'); s RLIKE 'a'
"""
LEFT_STATEMENTS = """
SELECT sum(l) AS n FROM {t}
SELECT sum(e) AS n FROM {t}
SELECT avg(e) AS n FROM {t}
SELECT percentile_approx(k, 0.5) AS n FROM {t}
SELECT k + 1D FROM {t}
SELECT sum(i) FILTER (WHERE b) FROM {t}
SELECT k, d FROM {t} ORDER BY d DESC, k
SELECT k, rank() OVER (ORDER BY d) AS n FROM {t}
SELECT a.k FROM {t} a JOIN {t} c ON a.d = c.d
SELECT a.k FROM {t} a JOIN {t} c USING (d)
SELECT k FROM {t} NATURAL JOIN (SELECT k FROM {t}) AS q
SELECT i FROM {t} UNION SELECT s FROM {t}
SELECT i FROM {t} UNION SELECT e FROM {t}
SELECT * EXCEPT (a) FROM {t}
SELECT k FROM {t} WHERE NULL
SELECT b, count(*) AS n FROM {t} GROUP BY ALL
SELECT b, count(*) AS n FROM {t} GROUP BY ROLLUP (b)
SELECT k FROM {t} VERSION AS OF 0
SELECT k FROM {t} TABLESAMPLE (50 PERCENT)
SELECT k, (SELECT l FROM {t} WHERE k = 1) AS n FROM {t}
SELECT q.k + 1L AS n FROM (SELECT * FROM {t}) AS q(k, i, l, d, f, s, b, t, dt, e, x, a, st, m, sa, o)
SELECT n + 1 AS o FROM (SELECT l AS n FROM {t})
SELECT o.k FROM {t} o WHERE EXISTS (SELECT 1 AS n FROM {t} c WHERE c.i = o.i)
SELECT o.k FROM {t} o WHERE o.i IN (SELECT c.i FROM {t} c WHERE c.k > o.k)
SELECT o.k, (SELECT count(*) FROM {t} c WHERE c.i = o.i) AS n FROM {t} o
SELECT explode(a) AS n FROM {t}
DESCRIBE {t}
EXPLAIN SELECT k FROM {t}
SELECT * FROM metrics_between(now(), now())
"""


def list_statements(expressions: str, statements: str, table: str) -> Iterator[str]:
    """Yields the statements, and one for each expression."""
    for expression in list_expressions(expressions):
        yield f"SELECT k, {expression} AS r FROM {table}"  # noqa: S608 - probes of this module
    yield from (one.format(t=table) for one in statements.splitlines() if one)


def list_joined_statements(expressions: str, table: str) -> Iterator[str]:
    """Yields statements that compute the expressions, twenty in each."""
    given = list_expressions(expressions)
    for first in range(0, len(given), 20):
        columns = ", ".join(f"{one} AS r{number}" for number, one in enumerate(given[first : first + 20]))
        yield f"SELECT k, {columns} FROM {table}"  # noqa: S608 - probes of this module


def list_expressions(expressions: str) -> list[str]:
    """Returns the expressions of a text that separates them by semicolons or lines."""
    return [one.strip() for one in expressions.replace("\n", ";").split(";") if one.strip()]
