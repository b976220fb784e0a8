"""The runbook has a heading for every alert and every exit code that there is, and for no other."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import yaml

import sessionlake
from sessionlake import errors
from sessionlake.cli.failures import INTERRUPTED
from support.docs import ROOT

PACKAGE = Path(sessionlake.__file__).parent
PAGE = (ROOT / "docs" / "how-to" / "runbook.md").read_text(encoding="utf-8")


def headed(pattern: str) -> list[str]:
    return re.findall(rf"^### {pattern}$", PAGE, re.MULTILINE)


def exits(tree: ast.AST) -> Iterator[int]:
    """Codes that are written down: as an error's own, or where a command ends."""
    for node in ast.walk(tree):
        names = [target.id for target in getattr(node, "targets", []) if isinstance(target, ast.Name)]
        if isinstance(node, ast.Assign) and names == ["exit_code"]:
            yield ast.literal_eval(node.value)
        if isinstance(node, ast.Call) and ast.unparse(node.func) in {"typer.Exit", "SystemExit", "sys.exit"}:
            yield from (arg.value for arg in node.args if isinstance(arg, ast.Constant) and type(arg.value) is int)


def test_every_alert_has_its_heading_and_every_heading_its_alert():
    files = sorted((ROOT / "resources").glob("*.alert.yml"))
    alerts = [name for file in files for name in yaml.safe_load(file.read_text())["resources"]["alerts"]]
    assert sorted(headed(r"Alert `(\w+)`")) == sorted(alerts) != []


def test_every_exit_code_has_its_heading_and_every_heading_its_code():
    codes = {code for file in PACKAGE.rglob("*.py") for code in exits(ast.parse(file.read_text(encoding="utf-8")))}
    assert sorted(map(int, headed(r"Exit code (\d+)"))) == sorted({0, INTERRUPTED} | codes)
    assert {1, 2, 3} <= codes


def test_every_kind_of_error_is_in_the_runbook_under_its_exit_code():
    sections = re.split(r"^### Exit code (\d+)$", PAGE, flags=re.MULTILINE)
    text = {int(code): body for code, body in zip(sections[1::2], sections[2::2], strict=True)}
    kinds = [
        kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, errors.SessionlakeError)
    ]
    missing = [kind.__name__ for kind in kinds if f"`{kind.__name__}`" not in text[kind.exit_code].split("\n## ")[0]]
    assert missing == []
