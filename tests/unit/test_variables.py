"""The variables of a process are checked together, over its settings file, without the environment of the checker."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import pytest
import yaml
from pydantic import BaseModel, SecretStr

from sessionlake.databricks.bundle.environment_rules import find_environment_faults
from sessionlake.settings.environment import describe_rejected_environment_variables, list_settings_errors_with_lines
from sessionlake.settings.file import SettingsFile, read_settings, read_yaml_file
from sessionlake.settings.model import Settings, may_setting_be_secret

ARCHIVE = {"SESSIONLAKE_BRONZE__SOURCE": "archive"}
LOGIN = {
    "SESSIONLAKE_KAFKA__SECURITY__PASSWORD": "hunter2",
    "SESSIONLAKE_KAFKA__SECURITY__USERNAME": "ada",
}
SCRAM = "kafka: {security: {protocol: SASL_SSL, mechanism: SCRAM-SHA-512}}"


def file_of(folder: Path, text: str) -> SettingsFile:
    (folder / "sessionlake.yml").write_text(text)
    return read_settings(read_yaml_file(folder / "sessionlake.yml"))


@pytest.mark.parametrize(
    ("text", "variables"),
    [
        ("bronze: {archive: {path: /a}}", ARCHIVE),
        ("", ARCHIVE | {"SESSIONLAKE_BRONZE__ARCHIVE__PATH": "/a"}),
        ("", ARCHIVE | {"SESSIONLAKE_BRONZE__ARCHIVE": '{"path": "/a"}'}),
        ("", ARCHIVE | {"SESSIONLAKE_BRONZE__ARCHIVE__PATH": None}),
        ("bronze: {archive: !secret place}", ARCHIVE),
        (SCRAM, LOGIN),
        (SCRAM, LOGIN | {"SESSIONLAKE_KAFKA__SECURITY__PASSWORD": None}),
        ("silver: {shards: many}", {"SESSIONLAKE_SILVER__TRIGGER": "2 s"}),
        ("silver: {shards: many}", {"SESSIONLAKE_SILVER__SHARDS": "16"}),
        ("", {"SESSIONLAKE_CONFIG": "x", "PATH": "y", "SESSIONLAKE_KAFKA__OPTIONS": '{"a": "b"}'}),
    ],
)
def test_variables_that_fit_together_with_the_file_have_no_fault(
    tmp_path: Path, text: str, variables: dict[str, str | None]
) -> None:
    assert [*describe_rejected_environment_variables(variables, file_of(tmp_path, text))] == []


@pytest.mark.parametrize(
    ("text", "variables", "name", "why"),
    [
        ("", ARCHIVE, "SESSIONLAKE_BRONZE__SOURCE", "source is archive, but bronze.archive says nothing about it"),
        ("", {"SESSIONLAKE_SILVER__SHARDS": "many"}, "SESSIONLAKE_SILVER__SHARDS", "silver.shards = 'many': must be a"),
        ("silver: {shards: x}", {"SESSIONLAKE_SILVER__SHARDS": "y"}, "SESSIONLAKE_SILVER__SHARDS", "shards = 'y'"),
        ("", {"SESSIONLAKE_PROCESSORS": "x"}, "SESSIONLAKE_PROCESSORS", "must be JSON.*found 'x'"),
        ("", LOGIN, "SESSIONLAKE_KAFKA__SECURITY__PASSWORD", "kafka.security.protocol: the key is missing"),
        ("", {"SESSIONLAKE_KAFKA__SECURITY": "hunter2"}, "SESSIONLAKE_KAFKA__SECURITY", "must be a valid dict"),
        ("kafka: {security: {protocol: SSL}}", {"SESSIONLAKE_KAFKA__SECURITY__PASSWORD": "hunter2"},
         "SESSIONLAKE_KAFKA__SECURITY__PASSWORD", "SSL has no login"),
        (SCRAM, LOGIN | {"SESSIONLAKE_KAFKA__SECURITY__PASSWORD": ""}, "SESSIONLAKE_KAFKA__SECURITY__PASSWORD",
         "at least 1"),
    ],
)  # fmt: skip
def test_a_wrong_variable_is_named_without_secrets(
    tmp_path: Path, text: str, variables: dict[str, str | None], name: str, why: str
) -> None:
    [(found, message)] = describe_rejected_environment_variables(variables, file_of(tmp_path, text))
    assert found == name
    assert "hunter2" not in message
    assert re.search(why, message), message


def test_without_the_file_only_single_values_are_checked() -> None:
    assert [*describe_rejected_environment_variables(ARCHIVE | LOGIN, None)] == []
    [(name, _)] = describe_rejected_environment_variables(ARCHIVE | {"SESSIONLAKE_SILVER__SHARDS": "many"}, None)
    assert name == "SESSIONLAKE_SILVER__SHARDS"


def test_the_environment_of_the_process_that_checks_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SESSIONLAKE_SILVER__SHARDS", "many")
    monkeypatch.setenv("SESSIONLAKE_BRONZE__ARCHIVE__PATH", "/a")
    file = file_of(tmp_path, "")
    assert [*describe_rejected_environment_variables({"SESSIONLAKE_CATALOG": "main"}, file)] == []
    assert [name for name, _ in describe_rejected_environment_variables(ARCHIVE, file)] == [*ARCHIVE]
    assert list_settings_errors_with_lines(file) == []


@pytest.mark.parametrize(
    ("variables", "faults"),
    [
        (ARCHIVE | {"SESSIONLAKE_TARGET": "prod"}, 0),
        (ARCHIVE | {"SESSIONLAKE_TARGET": "dev"}, 1),
        (ARCHIVE | {"SESSIONLAKE_TARGET": "<target>"}, 0),
        (ARCHIVE | {"SESSIONLAKE_CONFIG": "/Workspace/files/sessionlake.yml"}, 1),
        (ARCHIVE | {"SESSIONLAKE_CONFIG": "/Workspace/files/other.yml"}, 0),
        ({"SESSIONLAKE_KAFKA__OPTIONS": "{{secrets/scope/options}}"}, 0),
        ({"SESSIONLAKE_KAFKA__OPTIONS": "scope/options"}, 1),
    ],
)
def test_the_variables_of_a_cluster_are_checked_over_the_settings_of_its_target(
    tmp_path: Path, variables: dict[str, str], faults: int
) -> None:
    content: dict[str, Any] = {"targets": {"prod": {"bronze": {"archive": {"path": "/a"}}}, "dev": {}}}
    (tmp_path / "sessionlake.yml").write_text(yaml.safe_dump(content))
    document = read_yaml_file(tmp_path / "sessionlake.yml")
    job = {"job_clusters": [{"new_cluster": {"spark_env_vars": variables}}]}
    assert len([*find_environment_faults(job, {}, {}, document)]) == faults


def test_a_secret_that_is_left_out_of_a_file_is_assumed_to_fit(tmp_path: Path) -> None:
    login = "kafka: {security: {protocol: SASL_SSL, mechanism: PLAIN, username: a, password: %s}}"
    assert list_settings_errors_with_lines(file_of(tmp_path, login % "!secret password")) == []
    [(_, message)] = list_settings_errors_with_lines(file_of(tmp_path, login % "null"))
    assert "PLAIN needs password" in message


def secrets_below(annotation: Any, key: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """The keys of all settings that are secrets."""
    if annotation is SecretStr:
        yield key
    elif isinstance(annotation, type) and issubclass(annotation, BaseModel):
        for name, field in annotation.model_fields.items():
            yield from secrets_below(field.annotation, (*key, name))
    else:
        for inner in get_args(annotation):
            yield from secrets_below(inner, key)


def test_the_value_of_no_secret_setting_appears_in_a_text() -> None:
    keys = [*secrets_below(Settings)]
    assert ("kafka", "security", "password") in keys
    assert ("capture", "payload", "registry_auth") in keys
    assert [key for key in keys if not may_setting_be_secret(key)] == []
