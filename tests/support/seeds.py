"""Seeds of random cases: the usual ones, and more of the same that only `make soak` takes."""

from __future__ import annotations

import pytest
from _pytest.mark import ParameterSet


def seeds(usual: int, in_all: int, first: int = 0) -> list[ParameterSet]:
    """So many seeds from `first` on; those beyond the usual ones are long tests."""
    numbers = range(first, first + in_all)
    return [pytest.param(seed, marks=() if seed < first + usual else pytest.mark.soak) for seed in numbers]


def examples(usual: int, in_all: int) -> pytest.MarkDecorator:
    """A test's argument `examples`: how many cases it generates, usually and as a long test."""
    return pytest.mark.parametrize("examples", [usual, pytest.param(in_all, marks=pytest.mark.soak)])
