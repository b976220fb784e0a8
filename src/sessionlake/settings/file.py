"""The configuration as a file: YAML with a section for each target, secrets by name, and paths from where it is.

```yaml
capture: {columns: {price: double}}
targets:
  prod:                                   # over what is above, where SESSIONLAKE_TARGET is prod
    kafka: {options: !secret kafka-options}   # in the scope that SESSIONLAKE_SECRET_SCOPE names
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
from sessionlake.settings.bounded_yaml import MAX_BYTES, BoundedLoader, place_of

TARGET_VARIABLE = "SESSIONLAKE_TARGET"
SCOPE_VARIABLE = "SESSIONLAKE_SECRET_SCOPE"
TARGETS = "targets"
KeyPath = tuple[str | int, ...]
PEM = "-----BEGIN "
"""How a certificate or key begins that is given as text, where a path could be."""
# Keys whose values are paths: relative ones begin at the file's folder, wherever the process runs.
_PATHS = (
    ("capture", "payload", "schema_file"),
    ("capture", "payload", "schema_files"),
    ("kafka", "security", "ca"),
    ("kafka", "security", "certificate"),
    ("kafka", "security", "key"),
)


class FileError(ConfigError):
    """A YAML file that cannot be used at all: correct it at the line that is named.

    Attributes:
        line: from 1.
    """

    def __init__(self, path: Path, line: int, why: str) -> None:
        super().__init__(f"config file {path}{f', line {line}' if line else ''}{why}")
        self.path, self.line, self.why = path, line or 1, why.lstrip(":, ")


@dataclass(frozen=True)
class Secret:
    """What `!secret KEY` stands for until it is looked up."""

    key: str


@dataclass(frozen=True)
class Document:
    """A YAML file that was read.

    Attributes:
        content: what it says.
        lines: of each key and item, from 1.
    """

    path: Path
    content: dict[str, Any] = field(default_factory=dict)
    lines: Mapping[KeyPath, int] = field(default_factory=dict)

    def line(self, key: KeyPath) -> int | None:
        """Where a key, or the nearest above it, is said; None if the file does not say it."""
        return next((self.lines[key[:n]] for n in range(len(key), 0, -1) if key[:n] in self.lines), None)


@dataclass(frozen=True)
class SettingsFile:
    """The settings that a file gives a target.

    Attributes:
        content: as `Settings` takes it.
        secrets: the keys whose values came from a secret.
    """

    document: Document
    target: str | None
    content: dict[str, Any]
    secrets: frozenset[KeyPath]

    def line(self, key: KeyPath) -> int | None:
        """Where the file says a setting: in the target's section, or above."""
        own = (TARGETS, self.target or "", *key)
        return self.document.line(own if own[:3] in self.document.lines else key)

    def paths(self) -> Iterator[tuple[KeyPath, Path]]:
        """The files that it names, with the settings that do."""
        for key in _PATHS:
            found = _at(self.content, key)
            if _is_path(found):
                yield key, Path(found)
            elif isinstance(found, dict):
                yield from (((*key, name), Path(path)) for name, path in found.items() if isinstance(path, str))

    def is_secret(self, key: KeyPath) -> bool:
        """Whether a setting, or one that it is part of, or one of its parts came from a secret."""
        return any(key[: len(own)] == own or own[: len(key)] == key for own in self.secrets)

    def repeats_secret(self, key: KeyPath, text: str) -> bool:
        """Whether a check's text about a setting may repeat a secret: that setting's own, or one of its parts'."""
        parts = [_at(self.content, own) for own in self.secrets if own[: len(key)] == key]
        return any(key[: len(own)] == own for own in self.secrets) or any(
            str(part).casefold() in text.casefold() for part in parts if part
        )


class _Loader(BoundedLoader):
    """YAML in which a key stands once."""

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        node: yaml.MappingNode = super().compose_mapping_node(anchor)
        seen: set[str] = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and key.value in seen and key.value != "<<":
                raise yaml.composer.ComposerError(None, None, f"the key {key.value!r} stands twice", key.start_mark)
            seen.add(key.value if isinstance(key, yaml.ScalarNode) else "")
        return node


def _secret(loader: yaml.SafeLoader, node: yaml.Node) -> Secret:
    if not isinstance(node, yaml.ScalarNode) or not node.value:
        raise yaml.constructor.ConstructorError(None, None, "!secret is followed by a key", node.start_mark)
    return Secret(str(loader.construct_scalar(node)))


_Loader.add_constructor("!secret", _secret)


