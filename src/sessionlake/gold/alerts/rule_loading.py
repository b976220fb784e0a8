"""Loads rules from `gold.rules`, and records in `gold.rule_status` which of them gold evaluates."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING

import pyarrow as pa

from sessionlake.delta.commit import create_txn_outside_queries, delete_all_rows, replace_rows
from sessionlake.delta.lake import Lake
from sessionlake.delta.schemas.names import RULE_MATCHES, RULE_RESULTS, RULE_STATUS, RULE_TIMES, RULES
from sessionlake.delta.storage.reading import TableReader
from sessionlake.delta.storage.txn import Txn
from sessionlake.gold.aggregate.sources import DeclaredColumns
from sessionlake.gold.rules.condition_tree import Pattern
from sessionlake.gold.rules.rule import Rule
from sessionlake.gold.rules.rules_file import parse_rule_text
from sessionlake.protocol.types import Row

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_STATUS = pa.schema([(name, pa.string()) for name in ("rule", "version", "text", "error")] + [("taken_by", pa.int64())])
TIMES = pa.schema([("topic", pa.string()), ("ts", pa.int64())])


@dataclass(frozen=True)
class LoadedRule:
    """One enabled rule of `gold.rules`, as gold loaded it.

    Attributes:
        name: the rule's name in `gold.rules`.
        text: the rule's YAML text in `gold.rules`; None if the row has none.
        rule: the parsed rule; None if it cannot be evaluated.
        error: why the rule cannot be evaluated; None if it can.
        batch: number of the first gold batch that loaded the rule in its present form.
    """

    name: str
    text: str | None
    rule: Rule | None
    error: str | None
    batch: int

    @property
    def status_row(self) -> Row:
        """The rule as a row of `gold.rule_status`."""
        version = None if self.rule is None else self.rule.version
        return {"rule": self.name, "version": version, "text": self.text, "error": self.error, "taken_by": self.batch}


def load_enabled_rules(
    rows: Iterable[Row], declared: DeclaredColumns, batch: int, bucket_retention: timedelta | None = None
) -> list[LoadedRule]:
    """Returns the enabled rules of `gold.rules`, ordered by name.

    Args:
        rows: the rows of `gold.rules`.
        declared: the columns that conditions may use.
        batch: number of the gold batch that loads the rules.
        bucket_retention: the shortest retention of `metrics_1m`, `metrics_1h` and `metrics_1d`; None if their rows stay
            for ever. Rules with longer windows cannot be evaluated.
    """
    enabled: dict[str, list[str | None]] = {}
    for row in rows:
        if row["enabled"]:
            enabled.setdefault(row["name"] or "", []).append(row["text"])
    return [
        _parse_enabled_rule(name, texts, declared, batch, bucket_retention) for name, texts in sorted(enabled.items())
    ]


def _parse_enabled_rule(
    name: str, texts: list[str | None], declared: DeclaredColumns, batch: int, bucket_retention: timedelta | None
) -> LoadedRule:
    text = texts[0]
    if len(texts) > 1:
        return LoadedRule(name, text, None, f"{len(texts)} rows of {RULES} have this name", batch)
    if text is None:
        return LoadedRule(name, text, None, "the rule has no text", batch)
    parsed = parse_rule_text(name, text, declared)
    if not isinstance(parsed, Rule):
        return LoadedRule(name, text, None, f"line {parsed.line}, column {parsed.column}: {parsed.reason}", batch)
    is_pattern = isinstance(parsed.tree, Pattern)
    if (
        bucket_retention is not None
        and not is_pattern
        and timedelta(minutes=parsed.longest_window_minutes) >= bucket_retention
    ):
        error = f"the longest window must be shorter than gold.retention ({bucket_retention})"
        return LoadedRule(name, text, None, error, batch)
    return LoadedRule(name, text, parsed, None, batch)


def read_rules_from_status_table(reader: TableReader, declared: DeclaredColumns) -> list[LoadedRule]:
    """Returns the rules in `gold.rule_status`, where gold records the rules that it evaluates, ordered by name."""
    found = []
    for row in reader.read_rows(RULE_STATUS):
        parsed = None if row["error"] else parse_rule_text(row["rule"], row["text"], declared)
        rule = parsed if isinstance(parsed, Rule) else None
        found.append(LoadedRule(row["rule"], row["text"], rule, row["error"], row["taken_by"]))
    return sorted(found, key=lambda one: one.name)


def delete_rule_evaluation_records(spark: SparkSession, lake: Lake) -> None:
    """Deletes gold's records about rules, so that its next batch evaluates all rules over all stored history."""
    lake.create_or_update_tables(spark, [table for table in RULE_RESULTS if lake.exists(spark, table)])
    if lake.exists(spark, RULE_STATUS):
        replace_rows(spark, lake, RULE_TIMES, TIMES.empty_table())
        replace_rows(spark, lake, RULE_STATUS, _STATUS.empty_table())
    if lake.exists(spark, RULE_MATCHES):  # new rules search all changes for their events
        delete_all_rows(spark, lake, RULE_MATCHES, create_txn_outside_queries(spark, lake, RULE_MATCHES, "forget"))


