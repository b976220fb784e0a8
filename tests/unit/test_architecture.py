"""The core is pure: what judges and folds imports no Spark, reads no clock and does no input or output."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import sessionlake

ROOT = Path(sessionlake.__file__).parent
PURE = sorted(
    [
        *ROOT.glob("protocol/*.py"),
        *ROOT.glob("integrity/*.py"),
        ROOT / "publish" / "messages.py",
        *(
            ROOT / "silver" / f"{name}.py"
            for name in ("fold", "changes", "moments", "net", "snapshots", "sent", "pack", "unpack", "outputs")
        ),
        *(
            ROOT / "gold" / f"{name}.py"
            for name in ("fold", "minutes", "outputs", "pack", "points", "rolling", "state")
        ),
    ]
)
OUTSIDE = {"pyspark", "py4j", "delta", "confluent_kafka", "os", "io", "pathlib", "shutil", "subprocess", "socket"}
OUTSIDE |= {"time", "datetime", "random", "threading", "asyncio", "tempfile", "logging", "urllib", "pickle", "uuid"}
ADAPTERS = ("sessionlake.lake", "sessionlake.runtime", "sessionlake.local", "sessionlake.bronze", "sessionlake.cli")
CALLS = {"open", "print", "input", "exec", "eval", "breakpoint"}


def imported(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (name.name for name in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module or ""
            yield from (f"{node.module}.{name.name}" for name in node.names)


@pytest.mark.parametrize("file", PURE, ids=lambda file: str(file.relative_to(ROOT)))
def test_a_core_module_imports_neither_spark_nor_clock_nor_what_does_io(file: Path) -> None:
    tree = ast.parse(file.read_text())
    found = set(imported(tree))
    if {name for name in found if name.startswith("io.")} == {"io.BytesIO"}:  # bytes in memory
        found -= {"io", "io.BytesIO"}
    assert {name for name in found if name.split(".")[0] in OUTSIDE} == set()
    assert {name for name in found if name.startswith(ADAPTERS) or name.endswith(".job")} == set()
    called = {node.func.id for node in ast.walk(tree) if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)}
    assert called & CALLS == set()


@pytest.mark.parametrize("file", sorted(ROOT.glob("local/truth/*.py")), ids=lambda file: file.name)
def test_the_ground_truth_shares_no_code_with_the_pipeline(file: Path) -> None:
    own = {name for name in imported(ast.parse(file.read_text())) if name.startswith("sessionlake")}
    allowed = ("sessionlake.errors", "sessionlake.local.truth")
    assert {name for name in own if not name.startswith(allowed)} == set()
    assert {name for name in imported(ast.parse(file.read_text())) if name.split(".")[0] not in known()} == set()


def known() -> set[str]:
    return {*sys.stdlib_module_names, "sessionlake"}


@pytest.mark.parametrize("file", sorted(ROOT.rglob("*.py")), ids=lambda file: str(file.relative_to(ROOT)))
def test_spark_is_imported_where_it_is_used_so_that_the_command_line_answers_at_once(file: Path) -> None:
    tree = ast.parse(file.read_text())
    at_start = ast.Module([node for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom)], [])
    heavy = {name for name in imported(at_start) if name.split(".")[0] in {"pyspark", "delta", "py4j", "matplotlib"}}
    assert heavy == set()


@pytest.mark.parametrize("file", sorted(ROOT.rglob("*.py")), ids=lambda file: str(file.relative_to(ROOT)))
def test_nothing_that_lasts_is_pickled(file: Path) -> None:
    assert {name.split(".")[0] for name in imported(ast.parse(file.read_text()))} & {"pickle", "cloudpickle"} == set()
