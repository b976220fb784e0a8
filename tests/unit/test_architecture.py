"""The core is pure: what judges and folds imports no Spark, reads no clock and does no input or output."""

from __future__ import annotations

import ast
import pkgutil
import re
import sys
from collections.abc import Callable, Iterator
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path
from statistics import median

import pytest

import sessionlake
import sessionlake_lab

ROOT = Path(sessionlake.__file__).parent
LAB = Path(sessionlake_lab.__file__).parent
TESTS = Path(__file__).parents[1]
# From the bottom up: a room may use itself and those before it. A folder not named here has no place in the house.
# The docstring of `gold` and of `silver` lists the rooms within.
HOUSE = (
    "visible",
    "errors",
    "build",
    "protocol",
    "feeds",
    "settings",
    "feed_testing",
    "integrity",
    "local",
    "spark",
    "kafka",
    "delta.schemas",
    "delta.storage",
    "delta.folders",
    "delta.catalog",
    "delta",
    "ledger",
    "streaming",
    "bronze",
    "silver",
    "gold",
    "processors",
    "publish",
    "examples",
    "history",
    "history.report",
    "notebook",
    "operations.rebuild",
    "operations.recover",
    "operations.retention",
    "operations",
    "operations.forgetting",
    "operations.resharding",
    "databricks",
    "cli",
    "__main__",
)
LISTED = ("silver", "gold")


def listed(room: str) -> dict[str, str]:
    """The parts of a package from the bottom up, and what each is, as the package's docstring says."""
    text = ast.get_docstring(ast.parse((ROOT / room / "__init__.py").read_text())) or ""
    return dict(re.findall(r"^- `(\w+)`: (.+)$", text, re.MULTILINE))


PARTS = {room: listed(room) for room in LISTED}
ROOMS = tuple(name for room in HOUSE for name in (*(f"{room}.{part}" for part in PARTS.get(room, ())), room))
PURE_PARTS = tuple(
    f"{room}.{part}" for room in LISTED for part, what in PARTS[room].items() if what.startswith("pure;")
)
PURE_ROOMS = ("protocol", "integrity", *PURE_PARTS)
PURE = sorted(file for room in PURE_ROOMS for file in ROOT.glob(f"{room.replace('.', '/')}/*.py"))
PURE_BESIDE = {
    "sessionlake.errors",
    "sessionlake.settings.capture",
    "sessionlake.settings.section",
    "sessionlake.settings.bounded_yaml",
    "sessionlake.settings.texts",
}
OUTSIDE = {"pyspark", "py4j", "delta", "confluent_kafka", "os", "io", "pathlib", "shutil", "subprocess", "socket"}
OUTSIDE |= {"time", "datetime", "random", "threading", "asyncio", "tempfile", "logging", "urllib", "pickle", "uuid"}
HEAVY = {"pyspark", "delta", "py4j", "matplotlib", "databricks"}
OF_FOLDERS = {"delta.folders", "delta.storage", "delta.schemas", "spark", "local", "protocol", "errors"}
"""What `delta.folders` is made of: it could be a library, to which folders, rows and conditions are arguments."""
OF_A_LOG = re.compile(r"_delta_log|_last_checkpoint|_change_data|checkpoint\.parquet|deletion_vector_|^deletionVector$")
CALLS = {"open", "print", "input", "exec", "eval", "breakpoint"}


@cache
def parsed(file: Path) -> ast.Module:
    """A module; each is looked at from several sides."""
    return ast.parse(file.read_text())


@cache
def imported_by(file: Path) -> frozenset[str]:
    """What a module imports, wherever in it that is written."""
    return frozenset(imported(parsed(file)))


