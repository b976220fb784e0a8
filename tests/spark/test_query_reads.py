"""`query` and conditions only read the lake's tables: Spark's own plan of a statement decides, never its words."""

from __future__ import annotations

from pathlib import Path

import pytest

from sessionlake.cli.query import fetch_query_result, require_existing_tables, show_query_result_as_of
from sessionlake.cli.remote_tables import require_read_only_statement
from sessionlake.cli.show import OutputFormat
from sessionlake.cli.sql_names import replace_prefixed_table_names
from sessionlake.delta.lake import Lake
from sessionlake.delta.schemas.tables import TABLES
from sessionlake.errors import UsageError
from sessionlake.settings.model import Settings
from sessionlake.spark.reading_plan import find_tables_and_functions, require_own_columns_only
from sessionlake.spark.sql_functions import SAFE_FUNCTIONS, WHO
from support.seeds import long_beyond

S, Q = "silver.sessions", "silver.quarantine"
FORMATS = ("csv", "json", "parquet", "delta", "binaryFile", "text", "orc", "avro", "xml")

# Statements, and the tables of the lake that they read.
READS = [
    ("SELECT 1", ()),
    ("SELECT 1;", ()),
    (f"SELECT * FROM {S}", (S,)),
    ("select * from `SILVER` . `Sessions`", (S,)),
    (f"-- what is there\nSELECT * FROM {S}", (S,)),
    (f"/* DELETE FROM {S} */ SELECT * FROM {S} -- ; DROP TABLE {S}", (S,)),
    (f"/* one /* inside another; DROP TABLE x */ still */ SELECT * FROM {S}", (S,)),
    (f"SELECT '--', s.* FROM {S} s JOIN silver.session_rows USING (topic)", (S, "silver.session_rows")),
    (f"SELECT 'DELETE FROM silver.session_rows', \"DROP TABLE x\" FROM {S}", (S,)),
    (f"SELECT 'it''s \\' -- x', '/*' FROM {S} WHERE topic <> '*/'", (S,)),
    (f"WITH update AS (SELECT * FROM {S}) SELECT * FROM update", (S,)),
    (f"WITH delete AS (SELECT 1 AS a), merge AS (SELECT a FROM delete) SELECT * FROM merge, {S}", (S,)),
    (f"WITH a AS (WITH b AS (SELECT * FROM {S}) SELECT * FROM b) SELECT * FROM a", (S,)),
    (f"SELECT * FROM (SELECT topic FROM {S} WHERE gaps > (SELECT min(gaps) FROM {S}))", (S,)),
    (f"SELECT topic FROM {S} WHERE topic IN (SELECT topic FROM silver.quarantine)", (S, "silver.quarantine")),
    (f"SELECT EXISTS (SELECT 1 FROM {S})", (S,)),
    (f"SELECT `insert into`, `drop` FROM (SELECT 1 AS `insert into`, 2 AS `drop` FROM {S})", (S,)),
    (f"SELECT silver.sessions.topic FROM {S}", (S,)),
    (f"SELECT /*+ BROADCAST(s) */ * FROM {S} s", (S,)),
    (f"SELECT topic, part FROM {S} LATERAL VIEW explode(array(1, 2)) t AS part", (S,)),
    (f"SELECT topic, part FROM {S}, LATERAL explode(array(1, 2)) t (part)", (S,)),
    (f"SELECT topic, count(*) FILTER (WHERE gaps > 1) FROM {S} GROUP BY ROLLUP (topic) HAVING count(*) > 1", (S,)),
    (f"SELECT topic, count(*) FROM {S} GROUP BY GROUPING SETS ((topic), ()) ORDER BY 1 LIMIT 3 OFFSET 1", (S,)),
    (f"SELECT rank() OVER (PARTITION BY topic ORDER BY gaps DESC) FROM {S}", (S,)),
    (f"SELECT sum(gaps) OVER w FROM {S} WINDOW w AS (ORDER BY topic ROWS BETWEEN 1 PRECEDING AND CURRENT ROW)", (S,)),
    (f"SELECT * FROM {S} PIVOT (sum(gaps) FOR status IN ('open', 'ended'))", (S,)),
    (f"SELECT * FROM {S} UNPIVOT (n FOR what IN (gaps, late))", (S,)),
    (f"SELECT * FROM {S} TABLESAMPLE (10 PERCENT)", (S,)),
    (f"SELECT * FROM {S} VERSION AS OF 1", (S,)),
    (f"SELECT topic FROM {S} UNION ALL SELECT topic FROM {Q} EXCEPT SELECT 'a'", (S, Q)),
    ("VALUES (1, 'DELETE'), (2, 'x')", ()),
    ("SELECT * FROM (VALUES (1), (2)) AS t(a)", ()),
    ("SELECT * FROM range(3)", ()),
    (f"FROM {S} SELECT topic", (S,)),
    (f"SELECT date_trunc('HOUR', now()), trim(BOTH 'x' FROM topic), extract(YEAR FROM now()) FROM {S}", (S,)),
    (f"SELECT transform(array(1), x -> x + 1), topic ILIKE 'a%', topic RLIKE 'a', INTERVAL 1 DAY FROM {S}", (S,)),
    ("SELECT CAST('1' AS INT), '1' :: INT, CASE WHEN true THEN TRY_CAST('a' AS INT) END, 1 BETWEEN 0 AND 2", ()),
    ("SELECT named_struct('a', 1).a, map('k', 1)['k'], array(1)[0], nvl(NULL, 1), if(true, 1, 2), 7 DIV 2, 7 % 2", ()),
    ("SELECT timestampdiff(HOUR, now(), now()), percentile_cont(0.5) WITHIN GROUP (ORDER BY 1), 'a' || 'b'", ()),
    ("SELECT current_timestamp, current_date, substring('abc' FROM 2 FOR 1), position('a' IN 'ba')", ()),
    (f"SELECT year(now()), month(now()), dayofweek(now()), date_format(now(), 'yyyy'), first(topic) FROM {S}", (S,)),
    (f"SELECT any_value(topic), last(topic), percentile(1, 0.5), approx_percentile(1, 0.5) FROM {S}", (S,)),
    ("SELECT t.user FROM (SELECT 1 AS user) t", ()),
    ("SELECT * FROM metrics_between(now(), now())", ("gold.metrics_between",)),
    (f"DESCRIBE {S}", (S,)),
    (f"DESCRIBE HISTORY {S}", (S,)),
    (f"EXPLAIN SELECT * FROM {S}", (S,)),
    ("SHOW TABLES", ()),
]  # fmt: skip
# Spark's alone: sqlglot does not know them.
SPARKS_READS = [
    (f"TABLE {S}", (S,)),
    (f"FROM {S} |> WHERE topic = 'a' |> SELECT topic", (S,)),
    (f"SHOW COLUMNS IN {S}", (S,)),
    (f"DESCRIBE DETAIL {S}", (S,)),
]

