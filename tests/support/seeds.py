"""Random cases: the usual ones, and more of the same that only `make soak` takes."""

from __future__ import annotations

import pytest
from _pytest.mark import ParameterSet
from hypothesis import settings


def seeds(usual: int, in_all: int, first: int = 0) -> list[ParameterSet]:
    """So many seeds from `first` on; those beyond the usual ones are long tests."""
    numbers = range(first, first + in_all)
    return [pytest.param(seed, marks=() if seed < first + usual else pytest.mark.soak) for seed in numbers]


def examples(usual: int, in_all: int) -> settings:
    """Settings of a test of generated cases: so many usually, and in all with the profile `thorough`."""
    thorough = settings.get_current_profile_name() == "thorough"
    return settings(max_examples=in_all if thorough else usual)