def imported(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (name.name for name in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module or ""
            yield from (f"{node.module}.{name.name}" for name in node.names)


def name_of(file: Path) -> str:
    parts = file.relative_to(ROOT.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {name_of(file): file for file in sorted(ROOT.rglob("*.py"))}


def room_of(module: str) -> str:
    """The innermost room that a module is in."""
    inside = module.removeprefix("sessionlake").removeprefix(".")
    if not inside:
        return "sessionlake"
    found = [room for room in ROOMS if inside == room or inside.startswith(f"{room}.")]
    assert found, f"{module} is in no room of the house: give it one in ROOMS"
    return max(found, key=len)


@cache
def uses(module: str) -> set[str]:
    """The modules of the package that a module imports, wherever in it that is written."""
    found = {name for name in imported_by(MODULES[module]) if name in MODULES}
    # `from package import name` names the package, too, of which nothing is taken if the name is a module of it.
    return {name for name in found if not any(other.startswith(f"{name}.") for other in found)} - {module}


def of_every_module(fault: Callable[[Path], object]) -> dict[str, object]:
    """What is wrong, by module: one test for all, since each of a thousand costs more than what it looks at."""
    return {module: found for module, file in MODULES.items() if (found := fault(file))}


def test_imports_run_down_only() -> None:
    def upward(file: Path) -> set[str]:
        mine = room_of(module := name_of(file))
        allowed = set(ROOMS) if mine == "sessionlake" else {*ROOMS[: ROOMS.index(mine) + 1], "sessionlake"}
        return {name for name in uses(module) if room_of(name) not in allowed}

    assert of_every_module(upward) == {}


@pytest.mark.parametrize("room", LISTED)
def test_a_package_lists_all_of_its_parts(room: str) -> None:
    modules = {file.stem for file in (ROOT / room).glob("*.py")} - {"__init__"}
    packages = {file.parent.name for file in (ROOT / room).glob("*/__init__.py")}
    assert PARTS[room].keys() == modules | packages
    assert len(PURE_PARTS) >= len(("silver.fold", "silver.tables", "gold.aggregate", "gold.rules"))


def test_there_are_no_import_circles() -> None:
    graph = {module: uses(module) for module in MODULES}
    TopologicalSorter(graph).prepare()  # raises CycleError, which names the circle


@pytest.mark.parametrize("file", PURE, ids=lambda file: str(file.relative_to(ROOT)))
def test_a_core_module_imports_neither_spark_nor_clock_nor_what_does_io(file: Path) -> None:
    tree = parsed(file)
    found = {*imported_by(file)}
    if {name for name in found if name.startswith("io.")} == {"io.BytesIO"}:  # bytes in memory
        found -= {"io", "io.BytesIO"}
    assert {name for name in found if name.split(".")[0] in OUTSIDE} == set()
    used = {name for name in found if name in MODULES and name != "sessionlake"}
    # Feeds are pure, too, but they have times among their values and run the code that they generate.
    assert {name for name in used if room_of(name) not in (*PURE_ROOMS, "feeds")} <= PURE_BESIDE
    called = {node.func.id for node in ast.walk(tree) if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)}
    assert called & CALLS == set()


@pytest.mark.parametrize("file", sorted(LAB.glob("truth/*.py")), ids=lambda file: file.name)
def test_the_ground_truth_shares_no_code_with_the_pipeline(file: Path) -> None:
    own = {name for name in imported_by(file) if name.startswith("sessionlake")}
    allowed = ("sessionlake.errors", "sessionlake_lab.truth")
    assert {name for name in own if not name.startswith(allowed)} == set()
    assert {name for name in imported_by(file) if name.split(".")[0] not in known()} == set()


def known() -> set[str]:
    return {*sys.stdlib_module_names, "sessionlake", "sessionlake_lab"}


def test_spark_is_imported_where_it_is_used_so_that_the_command_line_answers_at_once() -> None:
    def heavy(file: Path) -> set[str]:
        at_start = [node for node in parsed(file).body if isinstance(node, ast.Import | ast.ImportFrom)]
        return {name for name in imported(ast.Module(at_start, [])) if name.split(".")[0] in HEAVY}

    # A deployment imports this module to find the functions that `databricks-bundles` decorates. No other module does.
    deployed = "sessionlake.databricks.deploy.workspace_state"
    assert {*of_every_module(heavy)} == {deployed}
    assert [module for module in MODULES if deployed in uses(module)] == []


def test_nothing_that_lasts_is_pickled() -> None:
    def pickles(file: Path) -> set[str]:
        return {name.split(".")[0] for name in imported_by(file)} & {"pickle", "cloudpickle"}

    assert of_every_module(pickles) == {}


def test_tables_in_folders_are_opened_in_one_place() -> None:
    def opens(file: Path) -> bool:
        calls = (node.func for node in ast.walk(parsed(file)) if isinstance(node, ast.Call))
        return any(isinstance(func, ast.Name) and func.id in {"DeltaTable", "LocalTable"} for func in calls)

    assert {*of_every_module(opens)} == {"sessionlake.delta.folders.table_files"}


def reached_from(modules: set[str]) -> set[str]:
    """The modules, those that they import, those that these import, and so on."""
    found, waiting = set[str](), {*modules}
    while waiting:
        found |= waiting
        waiting = {name for module in waiting for name in uses(module)} - found
    return found


def test_the_writer_of_delta_folders_knows_neither_settings_nor_the_lake_s_tables() -> None:
    own = {module for module in MODULES if room_of(module) == "delta.folders"}
    reached = reached_from(own)
    assert {room_of(module) for module in reached} <= OF_FOLDERS
    assert not reached & {
        "sessionlake.local.home",
        "sessionlake.delta.schemas.names",
        "sessionlake.delta.storage.interface",
    }
    users = {module for module in MODULES if uses(module) & own} - own
    assert users == {"sessionlake.delta.home"}


def test_only_the_writer_of_delta_folders_knows_the_files_of_a_log() -> None:
    def knows(file: Path) -> bool:
        texts = (node.value for node in ast.walk(parsed(file)) if isinstance(node, ast.Constant))
        return any(isinstance(text, str) and OF_A_LOG.search(text) for text in texts)

    assert {room_of(module) for module in of_every_module(knows)} == {"delta.folders"}


def test_contributing_names_the_rooms_from_the_top_down() -> None:
    page = (ROOT.parents[1] / "CONTRIBUTING.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(\w+)", page.split("### Packages")[1].split("\n## ")[0], re.MULTILINE)
    top = dict.fromkeys(room.split(".")[0] for room in reversed(ROOMS) if room != "__main__")
    assert rows == list(top)


def test_nothing_that_runs_in_production_imports_the_lab() -> None:
    def lab(file: Path) -> set[str]:
        return {name for name in imported_by(file) if name.split(".")[0] == "sessionlake_lab"}

    assert of_every_module(lab) == {}


def test_a_file_fits_in_the_head() -> None:
    lengths = [len(file.read_text().splitlines()) for file in MODULES.values()]
    assert {name: n for name, n in zip(MODULES, lengths, strict=True) if n > 400} == {}
    assert median(n for n in lengths if n) <= 140


def test_functions_read_at_a_glance() -> None:
    def long(file: Path) -> set[str]:
        functions = (node for node in ast.walk(parsed(file)) if isinstance(node, ast.FunctionDef))
        return {f.name for f in functions if f.end_lineno - f.lineno + 1 > 50}

    assert of_every_module(long) == {}


def methods(file: Path) -> Iterator[tuple[ast.ClassDef, ast.FunctionDef]]:
    """The public methods of a module's public classes."""
    for node in parsed(file).body:
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
            for inner in node.body:
                if isinstance(inner, ast.FunctionDef) and (inner.name == "__call__" or not inner.name.startswith("_")):
                    yield node, inner


def test_a_public_method_has_a_docstring_unless_it_overrides_one_that_has() -> None:
    described: dict[str, set[str]] = {}
    bases: dict[str, set[str]] = {}
    for file in MODULES.values():
        for cls, method in methods(file):
            bases.setdefault(cls.name, set()).update(ast.unparse(base).split("[")[0] for base in cls.bases)
            if ast.get_docstring(method):
                described.setdefault(cls.name, set()).add(method.name)

    def is_described(cls: str, method: str) -> bool:
        own = method in described.get(cls, ())
        return own or any(is_described(base, method) for base in bases.get(cls, set()) - {cls})

    def silent(file: Path) -> set[str]:
        return {f"{cls.name}.{one.name}" for cls, one in methods(file) if not is_described(cls.name, one.name)}

    assert of_every_module(silent) == {}


def replaced(file: Path) -> Iterator[str]:
    """What a test puts something else in the place of, by its full name."""
    if ".setattr(" not in file.read_text(encoding="utf-8"):  # parsing them all takes seconds
        return
    for node in ast.walk(parsed(file)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "setattr":
            target = node.args[0]
            if isinstance(target, ast.Constant) and isinstance(target.value, str):
                yield target.value


def test_what_tests_replace_is_there_in_those_that_are_seldom_run_too() -> None:
    targets = {target for file in TESTS.rglob("*.py") for target in replaced(file)}
    assert len(targets) > 30
    parts = {target: target.rpartition(".") for target in targets}
    assert {t for t, (module, _, name) in parts.items() if not hasattr(pkgutil.resolve_name(module), name)} == set()
