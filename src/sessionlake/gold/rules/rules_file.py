"""Reads rules from YAML: a file of many rules, or the text of one in `gold.rules`. Problems carry line and column."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import yaml
from pydantic import ValidationError

from sessionlake.feeds.topics import describe_unknown_feed
from sessionlake.gold.aggregate.sources import DeclaredColumns
from sessionlake.gold.rules.parse import ConditionParseError
from sessionlake.gold.rules.rule import Rule, RuleSettings, compile_rule
from sessionlake.protocol.columns import find_repeated_names
from sessionlake.settings.bounded_yaml import BoundedLoader, explain_yaml_error, find_error_position
from sessionlake.settings.texts import describe_setting_error

_NAME, _WHEN = "name", "when"


@dataclass(frozen=True)
class RuleProblem:
    """A reason why a rule cannot be used, and the place in the text that is wrong.

    Attributes:
        line: line of the text, counted from 1.
        column: column of the line, counted from 1.
        reason: what is wrong, in words.
        rule: name of the rule; None if the text does not name it.
    """

    line: int
    column: int
    reason: str
    rule: str | None = None

    def __str__(self) -> str:
        return f"{self.line}:{self.column}: {f'rule {self.rule}: ' if self.rule else ''}{self.reason}"


@dataclass(frozen=True)
class StoredRule:
    """A parsed rule, and its YAML text as stored in `gold.rules`: all its settings except the name."""

    rule: Rule
    text: str


def parse_rules_file(text: str, declared: DeclaredColumns) -> tuple[list[StoredRule], list[RuleProblem]]:
    """Parses the YAML text of a file of rules, `rules: [{name: …, when: …}, …]`.

    Args:
        text: the text.
        declared: the columns that conditions may use.

    Returns:
        The valid rules, and the problems of the invalid rules or of the whole file.
    """
    root, problems = _parse_yaml_mapping(text)
    if root is None:
        return [], problems
    listed = _find_value_node(root, "rules")
    if not isinstance(listed, yaml.SequenceNode) or len(root.value) != 1:
        return [], [_create_rule_problem_at(root, "expected a single key, rules, with a list of rules")]
    read = [_parse_rule(node, None, declared, text) for node in listed.value]
    rules = [one for one in read if isinstance(one, StoredRule)]
    problems = [problem for one in read if not isinstance(one, StoredRule) for problem in one]
    for name in find_repeated_names(one.rule.name for one in rules):
        problems.append(_create_rule_problem_at(listed, f"two rules have the name {name}"))
    return rules, problems


def parse_rule_text(name: str, text: str, declared: DeclaredColumns) -> Rule | RuleProblem:
    """Parses the rule in a row of `gold.rules`. Returns the rule, or the first problem. Never raises an exception.

    Args:
        name: name of the rule in the row.
        text: YAML text of the rule in the row.
        declared: the columns that conditions may use.
    """
    try:
        root, problems = _parse_yaml_mapping(text)
        found = problems if root is None else _parse_rule(root, name, declared, text)
    except Exception as error:  # noqa: BLE001 - one unreadable text must not stop the other rules
        return RuleProblem(1, 1, f"the rule cannot be read ({type(error).__name__}: {error})")
    return found.rule if isinstance(found, StoredRule) else found[0]


def _parse_yaml_mapping(text: str) -> tuple[yaml.MappingNode | None, list[RuleProblem]]:
    try:
        root = yaml.compose(text, BoundedLoader)
    except yaml.YAMLError as error:
        line, column = find_error_position(error, text)
        return None, [RuleProblem(line or 1, column or 1, f"not YAML: {explain_yaml_error(error)}")]
    if not isinstance(root, yaml.MappingNode):
        return None, [RuleProblem(1, 1, "expected a mapping of keys to values")]
    return root, []


def _parse_rule(
    node: yaml.Node, name: str | None, declared: DeclaredColumns, text: str
) -> StoredRule | list[RuleProblem]:
    if not isinstance(node, yaml.MappingNode):
        return [_create_rule_problem_at(node, "expected a mapping with the keys name and when")]
    try:
        value: dict[str, Any] = BoundedLoader("").construct_document(node)
    except yaml.YAMLError as error:
        line, column = find_error_position(error, text)
        return [RuleProblem(line, column, f"not YAML: {explain_yaml_error(error)}")]
    called = value.get(_NAME) if name is None else name
    label = called if isinstance(called, str) else None
    if value.get(_NAME, called) != called:
        return [_create_problem_of_setting(node, (_NAME,), f"the row's name is {called}; leave this key out", label)]
    settings = _parse_rule_settings(node, value if name is None else value | {_NAME: name}, declared, label)
    if not isinstance(settings, RuleSettings):
        return settings
    try:
        rule = compile_rule(settings, declared)
    except ConditionParseError as error:
        when = _find_value_node(node, _WHEN)
        assert isinstance(when, yaml.ScalarNode)  # noqa: S101  (RuleSettings takes text only)
        return [RuleProblem(*_find_line_and_column(when, error.position, text), error.reason, label)]
    stored = {key: one for key, one in value.items() if key != _NAME}
    return StoredRule(rule, yaml.dump(stored, Dumper=_RuleDumper, sort_keys=False, allow_unicode=True, width=1 << 20))


def _parse_rule_settings(
    node: yaml.Node, value: dict[str, Any], declared: DeclaredColumns, label: str | None
) -> RuleSettings | list[RuleProblem]:
    try:
        settings = RuleSettings.model_validate(value)
    except ValidationError as error:
        return [
            _create_problem_of_setting(node, tuple(one["loc"]), describe_setting_error(one), label)
            for one in error.errors()
        ]
    paths: dict[tuple[str, ...], str | None] = {("feed",): settings.feed}
    paths |= {("sources", prefix, "feed"): one.feed for prefix, one in settings.sources.items()}
    unknown = [(path, feed) for path, feed in paths.items() if feed is not None and feed not in declared.feeds]
    problems = [
        _create_problem_of_setting(node, path, describe_unknown_feed(feed, declared.feeds), label)
        for path, feed in unknown
    ]
    return problems or settings


class _RuleDumper(yaml.SafeDumper):
    """Writes YAML, with texts of several lines in YAML's literal style (`|`)."""


