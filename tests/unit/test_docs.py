"""README and docs: what they tell a reader to type, configure or open is there, and their examples work."""

from __future__ import annotations

import importlib
import re
import subprocess
import sys
from collections.abc import Iterator
from itertools import takewhile
from pathlib import Path
from types import ModuleType
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
import typer.main
import yaml

from sessionlake.cli import app as cli
from sessionlake.delta.schemas.definition import DECLARED
from sessionlake.delta.schemas.tables import TABLES
from sessionlake.gold.aggregate.sources import DeclaredColumns, build_order_column_name
from sessionlake.gold.declared.tables import create_product_from_settings
from sessionlake.gold.rules.rules_file import parse_rules_file
from sessionlake.gold.sql.views import DEFINITIONS
from sessionlake.processors.testing import Sent, run
from sessionlake.settings.model import ENV_PREFIX, Settings, load_settings
from support.docs import PAGES, PROGRAM, README, ROOT, Block, Command, blocks, commands

LANGUAGES = {"sh", "text", "yaml", "python", "json", "proto", "mermaid"}
LINK = re.compile(r"\[[^\]]*\]\((?P<file>[^)#\s]*)(?:#(?P<heading>[^)\s]+))?\)")
DOTTED = re.compile(r"`(sessionlake(?:\.\w+)+)`")
NO_MODULES = {"sessionlake.yml", "sessionlake.version"}
"""The configuration file, and a header of published messages."""
INLINE = re.compile(r"`sessionlake ([^`]+)`")
ROOT_COMMAND = typer.main.get_command(cli.app)
ABOUT_THE_PROJECT = [ROOT / "CONTRIBUTING.md", ROOT / "SECURITY.md"]
PATH = re.compile(r"`((?:src|tests|docs|resources|notebooks|\.github)/[\w./-]+|\w[\w.-]*\.(?:md|toml|lock|yml))`")
INDEXES = {ROOT / "docs" / "README.md", ROOT / "docs" / "decisions" / "README.md"}
named = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)


def prose(page: Path) -> str:
    """The page without its fenced blocks."""
    return re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)


