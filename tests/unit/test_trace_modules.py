"""`make trace`: which calls it sees, and what it counts as a return."""

from __future__ import annotations

import pytest

from perf.trace_modules import Calls, one_message, traced
from sessionlake.settings.model import CaptureSettings


@pytest.mark.parametrize(
    ("pairs", "modules", "returns", "count"),
    [
        ([("", "a"), ("a", "b"), ("a", "c")], ["a", "b", "c"], [], 3),
        ([("", "a"), ("a", "b"), ("a", "b")], ["a", "b"], [], 3),
        ([("", "a"), ("a", "a")], ["a"], [], 1),
        ([("", "a"), ("a", "b"), ("b", "a"), ("b", "a")], ["a", "b"], [("b", "a")], 4),
        ([("", "a"), ("a", "b"), ("a", "c"), ("c", "b")], ["a", "b", "c"], [("c", "b")], 4),
        ([("", "a"), ("a", "b"), ("", "b")], ["a", "b"], [("", "b")], 3),
    ],
    ids=[
        "each once",
        "in a loop",
        "within a module",
        "back to its caller",
        "from a second module",
        "from the scenario",
    ],
)
def test_a_return_is_a_call_by_another_module_into_one_that_was_entered_before(pairs, modules, returns, count):
    calls = Calls()
    for pair in pairs:
        calls.add(*pair)
    assert (calls.modules, calls.returns, calls.count) == (modules, returns, count)


def of_one_message() -> Calls:
    return traced(lambda: one_message(CaptureSettings()))[0]


def test_one_message_enters_pure_modules_and_none_of_the_settings():
    calls = of_one_message()
    assert calls.modules[0] == "sessionlake.streaming.payloads"
    rooms = {module.split(".")[1] for module in calls.modules}
    assert rooms == {"streaming", "protocol", "silver", "integrity"}
    assert {"sessionlake.protocol.decode", "sessionlake.integrity.batch", "sessionlake.silver.fold.emit"} <= {
        *calls.modules
    }


def test_a_scenario_sees_the_same_calls_when_it_runs_again():
    first, second = of_one_message(), of_one_message()
    assert (first.modules, first.returns, first.count) == (second.modules, second.returns, second.count)