REFUSED = [
    "",
    "-- nothing",
    "SELECT",
    f"DELETE FROM {S}",
    f"DROP TABLE {S}",
    f"UPDATE {S} SET gaps = 0",
    f"INSERT INTO {S} SELECT * FROM {S}",
    f"/* a /* b */ c */ INSERT OVERWRITE TABLE {S} SELECT * FROM {S}",
    "INSERT OVERWRITE DIRECTORY '{out}' USING json SELECT 1",
    "/* SELECT /* 1 */ */ INSERT OVERWRITE DIRECTORY '{out}' USING json SELECT 1",
    "WITH t AS (SELECT 1) INSERT OVERWRITE DIRECTORY '{out}' USING json SELECT * FROM t",
    f"WITH t AS (SELECT 1) INSERT INTO {S} SELECT * FROM t",
    f"WITH t AS (SELECT 1) DELETE FROM {S}",
    f"FROM {S} INSERT OVERWRITE TABLE silver.quarantine SELECT * INSERT INTO {S} SELECT *",
    f"MERGE INTO {S} USING {S} s ON true WHEN MATCHED THEN DELETE",
    f"SELECT * INTO other FROM {S}",
    "CREATE TABLE t AS SELECT 1",
    "CREATE TEMP VIEW t AS SELECT 1",
    "CREATE TEMPORARY FUNCTION f AS 'a.B' USING JAR '/tmp/a.jar'",
    "CREATE OR REPLACE TEMPORARY VIEW t USING text OPTIONS (path '/etc/hosts')",
    "CACHE TABLE t AS SELECT 1",
    f"CACHE LAZY TABLE {S}",
    f"UNCACHE TABLE {S}",
    "SET spark.sql.ansi.enabled = false",
    "SET",
    "RESET",
    "USE silver",
    "ADD JAR '/tmp/a.jar'",
    "ADD FILE '/etc/hosts'",
    "LIST JARS",
    f"REFRESH TABLE {S}",
    f"ANALYZE TABLE {S} COMPUTE STATISTICS",
    f"VACUUM {S}",
    f"OPTIMIZE {S}",
    f"TRUNCATE TABLE {S}",
    f"RESTORE TABLE {S} TO VERSION AS OF 0",
    f"CALL system.f('{S}')",
    "EXECUTE IMMEDIATE 'DROP TABLE silver.sessions'",
    "DECLARE x INT",
    f"SELECT 1; DROP TABLE {S}",
    "BEGIN SELECT 1; END",
    f"EXPLAIN DELETE FROM {S}",
    f"SELECT TRANSFORM (topic) USING 'cat' AS t FROM {S}",
    f"FROM {S} SELECT TRANSFORM (topic) USING '/bin/sh' AS t",
    f"SELECT * FROM (SELECT TRANSFORM (topic) USING 'cat' AS t FROM {S})",
    "SELECT reflect('java.lang.System', 'getProperty', 'user.home')",
    "SELECT java_method('java.lang.System', 'exit', 1)",
    "SELECT try_reflect('java.lang.System', 'getenv')",
    f"SELECT topic FROM {S} WHERE topic = `reflect`('java.lang.System', 'getenv')",
    f"WITH t AS (SELECT /* reflect */ REFLECT('java.lang.System', 'getenv')) SELECT * FROM t, {S}",
    f"SELECT transform(array(1), x -> java_method('java.lang.System', 'exit', x)) FROM {S}",
    f"SELECT topic FROM {S} LATERAL VIEW explode(array(reflect('a', 'b'))) t AS x",
    f"SELECT topic FROM {S} ORDER BY (SELECT max(reflect('a', 'b')) FROM {S})",
    "SELECT count(*) OVER (ORDER BY reflect('a', 'b')) FROM range(3)",
    "SELECT current_user()",
    "SELECT session_user",
    f"SELECT User FROM {S}",
    "SELECT (SELECT current_user) FROM range(1)",
    "SELECT from_protobuf(X'00', 'M', '/etc/hosts')",
    "SELECT from_avro(X'00', 'x', map('avroSchemaUrl', 'file:/etc/hosts'))",
    "SELECT from_xml('<a/>', 'a INT', map('rowValidationXSDPath', '/etc/hosts'))",
    "SELECT xpath('<a/>', 'a')",
    "SELECT my_udf(1)",
    "SELECT silver.my_udf(1)",
    "SELECT spark_catalog.default.my_udf(1)",
    "SELECT * FROM read_files('/etc/hosts')",
    "SELECT * FROM my_udtf(1)",
    "SELECT * FROM other.f(1)",
    "SELECT * FROM IDENTIFIER('silver.' || 'sessions')",
    "SELECT IDENTIFIER('reflect')('java.lang.System', 'getenv')",
    *(f"SELECT * FROM {form}.`/etc/hosts`" for form in FORMATS),
    "SELECT * FROM TEXT . `/etc/hosts`",
    f"SELECT (SELECT count(*) FROM text.`/etc/hosts`) FROM {S}",
    f"WITH t AS (SELECT * FROM {S}) SELECT * FROM t WHERE EXISTS (SELECT 1 FROM `text`.`/etc/hosts`)",
    f"SELECT * FROM {S} UNION ALL SELECT * FROM parquet.`/etc`",
    "DESCRIBE delta.`/tmp/t`",
    "DESCRIBE HISTORY delta.`/tmp/t`",
    "DESCRIBE HISTORY '/tmp/t'",
    "SELECT * FROM other",
    "SELECT * FROM other.sessions",
    "SELECT * FROM main.other.sessions",
    "WITH a AS (SELECT * FROM b), b AS (SELECT 1) SELECT * FROM a",  # the first b is none of its own
    "SELECT * FROM (WITH b AS (SELECT 1) SELECT * FROM b) JOIN b",
]  # fmt: skip


