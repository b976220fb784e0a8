"""Names of tables in a statement that is answered as of a batch: none may be read as it is now."""

from __future__ import annotations

import pytest

from sessionlake.cli.query import remove_silver_schema
from sessionlake.cli.session import parse_session_moment
from sessionlake.errors import UsageError
from sessionlake.silver.tables.as_of import SessionMoment


@pytest.mark.parametrize(
    ("sql", "bare", "named"),
    [
        ("SELECT * FROM silver.sessions", "SELECT * FROM `sessions`", ["sessions"]),
        ("select * from `silver`.`sessions` s", "select * from `sessions` s", ["sessions"]),
        ("SELECT 1 FROM SILVER . Sessions", "SELECT 1 FROM `sessions`", ["sessions"]),
        ("SELECT silver.sessions.topic FROM silver.sessions", "SELECT `sessions`.topic FROM `sessions`", ["sessions"]),
        ("SELECT 'silver.sessions', \"silver.sessions\"", "SELECT 'silver.sessions', \"silver.sessions\"", []),
        ("SELECT 'it''s \\' silver.sessions'", "SELECT 'it''s \\' silver.sessions'", []),
        (
            "SELECT 1 -- silver.sessions\n/* silver.sessions */",
            "SELECT 1 -- silver.sessions\n/* silver.sessions */",
            [],
        ),
        (
            "SELECT * FROM silver.session_rows JOIN silver.sessions USING (topic)",
            "SELECT * FROM `session_rows` JOIN `sessions` USING (topic)",
            ["session_rows", "sessions"],
        ),
    ],
)
def test_silver_s_tables_lose_their_schema_outside_of_strings_and_comments(
    sql: str, bare: str, named: list[str]
) -> None:
    assert remove_silver_schema(sql) == (bare, named)


@pytest.mark.parametrize(
    ("sql", "named"),
    [
        ("SELECT * FROM silver.sessions_old", "silver.sessions_old"),
        ("SELECT * FROM silver.sessions JOIN bronze.messages", "bronze.messages"),
        ("SELECT * FROM silver.sessions, ops.ledger", "ops.ledger"),
        ("SELECT * FROM silver.processor_errors", "silver.processor_errors"),
    ],
)
def test_any_other_table_is_refused(sql: str, named: str) -> None:
    with pytest.raises(UsageError, match=f"{named} cannot be read as of a batch"):
        remove_silver_schema(sql)


@pytest.mark.parametrize(
    ("ts", "milliseconds"),
    [
        ("0", 0),
        ("-1", -1),
        ("1700000000123", 1_700_000_000_123),
        ("2023-11-14T22:13:20.123Z", 1_700_000_000_123),
        ("2023-11-14 22:13:20.1239", 1_700_000_000_123),
        ("2023-11-15T00:13:20+02:00", 1_700_000_000_000),
        ("1969-12-31T23:59:59.9995", -1),
        ("2023-11-14", 1_699_920_000_000),
    ],
)
def test_a_time_is_iso_8601_in_utc_or_milliseconds(ts: str, milliseconds: int) -> None:
    assert parse_session_moment(ts, None, None) == SessionMoment(ts=milliseconds)
