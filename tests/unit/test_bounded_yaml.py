"""YAML of any kind is read within bounds: what goes beyond ends with exit code 2, the file and the line."""

from __future__ import annotations

import re
import time
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from sessionlake.cli import app as cli
from sessionlake.databricks.bundle.files import FileError, read_document
from sessionlake.gold.aggregate.sources import DeclaredColumns
from sessionlake.gold.rules.rules_file import RuleProblem, parse_rule_text, parse_rules_file
from sessionlake.settings import bounded_yaml
from sessionlake.settings.bounded_yaml import MAX_BYTES, MAX_DEPTH, BoundedLoader

LAUGHS = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]\n" for n in range(1, 10)
)
MERGES = "a0: &a0 {k0: 1}\n" + "".join(f"a{n}: &a{n}\n  <<: [{', '.join([f'*a{n - 1}'] * 10)}]\n" for n in range(1, 10))

FEW = 1000
MANY = "kafka:\n" + "  - a\n" * (FEW + 1)
# What is wrong, the text of the file, the line that is named, and what is said.
BAD = [
    ("aliases that stand for a billion values", LAUGHS, 5, "more than 100,000 values"),
    ("merges of merges", MERGES, 11, "more than 100,000 values"),
    ("many values", MANY, 1001, "more than 1,000 values"),
    ("deep brackets", "kafka: " + "[" * 100_000, 1, "nested deeper than 64"),
    ("deep braces", "kafka: " + "{a: " * 5000, 1, "nested deeper than 64"),
    ("deep lines", "".join(f"{' ' * n}a:\n" for n in range(200)), 64, "nested deeper than 64"),
    ("a list in itself", "kafka:\n  options: &a [*a]\n", 2, "is inside the value that it stands for"),
    ("a mapping in itself", "kafka: &a\n  options: {x: *a}\n", 2, "is inside the value that it stands for"),
    ("an alias of nothing", "kafka:\n  options: *b\n", 2, "*b stands for nothing"),
    ("a date that is none", "kafka:\n  x: 2026-99-99\n", 2, "cannot be read as timestamp"),
    ("a number that is none", "kafka:\n  x: 0x_\n", 2, "cannot be read as int"),
    ("a number of a million digits", "kafka:\n  x: " + "9" * 500_000 + "\n", 2, "cannot be read as int"),
    ("a Python object", "kafka:\n  x: !!python/object/apply:os.system [id]\n", 2, "object/apply:os.system' is unknown"),
    ("a list as a key", "kafka:\n  ? [a]\n  : 1\n", 2, "unhashable key"),
    ("a control character", "kafka:\n  x: \x01\n", 2, "special characters are not allowed"),
    ("two documents", "kafka: {}\n---\nkafka: {}\n", 2, "but found another document"),
    ("a tab", "kafka:\n\tx: 1\n", 2, "the line has a tab"),
]  # fmt: skip
NAMES = [name for name, *_ in BAD]
BADS = [rest for _, *rest in BAD]
TEXTS = [text for _, text, *_ in BAD]