QUERIES = sorted((Path(__file__).parents[2] / "resources" / "queries").glob("*.sql"))


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(home=tmp_path / "home")


@pytest.mark.parametrize(("sql", "tables"), READS + SPARKS_READS)
def test_what_reads_is_taken_with_the_tables_that_it_names(spark, sql, tables):
    found = find_tables_and_functions(spark, sql, {"metrics_between"})
    named = {".".join(name) for name in found.tables} | {f"gold.{name}" for name in found.functions}
    assert named == set(tables)


@pytest.mark.parametrize("sql", REFUSED)
def test_what_does_more_than_read_the_lake_is_refused_and_does_nothing(spark, settings, tmp_path, sql):
    with pytest.raises(UsageError, match="query: "):
        fetch_query_result(spark, settings, sql.format(out=tmp_path / "out"))
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("sql", REFUSED)
def test_what_does_more_than_read_is_refused_as_of_a_batch_too(spark, settings, tmp_path, sql):
    with pytest.raises(UsageError, match="query: "):
        show_query_result_as_of(spark, settings, sql.format(out=tmp_path / "out"), 0, OutputFormat.JSON)
    assert not (tmp_path / "out").exists()


def test_a_table_by_its_full_name_is_refused_as_of_a_batch(spark, settings):
    with pytest.raises(UsageError, match=r"main\.silver\.sessions cannot be read as of a batch"):
        show_query_result_as_of(spark, settings, "SELECT * FROM main.silver.sessions", 0, OutputFormat.JSON)


