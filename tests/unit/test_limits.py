"""Every limit on a size is known and forced: whatever it is, the results are the same."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

import hypothesis
import pytest

import sessionlake
from support.limits import FORCED, OTHERS, force
from unit import test_law, test_net_changes, test_once_order, test_points, test_processor_law, test_products, test_rules

# Times, versions of formats: their names say that they are no sizes.
NO_SIZES = re.compile(r"_?(\w+_)?(MS|US|SECONDS|FORMAT|VERSION)")
ROOT = Path(sessionlake.__file__).parent
PACKAGES = ("bronze", "delta", "gold", "history", "ledger", "operations", "processors", "silver")


def files_of(package: str) -> list[Path]:
    """Its modules, but for those of the report, whose sizes are a page's."""
    return [file for file in sorted((ROOT / package).rglob("*.py")) if file.parent.name != "report"]


def numbers_in(package: str) -> Iterator[str]:
    """`module.NAME` of each constant of a module that is a number."""
    for file in files_of(package):
        module = ".".join(file.relative_to(ROOT).with_suffix("").parts)
        for line in ast.parse(file.read_text()).body:
            target = line.targets[0] if isinstance(line, ast.Assign) else getattr(line, "target", None)
            named = isinstance(target, ast.Name) and target.id.isupper() and not NO_SIZES.fullmatch(target.id)
            if named and is_number(getattr(line, "value", None)):
                yield f"{module}.{target.id}"


def is_number(value: ast.expr | None) -> bool:
    """Whether it is made of numbers alone."""
    if not isinstance(value, ast.Constant | ast.BinOp | ast.UnaryOp):
        return False
    parts = [one for one in ast.walk(value) if not isinstance(one, ast.operator | ast.unaryop)]
    return all(
        isinstance(one, ast.BinOp | ast.UnaryOp)
        or (isinstance(one, ast.Constant) and isinstance(one.value, int | float) and not isinstance(one.value, bool))
        for one in parts
    )


@pytest.mark.parametrize("package", PACKAGES)
def test_every_number_of_a_module_is_a_limit_that_is_forced_or_is_said_to_be_none(package: str) -> None:
    forced = {f"{module}.{name}" for module, limits in FORCED.items() for name in limits}
    others = {name for names in OTHERS.values() for name in names}
    assert not forced & others
    found = {*numbers_in(package)}
    assert found - forced - others == set(), "name it in tests/support/limits.py: FORCED, or OTHERS with the reason"
    assert {name for name in forced | others if name.startswith(f"{package}.")} - found == set(), "it is gone"


@pytest.mark.parametrize("package", PACKAGES)
def test_a_size_is_compared_with_a_name_and_not_with_a_number(package: str) -> None:
    """So that it is found, and can be forced. Whether there is one, or more than one, is no size."""
    for file in files_of(package):
        for one in ast.walk(ast.parse(file.read_text())):
            if isinstance(one, ast.Compare) and any(is_size(side) for side in (one.left, *one.comparators)):
                numbers = [side.value for side in (one.left, *one.comparators) if isinstance(side, ast.Constant)]
                assert all(number in (0, 1) or isinstance(number, str) for number in numbers), (file, ast.unparse(one))


def is_size(side: ast.expr) -> bool:
    """`len(…)`, `….num_rows`, `….nbytes`, `….count()`."""
    if isinstance(side, ast.Attribute):
        return side.attr in ("num_rows", "nbytes")
    call = side.func if isinstance(side, ast.Call) else None
    return getattr(call, "id", None) == "len" or getattr(call, "attr", None) == "count"


def once(seed: int) -> None:
    """Averages and products under `once`, whatever the batches."""
    test_once_order.test_averages_of_shuffled_messages_are_those_of_ordered_ones_in_any_batches(seed)
    for product in (test_once_order.METRICS_1M, test_once_order.METRICS_1D):
        test_once_order.test_products_of_shuffled_messages_are_those_of_ordered_ones_in_any_batches(product, seed)


def some(law: Callable[..., None], examples: int = 5) -> None:
    """A property for fewer examples than where it stands: with limits this small, one takes ten times as long."""
    own = "_hypothesis_internal_use_settings"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(law, own, hypothesis.settings(getattr(law, own), max_examples=examples))
        law()


def each(law: Callable[..., None], cases: Iterable[Sequence[str]]) -> None:
    for case in cases:
        law(1, *case)


LAWS: dict[str, Callable[[], None]] = {
    "averages": lambda: some(test_points.test_any_batches_shards_and_idle_times_equal_a_recomputation),
    "restatements": lambda: some(test_points.test_restatements_lead_from_the_first_figure_to_the_last),
    "products": lambda: some(test_products.test_any_batches_come_to_what_plain_python_comes_to),
    "once": lambda: once(3),
    "rules": lambda: some(test_rules.test_whatever_the_batches_the_log_bears_what_plain_python_makes_of_all_events, 1),
    "silver": lambda: each(test_law.test_any_batches_and_shards_equal_the_truth, test_law.CASES),
    "net changes": lambda: each(test_net_changes.test_any_stretches_merged_equal_every_change_in_its_turn, [()]),
    "processors": lambda: each(
        test_processor_law.test_any_batches_and_shards_equal_one_batch, test_processor_law.CASES
    ),
}


@pytest.mark.parametrize("above", [0, 1])
@pytest.mark.parametrize("law", LAWS)
def test_the_laws_hold_where_every_limit_is_the_least_that_it_can_be(
    law: str, above: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    force(monkeypatch, above)
    LAWS[law]()
