"""What Databricks gives a process there, for tests here."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from types import ModuleType, SimpleNamespace

import pytest


def give_secrets(patch: pytest.MonkeyPatch, secrets: Mapping[str, str], scope: str | None = None) -> None:
    """Lets a secret scope, this one or any, hold these secrets, by their keys."""

    def get(asked: str, key: str) -> str:
        if asked != (scope or asked):
            raise LookupError(asked)
        return secrets[key]

    runtime = ModuleType("databricks.sdk.runtime")
    runtime.dbutils = SimpleNamespace(secrets=SimpleNamespace(get=get))
    patch.setitem(sys.modules, "databricks.sdk", ModuleType("databricks.sdk"))
    patch.setitem(sys.modules, "databricks.sdk.runtime", runtime)
