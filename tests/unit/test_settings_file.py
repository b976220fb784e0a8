"""What a settings file says: for a target, with secrets by name, and where it is wrong."""

import re
from pathlib import Path

import pytest

from sessionlake import __version__, build
from sessionlake.errors import ConfigError
from sessionlake.settings.model import Settings, load_settings
from support.dbutils import give_secrets

FILE = """
kafka: {topic_pattern: a, options: {client.id: one, security.protocol: PLAINTEXT}}
capture:
  columns: {price: double}
targets:
  prod:
    kafka: {topic_pattern: b, options: {client.id: two}}
  secret:
    kafka:
      options: !secret kafka-options
"""
HELD = '{"sasl.jaas.config": "x password=\\"p$1\\\\\\"", "security.protocol": "SASL_SSL"}'


@pytest.fixture
def read(tmp_path, monkeypatch):
    """Reads a file for a target."""

    def reading(text: str, target: str | None = None) -> Settings:
        file = tmp_path / "sessionlake.yml"
        file.write_text(text)
        if target:
            monkeypatch.setenv("SESSIONLAKE_TARGET", target)
        return load_settings(file)

    return reading


@pytest.fixture
def scope(monkeypatch):
    """A platform whose scope `s` has secrets."""
    held: dict[str, str] = {}
    give_secrets(monkeypatch, held, scope="s")
    monkeypatch.setenv("SESSIONLAKE_SECRET_SCOPE", "s")
    return held


@pytest.mark.parametrize(
    ("target", "pattern", "client"), [(None, "a", "one"), ("prod", "b", "two"), ("staging", "a", "one")]
)
def test_a_target_s_section_goes_over_the_rest_key_by_key(read, target, pattern, client):
    settings = read(FILE, target)
    assert settings.kafka.topic_pattern == pattern
    assert settings.kafka.options == {"client.id": client, "security.protocol": "PLAINTEXT"}
    assert list(settings.capture.columns) == ["price"]


def test_the_environment_goes_over_a_target_s_section(read, monkeypatch):
    monkeypatch.setenv("SESSIONLAKE_KAFKA__TOPIC_PATTERN", "c")
    assert read(FILE, "prod").kafka.topic_pattern == "c"


def test_a_secret_is_looked_up_in_the_scope_whatever_signs_it_has(read, scope):
    scope["kafka-options"] = HELD
    options = read(FILE, "secret").kafka.options
    assert options["sasl.jaas.config"] == 'x password="p$1\\"'
    assert options["security.protocol"] == "SASL_SSL"


@pytest.mark.parametrize("content", ["hunter2", '["hunter2"]', '{"a": {"hunter2": 1}}{', '"hunter2"'])
def test_a_secret_that_is_wrong_is_named_and_never_shown(read, scope, content):
    scope["kafka-options"] = content
    with pytest.raises(ConfigError, match=r"line 10: kafka\.options") as caught:
        read(FILE, "secret")
    assert "hunter2" not in str(caught.value)


def test_a_secret_anywhere_is_not_shown(read, scope):
    scope["servers"] = "hunter2"
    with pytest.raises(ConfigError, match=r"line 1: silver\.shards") as caught:
        read("silver: {shards: !secret servers}")
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize(
    "text",
    [
        "capture: {columns: {price: !secret servers}}",
        "processors: [{name: !secret servers, class: a}, {name: !secret servers, class: b}]",
        "processors: [{name: x, class: a, table: !secret table}, {name: y, class: b, table: !secret table}]",
    ],
)
def test_no_check_repeats_a_secret_though_its_own_text_does(read, scope, text):
    scope |= {"servers": "Hunter2", "table": "silver.hunter2"}
    with pytest.raises(ConfigError, match="the value of the secret is not valid") as error:
        read(text)
    assert "hunter2" not in str(error.value).casefold()


def test_a_check_of_something_else_is_reported_though_there_are_secrets(read, scope):
    scope["servers"] = "{}"
    with pytest.raises(ConfigError, match="two processors have the name x"):
        read("kafka: {options: !secret servers}\nprocessors: [{name: x, class: a}, {name: x, class: b}]")


def test_options_are_not_in_a_settings_text():
    assert "p$" not in repr(Settings(kafka={"options": {"password": "p$"}}))


def test_a_secret_that_is_not_there_says_where_to_put_it(read, scope):
    assert scope == {}
    with pytest.raises(ConfigError, match="put-secret s kafka-options"):
        read(FILE, "secret")


def test_a_secret_without_a_scope_says_what_names_one(read):
    with pytest.raises(ConfigError, match="because SESSIONLAKE_SECRET_SCOPE is not set"):
        read(FILE, "secret")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("capture:\n  format: json\n  format: avro", "line 3 is not valid YAML: the key 'format' occurs twice"),
        ("capture:\n  gaps: 1", r"line 2: capture\.gaps: no such key"),
        ("targets:\n  prod: {silver: {shards: many}}", r"line 2: silver\.shards = 'many'"),
        ("targets: [prod]", "line 1: targets must have a mapping of settings for each target"),
        ("kafka: {options: !secret {a: b}}", "!secret needs the name of a secret"),
        ("a: &a {b: 1}\nc: {<<: *a, b: 2, b: 3}", "the key 'b' occurs twice"),
    ],
)
def test_what_is_wrong_is_named_with_its_line(read, text, said):
    with pytest.raises(ConfigError, match=re.compile(said, re.DOTALL)):
        read(text, "prod")


def test_paths_begin_at_the_file_wherever_the_process_runs(read, tmp_path):
    text = "capture: {format: avro, payload: {schema_files: {1: schemas/a.avsc, 2: /b.avsc}}}"
    assert read(text).capture.payload.schema_files == {1: tmp_path / "schemas/a.avsc", 2: Path("/b.avsc")}


def test_builds_of_one_version_differ_when_code_does(tmp_path, monkeypatch):
    found = set()
    for text in ("a = 1", "a = 2", "a = 1"):
        (tmp_path / "build.py").write_text(text)
        monkeypatch.setattr(build, "__file__", str(tmp_path / "build.py"))
        build.read_code_version.cache_clear()
        found.add(build.read_code_version())
    build.read_code_version.cache_clear()
    assert len(found) == 2
    assert all(version.startswith(f"{__version__}+") for version in found)


def test_a_key_with_a_typing_error_is_reported_with_the_one_that_is_meant(tmp_path):
    file = tmp_path / "sessionlake.yml"
    file.write_text("capture:\n  colums: {a: double}\n", encoding="utf-8")
    with pytest.raises(
        ConfigError, match=r"line 2: capture\.colums: no such key, did you mean columns\? known here: by_"
    ):
        load_settings(file)


def test_a_home_that_is_a_file_is_reported_without_a_placeholder(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("SESSIONLAKE_HOME", str(tmp_path / "file"))
    with pytest.raises(
        ConfigError, match=r"\n  home: .*file is a file, but must be a folder; name another one with SESSIONLAKE_HOME$"
    ):
        load_settings()
