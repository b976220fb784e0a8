"""Random cases: the usual ones, and more of the same that only `make soak` takes."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

import pytest
from _pytest.mark import ParameterSet
from hypothesis import settings


def seeds(usual: int, in_all: int, first: int = 0) -> list[ParameterSet]:
    """So many seeds from `first` on; those beyond the usual ones are long tests."""
    usually = {(seed,) for seed in range(first, first + usual)}
    return long_beyond(usually, ((seed,) for seed in range(first, first + in_all)))


def long_beyond(usual: Collection[tuple[Any, ...]], cases: Iterable[tuple[Any, ...]]) -> list[ParameterSet]:
    """All cases; those that are not usual are long tests."""
    return [pytest.param(*case, marks=() if case in usual else pytest.mark.soak) for case in cases]


def examples(usual: int, in_all: int) -> settings:
    """Settings of a test of generated cases: so many usually, and in all with the profile `thorough`."""
    thorough = settings.get_current_profile_name() == "thorough"
    return settings(max_examples=in_all if thorough else usual)
