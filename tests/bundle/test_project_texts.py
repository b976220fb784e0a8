"""Texts about the project that must follow what they describe."""

import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def project():
    return tomllib.loads((ROOT / "pyproject.toml").read_text())


def test_contributing_gives_a_reason_for_exactly_the_declared_dependencies(project):
    declared = [
        *project["project"]["dependencies"],
        *(line for extra in project["project"]["optional-dependencies"].values() for line in extra),
        *project["dependency-groups"]["dev"],
    ]
    names = {re.match(r"[\w-]+", line)[0] for line in declared}
    tables = (ROOT / "CONTRIBUTING.md").read_text().split("## Dependencies")[1]
    rows = [line.split("|")[1] for line in tables.splitlines() if line.startswith("| `")]
    assert {name for row in rows for name in re.findall(r"`([\w-]+)`", row)} == names


def test_changelog_leads_to_the_declared_version(project):
    text = (ROOT / "CHANGELOG.md").read_text()
    assert project["project"]["version"] in text
    assert "### Rebuild needed" in text


def test_the_licence_is_the_declared_one(project):
    assert project["project"]["license"] == "Apache-2.0"
    assert "Apache License\n                           Version 2.0, January 2004" in (ROOT / "LICENSE").read_text()