@pytest.mark.parametrize("sql", [sql for sql, _ in READS if "metrics_between" not in sql])
def test_what_reads_is_sent_to_a_warehouse(settings, sql):
    require_read_only_statement(settings, sql)


@pytest.mark.parametrize("sql", [sql for sql in REFUSED if "main.other" not in sql])
def test_what_does_more_than_read_is_not_sent_to_a_warehouse(settings, sql):
    with pytest.raises(UsageError, match="query: "):
        require_read_only_statement(settings, sql)


def test_a_warehouse_is_asked_for_other_tables_by_their_full_names_alone(settings):
    require_read_only_statement(settings, f"SELECT * FROM {S} JOIN crm.public.devices USING (topic)")
    with pytest.raises(UsageError, match=r"public\.devices is neither"):
        require_read_only_statement(settings, "SELECT * FROM public.devices")


@pytest.mark.parametrize(
    "condition", ["topic = 'DELETE FROM x; --'", "gaps > 0 OR topic LIKE 'a%'", "exists(xs, x -> x > 1)"]
)
def test_a_condition_computes(spark, condition):
    require_own_columns_only(spark, "--where", condition)


@pytest.mark.parametrize(
    "condition",
    [
        "topic = reflect('java.lang.System', 'getenv')",
        "topic IN (SELECT value FROM text.`/etc/hosts`)",
        f"topic IN (SELECT topic FROM {S})",
        "1 = 1; DROP TABLE silver.sessions",
        "topic = current_user()",
        "",
    ],
)
def test_a_condition_that_does_more_is_refused(spark, condition):
    with pytest.raises(UsageError, match="--where"):
        require_own_columns_only(spark, "--where", condition)


def test_every_function_of_spark_is_either_safe_or_left_out_on_purpose(spark):
    """What a new version of Spark brings is decided on here."""
    runs_code = {"java_method", "reflect", "try_reflect"}
    reads_files = {f"{how}_{form}" for how in ("from", "to", "schema_of") for form in ("avro", "protobuf", "xml")}
    # With these names alone they are operators, which a plan has as classes of their own.
    words = {"and", "or"}
    found = {row[0] for row in spark.sql("SHOW SYSTEM FUNCTIONS").collect() if row[0].isidentifier()}
    xpaths = {name for name in found if name.startswith("xpath")}
    assert found - SAFE_FUNCTIONS == {*runs_code, *reads_files, *WHO, *xpaths, *words} - {"schema_of_protobuf"}
    assert not SAFE_FUNCTIONS - found


SOME_QUERIES = long_beyond([(file,) for file in QUERIES[::4]], [(file,) for file in QUERIES])


@pytest.mark.parametrize("file", SOME_QUERIES, ids=lambda file: file.stem)
def test_the_bundle_s_queries_are_answered_as_they_are(spark, settings, file):
    lake = Lake(settings)
    lake.create_or_update_tables(spark, [one for one in TABLES if one in file.read_text()])
    require_existing_tables(settings, file.read_text())
    names, _ = fetch_query_result(spark, settings, file.read_text())
    assert names


@pytest.mark.parametrize(
    ("sql", "expanded"),
    [
        ("SELECT 1 FROM IDENTIFIER(:prefix || 'silver.sessions')", "SELECT 1 FROM silver.sessions"),
        ("SELECT 1 FROM identifier ( :PREFIX||'ops.ledger' ) AS l", "SELECT 1 FROM ops.ledger AS l"),
        ("SELECT 'IDENTIFIER(:prefix || ''a.b'')' -- IDENTIFIER(:prefix || 'a.b')", None),
        ("SELECT 1 FROM IDENTIFIER(:prefix || 'a.b; DROP TABLE a.b')", None),
        ("SELECT 1 FROM IDENTIFIER(:prefix || 'text.`/etc/passwd`')", None),
        ("SELECT 1 FROM IDENTIFIER(:other || 'silver.sessions')", None),
        ("SELECT '", None),
    ],
)
def test_only_a_table_s_name_takes_the_place_of_a_prefixed_one(sql, expanded):
    assert replace_prefixed_table_names(sql) == (expanded or sql)


def test_a_statement_with_a_leading_comment_is_answered(spark, settings):
    Lake(settings).create_or_update_tables(spark, [S])
    names, rows = fetch_query_result(
        spark, settings, f"-- Sessions, by '{S}'.\nSELECT '--' AS a, count(*) AS n FROM {S}"
    )
    assert (names, list(rows)) == (["a", "n"], [("--", 0)])
