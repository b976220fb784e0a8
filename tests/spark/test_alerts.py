"""What the alerts of the bundle ask: of layers that wait, stand still, were rebuilt or emptied."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from sessionlake.delta.lake import Lake
from sessionlake.delta.schemas.names import BRONZE, CHANGES, EVENTS, GOLD, LEDGER, SILVER, SILVER_TABLES
from sessionlake.settings.model import Settings
from support.lakes import write_rows

QUERIES = Path(__file__).parents[2] / "resources" / "queries"
MINUTE = timedelta(minutes=1)
Write = Callable[..., None]
Ask = Callable[[str], list[dict[str, Any]]]


@pytest.fixture
def lake(spark: Any, settings: Settings) -> Lake:
    found = Lake(settings)
    found.create_or_update_tables(spark, [LEDGER, EVENTS])
    return found


@pytest.fixture
def entry(spark: Any, lake: Lake) -> Write:
    """Writes a row of the ledger."""

    def write(
        layer: str, batch: int, minutes: float, *, app: str = "q", to: int | None = None, last: int | None = None,
        changes: int = 1, **counts: int,
    ) -> None:  # fmt: skip
        span = {"topic": "t", "partition": 0, "first": 0, "last": last, "messages": 1}
        wrote = {"table": CHANGES, "version": batch, "rows": changes}
        row = {
            "layer": layer, "app_id": app, "batch_id": batch, "source": "any", "source_to": to,
            "offsets": [] if last is None else [span], "outputs": [wrote] if layer == SILVER else [],
            "committed_at": datetime.now(UTC) - minutes * MINUTE, **counts,
        }  # fmt: skip
        write_rows(spark, lake, LEDGER, [row])

    return write


@pytest.fixture
def ask(spark: Any, lake: Lake) -> Ask:
    lake.make_tables_queryable_by_sql(spark)

    def asked(name: str) -> list[dict[str, Any]]:
        return [row.asDict() for row in spark.sql((QUERIES / f"{name}.sql").read_text(), {"prefix": ""}).collect()]

    return asked


def waiting(ask: Ask) -> dict[str, tuple[int, int, int]]:
    """By layer: what waits, for how many minutes, and whether the layer is stopped."""
    return {row["layer"]: (row["waiting"], row["waiting_seconds"] // 60, row["stopped"]) for row in ask("backlog")}


@pytest.mark.soak
def test_a_layer_waits_for_what_it_has_yet_to_take_in_and_for_nothing_else(entry: Write, ask: Ask) -> None:
    idle = dict.fromkeys((SILVER, SILVER_TABLES, GOLD), (0, 0, 0))
    assert waiting(ask) == idle
    entry(BRONZE, 0, 60, last=9)
    entry(SILVER, 0, 50, last=9)
    entry(SILVER_TABLES, 0, 50, to=0)
    entry(GOLD, 0, 50, to=0)
    entry(SILVER, 1, 40, last=9, changes=0)  # of duplicates alone: there is nothing for gold
    entry(SILVER_TABLES, 1, 40, to=1)
    entry(BRONZE, 1, 30, last=12)
    assert waiting(ask) == idle | {SILVER: (3, 30, 1)}
    entry(SILVER, 2, 20, last=12)
    assert waiting(ask) == idle | {SILVER_TABLES: (1, 20, 1), GOLD: (1, 20, 1)}
    entry(SILVER_TABLES, 2, 10, to=2)
    entry(GOLD, 1, 10, to=2)
    # Silver is rebuilt, and gold goes on where it is.
    entry(SILVER, 3, 30, app="rebuild:1", last=12)
    entry(SILVER_TABLES, 3, 30, app="rebuild:1", to=3)
    assert waiting(ask) == idle
    # Gold is emptied: it has all of silver's batches to take in, since then.
    entry(GOLD, 3, 5, app="rebuild:2:gold")
    assert waiting(ask) == idle | {GOLD: (3, 5, 0)}
    entry(GOLD, 0, 4, app="r", to=2)
    assert waiting(ask) == idle


def test_what_was_judged_once_more_is_not_reported_as_if_it_had_come(
    spark: Any, lake: Lake, entry: Write, ask: Ask
) -> None:
    entry(SILVER, 0, 90, messages=10, quarantined=5)
    entry(SILVER, 1, 30, messages=10, quarantined=1)
    entry(SILVER, 2, 20, app="rebuild:1", messages=20, quarantined=6)
    acts = [(0, "isolated"), (1, "isolated"), (1, "recorded"), (1, "dropped"), (2, "isolated")]
    write_rows(spark, lake, EVENTS, [{"topic": "t", "_batch": batch, "action": action} for batch, action in acts])
    assert ask("violations") == [{"violations": 2}]
    assert ask("quarantine_rate") == [{"quarantined": 1, "messages": 10, "percent": 10.0}]
    assert sum(row["messages"] for row in ask("throughput")) == 20
