"""Tables on a terminal that is too narrow for them."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest

from sessionlake.cli.session import show_session_table
from sessionlake.cli.show import OutputFormat, show_rows
from sessionlake.cli.status import show_layer_statuses
from sessionlake.history.status import STATUS_COLUMNS, LayerStatus


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


LAYERS = [
    LayerStatus(
        layer, batches=22, last_batch=21, messages=1_045_495, rows=90_612, behind=0, duplicates=26, quarantined=1365,
        committed_at=datetime(2026, 11, 27, 15, 3, 25, 656_000, UTC), age_seconds=262.8,
    )
    for layer in ("bronze", "silver", "silver_tables", "gold")
]  # fmt: skip


@pytest.fixture(autouse=True)
def terminal_with_a_width(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("NO_COLOR", "1")


def plain_text(styled: str) -> str:
    return re.sub(r"\x1b\[[\d;]*m", "", styled)


def words_of_lines(text: str) -> list[list[str]]:
    return [line.split() for line in plain_text(text).splitlines() if line.strip()]


def shown(names: Sequence[str], rows: Sequence[Sequence[Any]]) -> list[list[str]]:
    out = Terminal()
    show_rows(names, rows, OutputFormat.TABLE, out)
    return words_of_lines(out.getvalue())


@pytest.mark.parametrize("width", [60, 80, 120, 200])
def test_the_status_breaks_no_name_and_no_number_at_any_usual_width(width: int, monkeypatch):
    monkeypatch.setenv("COLUMNS", str(width))
    out = Terminal()
    monkeypatch.setattr("sys.stdout", out)
    show_layer_statuses(LAYERS, OutputFormat.TABLE)
    plain = plain_text(out.getvalue())
    words = plain.split()
    assert max(map(len, plain.splitlines())) <= width
    assert {*STATUS_COLUMNS, *(layer.layer for layer in LAYERS)} <= {*words}
    assert [words.count(text) for text in ("1045495", "2026-11-27", "15:03:25Z")] == [4, 4, 4]


def test_a_table_that_fits_exactly_is_not_turned(monkeypatch):
    names, rows = ["first", "second"], [["a", 1], ["b", 2]]
    monkeypatch.setenv("COLUMNS", "16")
    assert shown(names, rows)[0] == names
    monkeypatch.setenv("COLUMNS", "15")
    assert shown(names, rows)[0] == ["first", "a"]


def test_a_long_text_alone_does_not_turn_a_table(monkeypatch):
    monkeypatch.setenv("COLUMNS", "40")
    lines = shown(["check", "found"], [["files", "all files of twenty-six tables exist and can be read"]])
    assert lines[0] == ["check", "found"]


def test_every_row_of_a_turned_table_is_shown_once(monkeypatch):
    monkeypatch.setenv("COLUMNS", "30")
    names = [f"column_{number}" for number in range(9)]
    lines = shown(names, [[row * 100 + number for number in range(9)] for row in range(7)])
    seen = [word for line in lines for word in line if word.isdigit()]
    assert sorted(map(int, seen)) == sorted(row * 100 + number for row in range(7) for number in range(9))


def test_a_file_gets_the_table_as_it_is(monkeypatch):
    monkeypatch.setenv("COLUMNS", "20")
    out = io.StringIO()
    names = [f"column_{number}" for number in range(9)]
    show_rows(names, [range(9)], OutputFormat.TABLE, out)
    assert words_of_lines(out.getvalue())[0] == names


def test_a_session_is_shown_to_people_without_the_columns_of_other_feeds(capsys):
    table = pa.table({"row_id": ["a", "b"], "temperature": [20.5, None], "price": pa.nulls(2, pa.float64())})
    show_session_table(table, OutputFormat.TABLE)
    printed = capsys.readouterr()
    assert words_of_lines(printed.out)[0] == ["row_id", "temperature"]
    assert printed.err == "without columns that have no value: price\n"
    show_session_table(table, OutputFormat.JSON)
    printed = capsys.readouterr()
    assert [[*json.loads(line)] for line in printed.out.splitlines()] == [table.column_names] * 2
    assert printed.err == ""


def test_a_session_without_rows_is_shown_with_all_columns(capsys):
    show_session_table(pa.table({"row_id": pa.nulls(0, pa.string()), "price": pa.nulls(0)}), OutputFormat.TABLE)
    assert words_of_lines(capsys.readouterr().out)[0] == ["row_id", "price"]
