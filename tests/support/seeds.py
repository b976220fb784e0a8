"""Parameters of random tests: a usual number, and more that only `make soak` runs."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

import pytest
from _pytest.mark import ParameterSet
from hypothesis import settings


def seeds(usual: int, in_all: int, first: int = 0) -> list[ParameterSet]:
    """Returns `in_all` seeds from `first` on. Those beyond the usual number are marked as long tests."""
    usually = {(seed,) for seed in range(first, first + usual)}
    return long_beyond(usually, ((seed,) for seed in range(first, first + in_all)))


def long_beyond(usual: Collection[tuple[Any, ...]], cases: Iterable[tuple[Any, ...]]) -> list[ParameterSet]:
    """Returns all cases. Those that are not usual are marked as long tests, or left out if a run leaves those out."""
    every = [pytest.param(*case, marks=() if case in usual else pytest.mark.soak) for case in cases]
    return [case for case in every if not case.marks] or every if _leaves_out_long_tests else every


_leaves_out_long_tests = False


def leave_out_long_tests() -> None:
    """Makes `long_beyond` return only the usual cases. To collect 50,000 tests only to deselect them takes seconds."""
    global _leaves_out_long_tests  # noqa: PLW0603 - a choice of the whole run, made before tests are collected
    _leaves_out_long_tests = True


def examples(usual: int, in_all: int) -> settings:
    """Returns settings for a Hypothesis test: the usual number of cases, or all with the profile `thorough`."""
    thorough = settings.get_current_profile_name() == "thorough"
    return settings(max_examples=in_all if thorough else usual)
