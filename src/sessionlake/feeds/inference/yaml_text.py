"""Writes a proposed feed as YAML that is pleasant to read and change: a key a line, and short things in one line."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from sessionlake.feeds.inference.propose import ProposedFeed
from sessionlake.visible import escape_invisible

_WIDTH = 118
_PLAIN = re.compile(r"[A-Za-z_][\w./()-]*(?: [\w()/-]+)*|\.?\w[\w.]*")
_WORDS = re.compile(r"(?i:y|n|yes|no|on|off|true|false|null|~|\.inf|\.nan)")
_NUMBERS = re.compile(r"[-+.]?\d.*")


def format_feed_as_yaml(proposal: ProposedFeed, comments: list[str]) -> str:
    """Returns a configuration file with the proposed feed.

    Args:
        proposal: The proposal.
        comments: Lines for the head of the file, without `#`.
    """
    lines = [f"# {escape_invisible(text)}" for text in comments]
    lines += ["capture:", "  feeds:"]
    first = "    - "
    for key, value in proposal.settings.items():
        for line in _format_lines_of_setting(proposal, key, value):
            lines.append(first + line)
            first = "      "
    return "\n".join(line.rstrip() for line in lines) + "\n"


def _format_lines_of_setting(proposal: ProposedFeed, key: str, value: Any) -> Iterator[str]:
    if key == "columns":
        yield "columns:"
        for name, setting in value.items():
            yield _append_yaml_comment(
                f"  {_format_yaml_scalar(name)}: {format_yaml_in_one_line(setting)}",
                proposal.seen.get(f"columns.{name}"),
            )
    elif key == "messages":
        yield "messages:"
        for rule in value:
            yield from _format_lines_of_rule(rule)
    else:
        text = f"'{value}'" if key == "topics" and "'" not in value else format_yaml_in_one_line(value)
        yield _append_yaml_comment(f"{key}: {text}", proposal.seen.get(key))


def _format_lines_of_rule(rule: dict[str, Any]) -> Iterator[str]:
    line = f"  - {format_yaml_in_one_line(rule)}"
    if len(line) + 6 <= _WIDTH:
        yield line
        return
    first = "  - "
    for key, value in rule.items():
        if key == "rows":
            yield f"{first}rows:"
            for part in value:
                yield f"      - {format_yaml_in_one_line(part)}"
        else:
            yield f"{first}{key}: {format_yaml_in_one_line(value)}"
        first = "    "


def _append_yaml_comment(line: str, comment: str | None) -> str:
    return line if not comment else f"{line}  # {escape_invisible(comment)}"


def format_yaml_in_one_line(value: Any) -> str:
    """Returns a value as YAML in one line."""
    if isinstance(value, dict):
        return (
            "{"
            + ", ".join(f"{_format_yaml_scalar(name)}: {format_yaml_in_one_line(item)}" for name, item in value.items())
            + "}"
        )
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(format_yaml_in_one_line, value)) + "]"
    return _format_yaml_scalar(value)


def _format_yaml_scalar(value: Any) -> str:
    """Returns a single value as YAML; a text is quoted unless it can only be read as a text."""
    if not isinstance(value, str):
        return json.dumps(value)
    if _PLAIN.fullmatch(value) and not _WORDS.fullmatch(value) and not _NUMBERS.fullmatch(value):
        return value
    if re.fullmatch(r"=[\w]+", value) and value != "=":
        return value
    return json.dumps(value, ensure_ascii=True)
