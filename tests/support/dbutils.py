"""A replacement for Databricks' `dbutils` in tests."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from types import ModuleType, SimpleNamespace

import pytest


def give_secrets(patch: pytest.MonkeyPatch, secrets: Mapping[str, str], scope: str | None = None) -> None:
    """Provides secrets by their keys, in one secret scope or in any."""

    def get(asked: str, key: str) -> str:
        if asked != (scope or asked):
            raise LookupError(asked)
        return secrets[key]

    runtime = ModuleType("databricks.sdk.runtime")
    runtime.dbutils = SimpleNamespace(secrets=SimpleNamespace(get=get))
    patch.setitem(sys.modules, "databricks.sdk", ModuleType("databricks.sdk"))
    patch.setitem(sys.modules, "databricks.sdk.runtime", runtime)