def anchors(page: Path) -> set[str]:
    """Headings as GitHub makes anchors of them."""
    headings = re.findall(r"^#+ (.+)$", prose(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def parse(words: list[str], command: Any = ROOT_COMMAND, parent: Any = None) -> None:
    """Reads the words as the command line would, down to the command that would run, and runs nothing."""
    with command.make_context(command.name or PROGRAM, list(words), parent=parent) as context:
        if hasattr(command, "resolve_command"):
            _, inner, rest = command.resolve_command(context, [*context._protected_args, *context.args])
            parse(rest, inner, context)


def columns_of(table: str) -> set[str]:
    if table in DEFINITIONS:
        return {*DEFINITIONS[table].columns}
    declared = [column.name for column in Settings().capture.declared_columns]
    names = [name for name, _ in TABLES[table].column_types]
    return {*names, *(declared if DECLARED in names else ())}


# Of SQL's words, those that the documented queries use.
SQL_WORDS = {
    "as",
    "by",
    "count",
    "current_timestamp",
    "data_quality_since",
    "desc",
    "figures_with",
    "from",
    "group",
    "hours",
    "interval",
    "limit",
    "metrics_between",
    "order",
    "select",
    "session_as_of",
    "table",
    "timestamp",
    "where",
}


def unknown_names(sql: str) -> set[str]:
    """Names in a statement that are neither SQL's, nor made by it, nor columns of the tables that it asks."""
    bare = re.sub(r"'[^']*'", "", sql)
    tables = re.findall(r"\b(?:bronze|silver|gold|ops)\.\w+", bare)
    made = re.findall(r"\bAS (\w+)", bare)
    left = set(re.findall(r"[a-z_]\w*", re.sub(r"\b(?:bronze|silver|gold|ops)\.\w+", "", bare).lower()))
    known = TABLES.keys() | DEFINITIONS.keys()
    missing = {table for table in tables if table not in known}
    columns = {name for table in tables if table in known for name in columns_of(table)}
    return missing | (left - SQL_WORDS - set(made) - columns)


@pytest.fixture
def plain_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    monkeypatch.setenv(f"{ENV_PREFIX}HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("command", commands(), ids=str)
def test_every_command_line_parses(command: Command):
    if command.program == "make":
        targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
        assert set(command.arguments) <= set(targets)
    elif command.program == "databricks":
        jobs = [yaml.safe_load(file.read_text())["resources"]["jobs"] for file in ROOT.glob("resources/*.job.yml")]
        assert command.arguments[:2] == ("bundle", "run")
        ours, _, asked = " ".join(command.arguments).partition(" -- ")
        assert {key for job in jobs for key in job} & set(ours.split())
        if asked:
            parse(asked.split())
    else:
        assert command.program == PROGRAM
        parse(list(command.arguments))


@pytest.mark.parametrize(
    "words", [["runn", "all"], ["run", "platinum"], ["session", "as-of"], ["query", "--as-of", "x"]]
)
def test_a_command_line_that_means_nothing_does_not_parse(words: list[str]):
    with pytest.raises(Exception, match=r"No such|Missing|not one of"):
        parse(words)


@pytest.mark.usefixtures("plain_environment")
@pytest.mark.parametrize("command", [c for c in commands(PROGRAM) if c.environment], ids=str)
def test_every_variable_before_a_command_is_a_setting(command: Command, monkeypatch):
    for name, value in command.environment.items():
        monkeypatch.setenv(name, value)
    load_settings()


@pytest.mark.parametrize("command", [c for c in commands(PROGRAM) if c.arguments[0] == "query"], ids=str)
def test_every_query_asks_for_tables_and_columns_that_there_are(command: Command):
    assert unknown_names(command.arguments[-1]) == set()


def test_a_query_of_a_missing_table_or_column_is_noticed():
    sql = "SELECT topic, price, nothing FROM silver.session_rows, gold.none WHERE row_id = 'r0'"
    assert unknown_names(sql) == {"nothing", "gold.none"}


@named
def test_every_command_named_in_the_text_exists_with_its_options(page: Path):
    for text in INLINE.findall(prose(page)):
        written = takewhile(
            lambda word: not re.fullmatch("[A-Z-]{2,}", word), text.partition("…")[0].partition(" -- ")[0].split()
        )
        words, command = [*written], ROOT_COMMAND
        while words and hasattr(command, "commands"):
            found = command.get_command(typer.Context(command), words.pop(0))
            assert found is not None, text
            command = found
        options = {option for parameter in command.params for option in parameter.opts}
        assert {word for word in words if word.startswith("--")} <= options, text


FRAMES = [block for block in blocks("yaml") if "\nframes:" in block.text]
RULES = [block for block in blocks("yaml") if block.text.startswith("rules:")]


@pytest.mark.parametrize("block", RULES, ids=str)
def test_every_rule_can_be_read(block: Block):
    rules, problems = parse_rules_file(block.text, DeclaredColumns(("price", "qty"), ("status",)))
    assert (bool(rules), problems) == (True, [])


@pytest.mark.parametrize("block", [block for block in blocks("yaml") if block not in [*RULES, *FRAMES]], ids=str)
def test_every_configuration_is_valid(block: Block, plain_environment: Path):
    file = plain_environment / "sessionlake.yml"
    file.write_text(block.text, encoding="utf-8")
    assert load_settings(file).model_fields_set - {"home"}


def imported(block: Block, folder: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> ModuleType:
    """The example as a module of its own, as its reader has it."""
    (folder / f"{name}.py").write_text(block.text, encoding="utf-8")
    monkeypatch.syspath_prepend(folder)
    monkeypatch.delitem(sys.modules, name, raising=False)
    return importlib.import_module(name)


@pytest.mark.parametrize("block", blocks("python"), ids=str)
def test_every_python_example_can_be_imported(block: Block, tmp_path: Path, monkeypatch):
    imported(block, tmp_path, monkeypatch, "example")


def test_the_processor_of_the_docs_says_when_a_session_was_busy(tmp_path: Path, monkeypatch):
    source = next(block for block in blocks("python") if "class BusyTimes" in block.text)
    busy = imported(source, tmp_path, monkeypatch, "busy")
    row = [{"id": "r0", "price": 1.0}]
    bodies = [
        {"type": "snapshot", "seq": 0, "ts": 0, "rows": row},
        {"type": "heartbeat", "seq": 1, "ts": 1, "rows": []},
        {"type": "heartbeat", "seq": 2, "ts": 2, "rows": []},
    ]
    sent = [Sent("s", body, time) for body, time in zip(bodies, (1_000, 2_000, 70_000), strict=True)]
    found = run(busy.BusyTimes(), sent)
    assert [tuple(record.values()) for record in found.records] == [(1_000, 61_000)]


def test_the_products_of_a_tables_rows_in_the_docs_say_how_busy_each_topic_was(plain_environment: Path):
    block = next(block for block in blocks("yaml") if "source: silver.busy_times" in block.text)
    (plain_environment / "sessionlake.yml").write_text(block.text, encoding="utf-8")
    by_hour, by_day = map(create_product_from_settings, load_settings().gold.products)
    said = [("a", 0, 60_000), ("a", 3_599_999, 1_000), ("a", 3_600_000, 5_000), ("b", 0, None)]
    names = ("topic", "ts", "value", build_order_column_name(0), build_order_column_name(1))
    rows = pa.table(dict(zip(names, zip(*((*row, at, 0) for at, row in enumerate(said)), strict=True), strict=True)))
    hours = by_hour.aggregate_source_table_rows(rows, rows)
    figures = hours.select(["topic", "times", "busy", "longest", "latest"]).to_pylist()
    assert [(*row.values(),) for row in figures] == [("a", 2, 61_000, 60_000, 1_000), ("a", 1, 5_000, 5_000, 5_000)]
    starts = pc.divide(hours["window_start"].cast(pa.int64()), 1000)
    busy = pa.table({"topic": hours["topic"], "ts": starts, "value": hours["busy"]})
    [day] = by_day.aggregate_source_table_rows(busy, busy).to_pylist()
    assert (day["topic"], day["busy"], day["busiest"]) == ("a", 66_000, 61_000)


def test_every_name_of_the_package_in_the_text_can_be_imported():
    for page in PAGES:
        for name in {*DOTTED.findall(prose(page))} - NO_MODULES:
            module, _, last = name.rpartition(".")
            try:
                importlib.import_module(name)
            except ModuleNotFoundError:
                assert hasattr(importlib.import_module(module), last), name


@named
def test_every_block_says_what_it_is(page: Path):
    assert {block.language for block in blocks() if block.page == page} <= LANGUAGES


@pytest.mark.parametrize("page", [*PAGES, *ABOUT_THE_PROJECT], ids=lambda page: page.name)
def test_every_link_leads_to_a_file_and_a_heading_that_there_are(page: Path):
    for link in LINK.finditer(prose(page)):
        if link["file"].startswith(("http://", "https://")):
            continue
        target = (page.parent / link["file"]).resolve() if link["file"] else page
        assert target.exists(), link[0]
        assert target.is_relative_to(ROOT), link[0]
        assert link["heading"] is None or link["heading"] in anchors(target), link[0]


@pytest.mark.parametrize("page", ABOUT_THE_PROJECT, ids=lambda page: page.name)
def test_every_file_named_by_its_path_and_every_target_of_make_exists(page: Path):
    text = page.read_text(encoding="utf-8")
    assert {path for path in PATH.findall(text) if not (ROOT / path).exists()} == set()
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    assert {*re.findall(r"`make ([a-z-]+)", text)} <= {*targets}


def test_every_page_is_reached_from_the_readme_or_a_list_of_pages():
    pages = {README, *INDEXES}
    linked = {(page.parent / link["file"]).resolve() for page in pages for link in LINK.finditer(prose(page))}
    assert {*PAGES} - {README} <= linked


@pytest.mark.parametrize("page", sorted((ROOT / "docs" / "how-to").glob("*.md")), ids=lambda page: page.name)
def test_a_how_to_begins_with_the_command(page: Path):
    title, empty, *rest = page.read_text(encoding="utf-8").splitlines()
    assert (title[:2], empty) == ("# ", "")
    assert any(line.startswith("```") for line in rest[:6])


def test_the_site_has_every_page_and_no_broken_link(tmp_path: Path):
    nav = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    assert [page.name for page in PAGES[1:] if f"{page.relative_to(ROOT / 'docs')}\n" not in nav] == []
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path)]
    built = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (built.returncode, built.stdout) == (0, "")
    assert (tmp_path / "tutorial" / "first-table" / "index.html").exists()


DECISIONS = sorted((ROOT / "docs" / "decisions").glob("[0-9]*.md"))


def test_decisions_are_numbered_without_a_hole():
    assert [page.name[:4] for page in DECISIONS] == [f"{number:03}-" for number in range(1, len(DECISIONS) + 1)]


@pytest.mark.parametrize("page", DECISIONS, ids=lambda page: page.name)
def test_a_decision_has_its_number_and_its_parts_in_order(page: Path):
    text = page.read_text(encoding="utf-8")
    assert text.startswith(f"# {page.name[:3]}. ")
    parts = re.findall(r"^\*\*(\w+)\.\*\*", text, re.MULTILINE)
    assert parts in (["Context", "Decision", "Consequences"], ["Context", "Decision", "Consequences", "Measurement"])


@pytest.mark.parametrize(("file", "lines"), [("README.md", 120), ("docs/reference/glossary.md", 60)])
def test_what_is_to_be_short_is_short(file: str, lines: int):
    assert len((ROOT / file).read_text(encoding="utf-8").splitlines()) <= lines


def test_every_table_named_exists():
    for page in PAGES:
        found = re.findall(r"`((?:bronze|silver|gold|ops)\.[a-z]\w+)`", prose(page))
        assert {*found} - TABLES.keys() - DEFINITIONS.keys() <= SETTINGS | MADE, page.name


SETTINGS = {f"{section}.{key}" for section in ("bronze", "silver", "gold") for key in
            type(getattr(Settings(), section)).model_fields}  # fmt: skip
MADE = {"silver.busy_times", "gold.per_session_1m_final", "gold.placed"}
"""Tables of the processor, the product and the enriched table that are shown."""