_RuleDumper.add_representer(
    str,
    lambda dumper, text: dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None),
)


def _find_value_node(node: yaml.Node, key: str) -> yaml.Node | None:
    if not isinstance(node, yaml.MappingNode):
        return None
    return next((value for found, value in node.value if found.value == key), None)


def _create_problem_of_setting(
    node: yaml.Node, path: Sequence[int | str], message: str, rule: str | None
) -> RuleProblem:
    """Returns a problem of one setting of a rule, with the setting's line and column.

    Args:
        node: the rule.
        path: the keys and indices that lead to the setting. If it does not exist, the nearest existing one counts.
        message: what is wrong.
        rule: name of the rule; None if unknown.
    """
    at, named = node, ".".join(map(str, path))
    for step in path:
        inside = (
            at.value[step]
            if isinstance(at, yaml.SequenceNode) and isinstance(step, int)
            else _find_value_node(at, str(step))
        )
        if inside is None:
            break
        at = inside
    return _create_rule_problem_at(at, f"{named}: {message.removeprefix('Value error, ')}", rule)


def _create_rule_problem_at(node: yaml.Node, reason: str, rule: str | None = None) -> RuleProblem:
    return RuleProblem(node.start_mark.line + 1, node.start_mark.column + 1, reason, rule)


def _find_line_and_column(node: yaml.ScalarNode, at: int, text: str) -> tuple[int, int]:
    """Returns the line and column, counted from 1, of one character of a YAML text value.

    For a value that YAML folds over several lines, the start of the value is returned.

    Args:
        node: the text value.
        at: index of the character in the value.
        text: the whole YAML text.
    """
    line, column = node.start_mark.line, node.start_mark.column
    if node.style == "|":
        before = str(node.value)[:at].split("\n")
        line += len(before)
        indented = len(text.splitlines()[line]) - len(str(node.value).split("\n")[len(before) - 1])
        return line + 1, indented + len(before[-1]) + 1
    if node.start_mark.line == node.end_mark.line:
        return line + 1, column + 1 + at + (node.style in ("'", '"'))
    return line + 1, column + 1
