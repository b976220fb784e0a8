"""Characters that a terminal obeys, or that nobody sees, are shown as escapes wherever text leaves the command line."""

from __future__ import annotations

import ast
import io
import json
import sys
import unicodedata
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import sessionlake
import sessionlake_lab
from sessionlake.cli.context import print_to_stderr
from sessionlake.cli.show import (
    OutputFormat,
    create_console,
    create_escaped_rich_text,
    create_terminal_table,
    show_rows,
    write_line,
    write_text,
)
from sessionlake.visible import create_escaping_stream, escape_invisible, escape_surrogates, to_json_line

HIDDEN = {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}
HOSTILE = {
    "\x1b]52;c;aGk=\x07": r"\x1b]52;c;aGk=\x07",  # writes to the clipboard
    "\x9b2J\x90q\x9d": r"\x9b2J\x90q\x9d",  # the same kind of commands in one character
    "\x7f\x08\x00\r\t": r"\x7f\x08\x00\r\t",
    "a\u202eb\u2066c\u061c": r"a\u202eb\u2066c\u061c",  # the line runs the other way
    "a\u200bb\u200d\ufeff\u00ad\u2060": r"a\u200bb\u200d\ufeff\xad\u2060",
    "a\u2028b\u2029c": r"a\u2028b\u2029c",
    "\ud800x\udfff": r"\ud800x\udfff",
    "\ue000\U000e0041\u0378\U0010ffff": r"\ue000\U000e0041\u0378\U0010ffff",
    "\u3164\u115f\ufe0f\u034f": r"\u3164\u115f\ufe0f\u034f",
}
SEEN = ["plain", "ä ß 中文 😀 नि é", "[red]x[/red]", ":smile:", "a\nb", "\\x1b", "\u00a0"]
texts = st.text(st.characters(), max_size=30) | st.sampled_from([*HOSTILE, *SEEN])


def harmless(text: str) -> bool:
    return all(c == "\n" or unicodedata.category(c) not in HIDDEN for c in text)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(("text", "shown"), HOSTILE.items())
def test_what_nobody_sees_is_shown_as_an_escape(text, shown):
    assert escape_invisible(text) == shown


@pytest.mark.parametrize("text", SEEN)
def test_what_is_seen_stays(text):
    assert escape_invisible(text) == text


@given(texts)
def test_nothing_hidden_is_left_and_once_is_enough(text):
    assert harmless(escape_invisible(text))
    assert escape_invisible(escape_invisible(text)) == escape_invisible(text)


@given(st.dictionaries(texts, texts | st.lists(texts) | st.none(), max_size=4))
def test_json_has_nothing_hidden_is_one_line_and_says_the_same(value):
    line = to_json_line(value)
    assert harmless(line)
    assert "\n" not in line
    assert json.loads(line) == value
    line.encode()


@given(texts, texts)
@pytest.mark.parametrize("out", [io.StringIO, Terminal])
def test_a_table_has_nothing_hidden_but_the_consoles_own_codes(out, name, cell):
    shown = out()
    show_rows([name], [[cell], [{"k": [cell]}], [cell.encode("utf-8", "replace")]], OutputFormat.TABLE, shown)
    text = shown.getvalue()
    codes = ("\x1b[1m", "\x1b[0m", "\x1b[2m") if out is Terminal else ()
    for code in codes:
        text = text.replace(code, "")
    assert harmless(text)


def test_a_line_break_of_the_data_begins_no_line_of_a_table():
    out = io.StringIO()
    show_rows(["a\nb", "c"], [["x\nforged", 1]], OutputFormat.TABLE, out)
    lines = [line.split() for line in out.getvalue().splitlines() if line.strip()]
    assert lines[0::2] == [["a\\nb", "c"], ["x\\nforged", "1"]]


@given(texts)
def test_a_console_shows_what_was_not_made_visible_before(text):
    out = io.StringIO()
    create_console(out).print(text)
    assert harmless(out.getvalue())


def test_brackets_and_colons_of_the_data_are_no_markup():
    out = io.StringIO()
    show_rows(["[bold]n[/]"], [["[red]x[/red] :smile: [link=http://x]y[/link]"]], OutputFormat.TABLE, out)
    assert "[bold]n[/]" in out.getvalue()
    assert "[red]x[/red] :smile: [link=http://x]y[/link]" in out.getvalue()
    create_console(out).print(
        "[red]y[/red]", create_terminal_table(["a"], [["b"]], title="[t]"), create_escaped_rich_text("[z]", "bold")
    )
    assert all(kept in out.getvalue() for kept in ("[red]y[/red]", "[t]", "[z]"))


@pytest.mark.parametrize("text", HOSTILE)
def test_csv_is_the_data_as_it_is_unless_a_terminal_reads_it(text):
    out, terminal = io.StringIO(newline=""), Terminal(newline="")
    show_rows([text], [[text]], OutputFormat.CSV, out)
    show_rows([text], [[text]], OutputFormat.CSV, terminal)
    assert escape_surrogates(text) in out.getvalue().replace('"', "")
    assert harmless(terminal.getvalue())
    out.getvalue().encode()


@pytest.mark.parametrize("text", HOSTILE)
def test_lines_for_people_are_visible_and_lines_for_programs_unless_a_terminal_reads_them(text, monkeypatch):
    out = io.StringIO()
    monkeypatch.setattr(sys, "stdout", out)
    write_text(text)
    assert out.getvalue() == f"{escape_invisible(text)}\n"
    monkeypatch.setattr(sys, "stdout", terminal := Terminal())
    write_line(text)
    assert harmless(terminal.getvalue())


@pytest.mark.parametrize("text", HOSTILE)
def test_whatever_is_written_to_standard_error_is_visible(text, monkeypatch):
    out = io.StringIO()
    monkeypatch.setattr(sys, "stderr", create_escaping_stream(out))
    print_to_stderr(text)
    sys.stderr.writelines([text, text])
    assert harmless(out.getvalue())


def test_no_command_writes_past_the_one_way_out():
    """`show.py` alone touches standard output or makes a console; standard error is made visible where it begins."""
    root, lab = Path(sessionlake.__file__).parent, Path(sessionlake_lab.__file__).parent
    found = []
    for file in [*root.glob("cli/*.py"), *lab.glob("cli/*.py")]:
        if file.name == "show.py":
            continue
        tree = ast.parse(file.read_text())
        for node in ast.walk(tree):
            text = ast.unparse(node) if isinstance(node, ast.Call) else ""
            if text.startswith(
                ("print(", "typer.echo(", "click.echo(", "sys.stdout.write(", "Console(", "rich.print(")
            ):
                found.append(f"{file.name}: {text[:60]}")
    assert found == []