def read_document(path: Path) -> Document:
    """Reads a YAML file of keys.

    Raises:
        FileError: it cannot be read, is not YAML, or has no keys at the top.
    """
    text = ""
    try:
        text = read_text(path)
        loader = _Loader(text)
        try:
            node = loader.get_single_node()
            content = None if node is None else loader.construct_document(node)
        finally:
            loader.dispose()
    except OSError as error:
        raise FileError(path, 0, f": {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise FileError(path, 0, f" is not YAML: not UTF-8 at byte {error.start}") from None
    except yaml.YAMLError as error:
        said = getattr(error, "problem", None) or " ".join(str(error).split())
        raise FileError(path, place_of(error, text)[0], f" is not YAML: {said}") from None
    if content is None:
        return Document(path)
    if not isinstance(content, dict) or not all(isinstance(key, str) for key in content):
        raise FileError(path, 1, f": expected a mapping of keys at the top, found {type(content).__name__}")
    return Document(path, content, _lines(node))


def read_text(path: Path) -> str:
    """The text of a YAML file.

    Raises:
        OSError: it cannot be read.
        UnicodeDecodeError: it is not UTF-8.
        yaml.YAMLError: it has more than `MAX_BYTES`.
    """
    with path.open("rb") as file:
        content = file.read(MAX_BYTES + 1)
    if len(content) > MAX_BYTES:
        raise yaml.YAMLError(f"more than {MAX_BYTES:,} bytes")
    return content.decode("utf-8").removeprefix("\ufeff")


def read_settings(
    document: Document, target: str | None = None, look_up: Callable[[str], str] | None = None
) -> SettingsFile:
    """What a file says for a target.

    Args:
        target: the section that goes over the rest; without it, or without such a section, the rest alone.
        look_up: gives the value of a secret by its key; without it, settings that are secrets are left out.

    Raises:
        FileError: `targets` is not what it must be.
        ConfigError: a secret cannot be had.
    """
    sections = document.content.get(TARGETS, {})
    if not isinstance(sections, dict) or not all(isinstance(own, dict) for own in sections.values()):
        line = document.line((TARGETS,)) or 0
        raise FileError(document.path, line, ": targets has a mapping of settings for each target")
    common = {key: value for key, value in document.content.items() if key != TARGETS}
    merged = _over(common, sections.get(target, {}))
    secrets: set[KeyPath] = set()
    content = _revealed(merged, (), look_up, secrets)
    _beside(content, document.path.parent)
    return SettingsFile(document, target, content, frozenset(secrets))


def secret_of_scope(key: str) -> str:
    """The value of a secret in the scope that the environment names, read on the platform.

    Raises:
        ConfigError: there is no scope, no platform, or no such secret; its text is never in the message.
    """
    scope = os.environ.get(SCOPE_VARIABLE)
    if not scope:
        raise ConfigError(f"`!secret {key}`: {SCOPE_VARIABLE} names no secret scope to look in")
    try:
        from databricks.sdk.runtime import dbutils

        return str(dbutils.secrets.get(scope, key))
    except Exception as error:  # noqa: BLE001  (whatever the platform raises, its text might hold the secret)
        raise ConfigError(
            f"`!secret {key}`: scope {scope} does not give it ({type(error).__name__}); put it there with "
            f"`databricks secrets put-secret {scope} {key}`, and let this principal READ it"
        ) from None


def _over(base: Any, over: Any) -> Any:
    if isinstance(base, dict) and isinstance(over, dict):
        return base | {key: _over(base.get(key), value) for key, value in over.items()}
    return over


def _revealed(value: Any, path: KeyPath, look_up: Callable[[str], str] | None, secrets: set[KeyPath]) -> Any:
    """A copy with secrets looked up, or without them."""
    if isinstance(value, Secret):
        secrets.add(path)
        return look_up(value.key) if look_up else None
    if isinstance(value, dict):
        kept = {k: v for k, v in value.items() if look_up or not isinstance(v, Secret)}
        return {k: _revealed(v, (*path, k), look_up, secrets) for k, v in kept.items()}
    if isinstance(value, list):
        return [_revealed(item, (*path, n), look_up, secrets) for n, item in enumerate(value)]
    return value


def _at(content: Any, key: Sequence[str | int]) -> Any:
    """What stands at a key; None if nothing does."""
    for part in key:
        try:
            content = content[part]
        except (LookupError, TypeError):
            return None
    return content


def _is_path(value: Any) -> TypeGuard[str]:
    return isinstance(value, str) and not value.lstrip().startswith(PEM)


def _beside(content: dict[str, Any], folder: Path) -> None:
    """Lets paths begin where the file is."""
    for *parents, last in _PATHS:
        section = _at(content, parents)
        found = section.get(last) if isinstance(section, dict) else None
        if _is_path(found):
            section[last] = str(folder / found)
        elif isinstance(found, dict):
            section[last] = {key: str(folder / path) for key, path in found.items() if isinstance(path, str)}


def _lines(node: yaml.Node | None, path: KeyPath = ()) -> dict[KeyPath, int]:
    found: dict[KeyPath, int] = {}
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            own = (*path, str(key.value))
            found |= {own: key.start_mark.line + 1} | _lines(value, own)
    elif isinstance(node, yaml.SequenceNode):
        for number, item in enumerate(node.value):
            own = (*path, number)
            found |= {own: item.start_mark.line + 1} | _lines(item, own)
    return found
