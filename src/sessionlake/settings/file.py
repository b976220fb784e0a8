"""Reads the configuration file: YAML with a section per target, secrets by name, and paths relative to the file.

```yaml
capture: {columns: {price: double}}
targets:
  prod:                                   # overrides the above if SESSIONLAKE_TARGET is prod
    kafka: {options: !secret kafka-options}   # read from the scope in SESSIONLAKE_SECRET_SCOPE
```
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeGuard

import yaml

from sessionlake.errors import ConfigError
from sessionlake.settings.bounded_yaml import MAX_BYTES, LimitedYamlLoader, explain_yaml_error, find_yaml_error_position

TARGET_VARIABLE = "SESSIONLAKE_TARGET"
SCOPE_VARIABLE = "SESSIONLAKE_SECRET_SCOPE"
TARGETS = "targets"
KeyPath = tuple[str | int, ...]
PEM = "-----BEGIN "
"""First characters of a certificate or key whose setting has its text, not a path to a file."""
# Keys whose values are paths. Relative ones start at the file's folder, wherever the process runs.
_PATHS = (
    ("capture", "payload", "schema_file"),
    ("capture", "payload", "schema_files"),
    ("kafka", "security", "ca"),
    ("kafka", "security", "certificate"),
    ("kafka", "security", "key"),
)


class SettingsFileError(ConfigError):
    """The configuration file cannot be read. Nothing was changed. Correct the line that the text names.

    Attributes:
        path: the file.
        line: the wrong line, counted from 1; 1 if the error concerns no single line.
        why: what is wrong, without file and line.
    """

    def __init__(self, path: Path, line: int, why: str) -> None:
        super().__init__(f"config file {path}{f', line {line}' if line else ''}{why}")
        self.path, self.line, self.why = path, line or 1, why.lstrip(":, ")


@dataclass(frozen=True)
class SecretReference:
    """A value written as `!secret KEY` in the file. It is replaced by the secret when the settings are read."""

    key: str


@dataclass(frozen=True)
class YamlDocument:
    """A parsed YAML file.

    Attributes:
        path: the file.
        content: its keys and values.
        lines: the line number of each key and list item, counted from 1.
    """

    path: Path
    content: dict[str, Any] = field(default_factory=dict)
    lines: Mapping[KeyPath, int] = field(default_factory=dict)

    def find_line_of_key(self, key: KeyPath) -> int | None:
        """Returns the line number of a key, or of the nearest key above it; None if the file has neither."""
        return next((self.lines[key[:n]] for n in range(len(key), 0, -1) if key[:n] in self.lines), None)


@dataclass(frozen=True)
class SettingsFile:
    """The settings that a file has for one target. A target is a section of `targets`, such as `prod`.

    Attributes:
        document: the parsed file.
        target: name of the target; None if the file's `targets` are not used.
        content: the settings as nested dictionaries, from which `Settings` is created.
        secrets: keys whose values are secrets.
    """

    document: YamlDocument
    target: str | None
    content: dict[str, Any]
    secrets: frozenset[KeyPath]

    def find_line_of_key(self, key: KeyPath) -> int | None:
        """Returns the line number of a setting; None if the file does not have it.

        If the target's section has the setting, the line is there.
        """
        own = (TARGETS, self.target or "", *key)
        return self.document.find_line_of_key(own if own[:3] in self.document.lines else key)

    def list_paths_of_named_files(self) -> Iterator[tuple[KeyPath, Path]]:
        """Yields the key and the path of each file that the settings name, such as a schema file or a certificate."""
        for key in _PATHS:
            found = _find_value_of_nested_key(self.content, key)
            if _is_path_and_not_pem_text(found):
                yield key, Path(found)
            elif isinstance(found, dict):
                yield from (((*key, name), Path(path)) for name, path in found.items() if isinstance(path, str))

    def contains_secret_at_key(self, key: KeyPath) -> bool:
        """Returns True if a setting is a secret, is part of one, or contains one."""
        return any(key[: len(own)] == own or own[: len(key)] == key for own in self.secrets)

    def may_text_reveal_secret(self, key: KeyPath, text: str) -> bool:
        """Returns True if a text may reveal a secret.

        That is: the text contains the value of a secret at or below `key`, or the setting `key` is inside a secret.
        """
        parts = [_find_value_of_nested_key(self.content, own) for own in self.secrets if own[: len(key)] == key]
        return any(key[: len(own)] == own for own in self.secrets) or any(
            str(part).casefold() in text.casefold() for part in parts if part
        )


class _SettingsLoader(LimitedYamlLoader):
    """Loads YAML in which `!secret KEY` is allowed and repeated keys are errors."""

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        node: yaml.MappingNode = super().compose_mapping_node(anchor)
        seen: set[str] = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and key.value in seen and key.value != "<<":
                raise yaml.composer.ComposerError(None, None, f"the key {key.value!r} occurs twice", key.start_mark)
            seen.add(key.value if isinstance(key, yaml.ScalarNode) else "")
        return node


def _construct_secret(loader: yaml.SafeLoader, node: yaml.Node) -> SecretReference:
    if not isinstance(node, yaml.ScalarNode) or not node.value:
        raise yaml.constructor.ConstructorError(None, None, "!secret needs the name of a secret", node.start_mark)
    return SecretReference(str(loader.construct_scalar(node)))


_SettingsLoader.add_constructor("!secret", _construct_secret)


def read_yaml_file(path: Path) -> YamlDocument:
    """Reads and parses a YAML file.

    Raises:
        SettingsFileError: the file cannot be read, is not YAML, or is not a mapping of keys at the top level.
    """
    text = ""
    try:
        text = read_settings_file_text(path)
        loader = _SettingsLoader(text)
        try:
            node = loader.get_single_node()
            content = None if node is None else loader.construct_document(node)
        finally:
            loader.dispose()
    except OSError as error:
        raise SettingsFileError(path, 0, f": {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise SettingsFileError(path, 0, f" is not valid YAML: byte {error.start} is not UTF-8") from None
    except yaml.YAMLError as error:
        why = f" is not valid YAML: {explain_yaml_error(error)}"
        raise SettingsFileError(path, find_yaml_error_position(error, text)[0], why) from None
    if content is None:
        return YamlDocument(path)
    if not isinstance(content, dict) or not all(isinstance(key, str) for key in content):
        raise SettingsFileError(
            path, 1, f": expected a mapping of keys at the top level, found {type(content).__name__}"
        )
    return YamlDocument(path, content, find_line_numbers_of_yaml_keys(node))


def read_settings_file_text(path: Path) -> str:
    """Returns the text of a YAML file.

    Raises:
        OSError: the file cannot be read.
        UnicodeDecodeError: the file is not UTF-8.
        yaml.YAMLError: the file is larger than `MAX_BYTES`.
    """
    with path.open("rb") as file:
        content = file.read(MAX_BYTES + 1)
    if len(content) > MAX_BYTES:
        raise yaml.YAMLError(f"more than {MAX_BYTES:,} bytes")
    return content.decode("utf-8").removeprefix("\ufeff")


def read_settings(
    document: YamlDocument, target: str | None = None, look_up: Callable[[str], str] | None = None
) -> SettingsFile:
    """Returns the settings that a parsed file has for a target, with secrets looked up.

    Args:
        document: the parsed file.
        target: name of the section in `targets` that overrides the rest of the file. If it is None or the file has no
            such section, nothing is overridden.
        look_up: a function that returns a secret by its key. If None, settings with secrets are left out.

    Raises:
        SettingsFileError: `targets` is not a mapping of settings by target.
        ConfigError: a secret cannot be read.
    """
    sections = document.content.get(TARGETS, {})
    if not isinstance(sections, dict) or not all(isinstance(own, dict) for own in sections.values()):
        line = document.find_line_of_key((TARGETS,)) or 0
        raise SettingsFileError(document.path, line, ": targets must have a mapping of settings for each target")
    common = {key: value for key, value in document.content.items() if key != TARGETS}
    merged = merge_settings(common, sections.get(target, {}))
    secrets: set[KeyPath] = set()
    content = _replace_secret_references(merged, (), look_up, secrets)
    _make_paths_absolute(content, document.path.parent)
    return SettingsFile(document, target, content, frozenset(secrets))


def read_databricks_secret(key: str) -> str:
    """Returns a Databricks secret from the secret scope that `SESSIONLAKE_SECRET_SCOPE` names.

    Raises:
        ConfigError: the scope is not set, or the secret cannot be read. The text never contains the secret.
    """
    scope = os.environ.get(SCOPE_VARIABLE)
    if not scope:
        raise ConfigError(
            f"`!secret {key}` in the configuration cannot be read, because {SCOPE_VARIABLE} is not set",
            fix=f"Set {SCOPE_VARIABLE} to the name of the Databricks secret scope that has the secret",
        )
    try:
        from databricks.sdk.runtime import dbutils

        return str(dbutils.secrets.get(scope, key))
    except Exception as error:  # noqa: BLE001  (the text of any error could contain the secret)
        raise ConfigError(
            f"`!secret {key}` in the configuration cannot be read from the secret scope {scope} "
            f"({type(error).__name__})",
            fix=f"Store it with `databricks secrets put-secret {scope} {key}`, and grant READ on the "
            "scope to the user who runs the job",
        ) from None


def merge_settings(base: Any, override: Any) -> Any:
    """Returns two nested mappings of settings as one. Where both have a key, the value of `override` applies."""
    if isinstance(base, dict) and isinstance(override, dict):
        return base | {key: merge_settings(base.get(key), value) for key, value in override.items()}
    return override


def _replace_secret_references(
    value: Any, path: KeyPath, look_up: Callable[[str], str] | None, secrets: set[KeyPath]
) -> Any:
    """Returns a copy of a value in which secrets are looked up; without `look_up` they are left out.

    Args:
        value: a setting or a section of settings.
        path: key of the value.
        look_up: a function that returns a secret by its key.
        secrets: a set to which the keys of all found secrets are added.
    """
    if isinstance(value, SecretReference):
        secrets.add(path)
        return look_up(value.key) if look_up else None
    if isinstance(value, dict):
        secrets |= {(*path, k) for k, v in value.items() if isinstance(v, SecretReference)}
        kept = {k: v for k, v in value.items() if look_up or not isinstance(v, SecretReference)}
        return {k: _replace_secret_references(v, (*path, k), look_up, secrets) for k, v in kept.items()}
    if isinstance(value, list):
        return [_replace_secret_references(item, (*path, n), look_up, secrets) for n, item in enumerate(value)]
    return value


def _find_value_of_nested_key(content: Any, key: Sequence[str | int]) -> Any:
    """Returns the value of a key in nested dictionaries and lists; None if they do not have the key."""
    for part in key:
        try:
            content = content[part]
        except (LookupError, TypeError):
            return None
    return content


def _is_path_and_not_pem_text(value: Any) -> TypeGuard[str]:
    return isinstance(value, str) and not value.lstrip().startswith(PEM)


def _make_paths_absolute(content: dict[str, Any], folder: Path) -> None:
    """Replaces relative paths in the settings by paths that start at the configuration file's folder."""
    for *parents, last in _PATHS:
        section = _find_value_of_nested_key(content, parents)
        found = section.get(last) if isinstance(section, dict) else None
        if _is_path_and_not_pem_text(found):
            section[last] = str(folder / found)
        elif isinstance(found, dict):
            section[last] = {key: str(folder / path) for key, path in found.items() if isinstance(path, str)}


def find_line_numbers_of_yaml_keys(node: yaml.Node | None, path: KeyPath = ()) -> dict[KeyPath, int]:
    """Returns the line number, counted from 1, of each key and list item below a YAML node.

    Args:
        node: the node; None gives an empty result.
        path: the key of the node, with which the keys of the result begin.
    """
    found: dict[KeyPath, int] = {}
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            own = (*path, str(key.value))
            found |= {own: key.start_mark.line + 1} | find_line_numbers_of_yaml_keys(value, own)
    elif isinstance(node, yaml.SequenceNode):
        for number, item in enumerate(node.value):
            own = (*path, number)
            found |= {own: item.start_mark.line + 1} | find_line_numbers_of_yaml_keys(item, own)
    return found
