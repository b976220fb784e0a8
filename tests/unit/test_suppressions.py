"""Every suppression of a lint or type check says on its line why it is there."""

from __future__ import annotations

import io
import re
import tokenize
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDERS = ("src", "tests", "notebooks")
CODES = r"[A-Z]+\d+(?:[,\s]+[A-Z]+\d+)*"
OF_RUFF = rf"(?:(?:ruff|flake8)\s*:\s*)?noqa\b(?:\s*:\s*{CODES})?"
OF_MYPY = r"type\s*:\s*ignore\b(?:\[[^\]]*\])?|mypy\s*:.*"
SUPPRESSION = re.compile(rf"#\s*(?:{OF_RUFF}|{OF_MYPY})", re.IGNORECASE)
WORDS = 3
"""A reason of fewer words says too little: `needed`, `as above`."""


def unexplained(source: str) -> list[int]:
    """Lines whose comment suppresses a check without a reason; text in strings is no comment."""
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    comments = {token.start[0]: token.string for token in tokens if token.type == tokenize.COMMENT}
    found = {line: comment for line, comment in comments.items() if SUPPRESSION.search(comment)}
    return [line for line, comment in found.items() if len(re.findall(r"\w+", SUPPRESSION.sub("", comment))) < WORDS]


def test_every_suppression_has_a_reason_on_its_line() -> None:
    files = [file for folder in FOLDERS for file in sorted((ROOT / folder).rglob("*.py"))]
    assert len(files) > 500
    found = {file: unexplained(file.read_text(encoding="utf-8")) for file in files}
    assert [f"{file.relative_to(ROOT)}:{line}" for file, lines in found.items() for line in lines] == []


@pytest.mark.parametrize(
    "line",
    [
        "x = 1  # noqa: S101",
        "x = 1  # noqa",
        "x = 1  #noqa:S101,PLR2004",
        "x = 1  # noqa: S101 - needed",
        "x = 1  # noqa: S101 - as above",
        "x = 1  # type: ignore[arg-type]",
        "x = 1  # type: ignore",
        "x = 1  # type: ignore[arg-type]  # noqa: S101",
        "# ruff: noqa: S101",
        "# mypy: ignore-errors",
    ],
)
def test_a_suppression_without_a_reason_is_found(line: str) -> None:
    assert unexplained(line) == [1]


@pytest.mark.parametrize(
    "line",
    [
        "x = 1  # noqa: S101 - Spark has no keyword",
        "x = 1  # noqa: S101, PLR2004 (Spark has no keyword)",
        "x = 1  # type: ignore[arg-type, misc]  # a fake of Spark",
        'x = "y  # noqa: S101"',
        "x = '''\n# type: ignore\n'''",
        "x = 1  # the number of types",
    ],
)
def test_a_reason_is_accepted_and_a_string_is_no_suppression(line: str) -> None:
    assert unexplained(line) == []