@pytest.fixture(autouse=True)
def _lower_bound_for_many_values(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """PyYAML takes seconds for a hundred thousand values; those that aliases stand for are counted without it."""
    if "[many values]" in request.node.name:
        monkeypatch.setattr(bounded_yaml, "MAX_NODES", FEW)


def called(*words: str, **environment: str) -> tuple[int, str]:
    found = CliRunner().invoke(cli.app, list(words), env=environment)
    assert "Traceback" not in found.stderr
    return found.exit_code, found.stderr


@pytest.mark.parametrize(("text", "line", "why"), BADS, ids=NAMES)
def test_a_bad_configuration_ends_with_2_and_names_file_and_line(tmp_path, text, line, why):
    file = tmp_path / "own.yml"
    file.write_text(text)
    begun = time.monotonic()
    code, said = called("status", "--config", str(file), SESSIONLAKE_HOME=str(tmp_path / "home"))
    assert time.monotonic() - begun < 60
    assert code == 2
    assert f"{file}, line {line} is not valid YAML" in said
    assert why in said
    assert len(said) < 2000


@pytest.mark.parametrize("text", TEXTS, ids=NAMES)
def test_a_bad_file_of_rules_ends_with_2_and_names_file_and_line(tmp_path, text):
    file = tmp_path / "rules.yml"
    file.write_text(f"rules:\n  - name: a\n    when: {{}}\nx: 1\n{text}")
    code, said = called("rules", "check", str(file), SESSIONLAKE_HOME=str(tmp_path / "home"))
    assert code == 2
    assert re.search(rf"{file}:\d+:\d+: ", said)
    assert len(said) < 2000


@pytest.mark.parametrize("text", TEXTS, ids=NAMES)
def test_a_bad_text_among_the_rules_of_the_lake_is_reported_alone(text):
    assert isinstance(parse_rule_text("r", text, DeclaredColumns({})), RuleProblem)


@pytest.mark.parametrize(("text", "line"), [(text, line) for text, line, _ in BADS], ids=NAMES)
def test_a_bad_file_of_a_bundle_names_file_and_line(tmp_path, text, line):
    file = tmp_path / "databricks.yml"
    file.write_text(text)
    with pytest.raises(FileError) as error:
        read_document(file)
    assert error.value.line == line


def test_a_file_that_does_not_end_is_not_read_to_its_end(tmp_path):
    code, said = called("status", "--config", "/dev/zero", SESSIONLAKE_HOME=str(tmp_path))
    assert (code, f"more than {MAX_BYTES:,} bytes" in said) == (2, True)
    code, said = called("rules", "check", "/dev/zero", SESSIONLAKE_HOME=str(tmp_path))
    assert (code, f"more than {MAX_BYTES:,} bytes" in said) == (2, True)


def test_at_the_bounds_all_is_read(monkeypatch):
    deepest = "[" * MAX_DEPTH + "]" * MAX_DEPTH
    yaml.load(deepest, BoundedLoader)  # noqa: S506 - it is a safe loader
    monkeypatch.setattr(bounded_yaml, "MAX_NODES", 7)
    assert yaml.load("[&a [1, 2], *a]", BoundedLoader) == [[1, 2], [1, 2]]  # noqa: S506 - it is a safe loader
    with pytest.raises(yaml.YAMLError, match="more than 7 values"):
        yaml.load("[&a [1, 2], *a, 3]", BoundedLoader)  # noqa: S506 - it is a safe loader


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(st.characters(categories=["L", "N"]), max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text("abc", max_size=3), inner, max_size=4),
    max_leaves=30,
)


@given(values)
def test_within_the_bounds_it_reads_what_pyyaml_does(value):
    shared = {"a": value, "b": value}
    text = yaml.safe_dump(shared)
    assert yaml.load(text, BoundedLoader) == yaml.safe_load(text) == shared  # noqa: S506 - it is a safe loader


def test_a_rules_file_without_a_fault_is_read_as_before():
    assert parse_rules_file("rules: []\n", DeclaredColumns({})) == ([], [])


def test_a_byte_order_mark_before_a_configuration_is_none_of_its_text(tmp_path: Path):
    file = tmp_path / "own.yml"
    file.write_bytes(b"\xef\xbb\xbfcapture: {integrity: strict}\n")
    assert read_document(file).content == {"capture": {"integrity": "strict"}}


@pytest.mark.parametrize(
    ("text", "line", "why"),
    [
        ("kafka:\n\ttopic_pattern: a\n", 2, "the line has a tab. Indent with spaces instead"),
        ("capture:\n  format: json\n   integrity: once\n", 3, "a colon is where a value should be"),
        ("capture:\n  columns: {a: double}\n   integrity: once\n", 3, "indented otherwise than those above"),
        ("capture:\n  columns: {a: double\n", 2, "a { is not closed, or a comma is missing"),
        ("capture:\n  columns: [a, b\nkafka: {}\n", 3, "a [ is not closed, or a comma is missing"),
        ('kafka:\n  topic_pattern: "a\n\nbronze: {}\n', 2, "a quote is not closed"),
        ('kafka:\n  topic_pattern: "capture\\..+"\n', 2, "\\ before '.' is no escape. Use single quotes"),
        ("kafka:\n  topic_pattern\n  options: {}\n", 3, "a colon is where a value should be"),
        ("kafka:\n  - a\n  b\n  options: {}\n", 4, "a key has no value behind it"),
        ("kafka: *own\n", 1, "*own stands for nothing. Write &own before the value"),
        ("kafka: !own x\n", 1, "the tag '!own' is unknown"),
        ("kafka: {topic_pattern: @a}\n", 1, "a value begins with '@'. Put the value in quotes"),
    ],
)
def test_invalid_yaml_is_explained_in_plain_words_with_its_line(tmp_path, text, line, why):
    file = tmp_path / "sessionlake.yml"
    file.write_text(text)
    with pytest.raises(FileError) as caught:
        read_document(file)
    assert caught.value.line == line
    assert why in str(caught.value)