class RuleLoader:
    """Loads the rules of `gold.rules` for each gold batch.

    A batch records its rules in `gold.rule_status` before it evaluates them. If the batch is replayed, it evaluates the
    recorded rules, even if `gold.rules` has changed since. Otherwise it could log other alerts than the first time.
    """

    def __init__(self, lake: Lake, declared: DeclaredColumns, bucket_retention: timedelta | None = None) -> None:
        self._lake, self._declared, self._bucket_retention = lake, declared, bucket_retention
        self._version: int | None = None
        self._loaded: list[LoadedRule] = []

    def load_rules(self, spark: SparkSession, txn: Txn) -> list[LoadedRule]:
        """Returns the rules to evaluate in the current batch.

        If `gold.rules` has not changed since the last batch, only its version number is read.

        Args:
            txn: the batch's transaction, whose version is the batch's number.
        """
        version = self._lake.latest_version(spark, RULES)
        if version == self._version:
            return self._loaded
        before, now = self._read_recorded_and_current_rules(spark, txn.version)
        self._loaded = (
            before
            if _build_status_rows(now) == _build_status_rows(before)
            else self._record_rules_of_batch(spark, now, txn)
        )
        self._version = version if _build_status_rows(now) == _build_status_rows(self._loaded) else None
        return self._loaded

    def find_changed_rules(self, spark: SparkSession, batch: int) -> tuple[list[LoadedRule], list[LoadedRule]] | None:
        """Returns the recorded rules and the rules in `gold.rules`; None if both are the same.

        Args:
            batch: number of the last gold batch. Rules that differ from the recorded ones get this number.
        """
        version = self._lake.latest_version(spark, RULES)
        if version == self._version or (version == 0 and not self._lake.exists(spark, RULE_STATUS)):
            return None  # version 0 is an empty table, and without a status no rule was loaded before
        before, now = self._read_recorded_and_current_rules(spark, batch)
        if _build_status_rows(now) != _build_status_rows(before):
            return before, now
        self._version, self._loaded = version, before
        return None

    def _read_recorded_and_current_rules(
        self, spark: SparkSession, batch: int
    ) -> tuple[list[LoadedRule], list[LoadedRule]]:
        """Returns the recorded rules and the rules in `gold.rules`. New and changed rules get this batch number."""
        reader = self._lake.reader(spark)
        before = read_rules_from_status_table(reader, self._declared) if reader.exists(RULE_STATUS) else []
        rules = load_enabled_rules(reader.read_rows(RULES), self._declared, batch, self._bucket_retention)
        return before, _keep_batch_numbers_of_unchanged_rules(before, rules)

    def record_applied_rules(self, spark: SparkSession, rules: list[LoadedRule]) -> None:
        """Writes rules to `gold.rule_status`, after they were evaluated over everything that gold has read."""
        if not rules:
            replace_rows(spark, self._lake, RULE_TIMES, TIMES.empty_table())
        replace_rows(spark, self._lake, RULE_STATUS, pa.Table.from_pylist(_build_status_rows(rules), _STATUS))
        self._version = None  # the next call compares the table with what is recorded now

    def _record_rules_of_batch(self, spark: SparkSession, rules: list[LoadedRule], txn: Txn) -> list[LoadedRule]:
        """Writes rules to `gold.rule_status`, unless this is a replay of a batch that already did.

        Returns:
            The rules that are recorded now. In a replay these are the rules of the first attempt.
        """
        self._lake.create_or_update_tables(spark, RULE_RESULTS)
        if not rules:  # the next rule then starts from everything that was read by then
            replace_rows(spark, self._lake, RULE_TIMES, TIMES.empty_table(), txn)
        replace_rows(spark, self._lake, RULE_STATUS, pa.Table.from_pylist(_build_status_rows(rules), _STATUS), txn)
        return read_rules_from_status_table(self._lake.reader(spark), self._declared)


def _build_status_rows(rules: Iterable[LoadedRule]) -> list[Row]:
    return [one.status_row for one in rules]


def _keep_batch_numbers_of_unchanged_rules(
    earlier: Iterable[LoadedRule], current: Iterable[LoadedRule]
) -> list[LoadedRule]:
    """Returns the current rules. A rule that has not changed gets its batch number from `earlier`."""
    known = {one.name: one for one in earlier}
    return [_keep_batch_number_if_unchanged(known.get(one.name), one) for one in current]


def _keep_batch_number_if_unchanged(earlier: LoadedRule | None, current: LoadedRule) -> LoadedRule:
    return (
        LoadedRule(current.name, current.text, current.rule, current.error, earlier.batch)
        if earlier is not None and _is_same_rule(earlier, current)
        else current
    )


def _is_same_rule(one: LoadedRule, other: LoadedRule) -> bool:
    return (one.rule, one.error) == (other.rule, other.error)


def select_new_or_changed_rules(
    earlier_rules: Iterable[LoadedRule], current_rules: Iterable[LoadedRule]
) -> list[LoadedRule]:
    """Returns the rules in `current_rules` that are new or changed, compared with the rules in `earlier_rules`."""
    known = {one.name: one for one in earlier_rules}
    return [one for one in current_rules if one.name not in known or not _is_same_rule(known[one.name], one)]
