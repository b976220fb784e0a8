"""`sessionlake rules`: checks rules in a file, tests them on past data, and writes them into `gold.rules`."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import uuid4

import pyarrow as pa
from yaml import YAMLError

from sessionlake.cli.options import Say
from sessionlake.cli.show import OutputFormat, show_rows
from sessionlake.delta.commit import merge_rows
from sessionlake.delta.lake import Lake
from sessionlake.delta.schemas.names import RULE_STATUS, RULE_TIMES, RULES
from sessionlake.delta.storage.far_times import find_nearest_datetime
from sessionlake.delta.storage.reading import TableReader
from sessionlake.delta.storage.txn import Txn
from sessionlake.delta.storage.upsert import Upsert
from sessionlake.errors import ConfigError, UsageError
from sessionlake.gold.aggregate.order import OnceTopics
from sessionlake.gold.alerts.lake_rule_inputs import LakeRuleInputs, find_pattern_matches, read_stream_times
from sessionlake.gold.alerts.rule_loading import load_enabled_rules, read_rules_from_status_table
from sessionlake.gold.changes import get_value_columns
from sessionlake.gold.rules.alerts import KEY
from sessionlake.gold.rules.batch import compute_alert_log_rows
from sessionlake.gold.rules.log_rows import RuleBatchData
from sessionlake.gold.rules.patterns import MATCH, list_events_to_find
from sessionlake.gold.rules.rules_file import StoredRule, parse_rules_file
from sessionlake.gold.tables.expiry import read_first_bucket_times
from sessionlake.settings.file import read_text
from sessionlake.settings.model import Settings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_COLUMNS = ("text", "enabled", "updated_at")
_TESTED = ("rule", "change", *KEY, "event", "at", "values")


def load_alert_rules(settings: Settings, file: Path) -> list[StoredRule]:
    """Returns the rules in a file, parsed.

    Raises:
        UsageError: The file cannot be read.
        ConfigError: Rules in the file are invalid. The text gives line and column of each fault.
    """
    try:
        text = read_text(file)
    except (OSError, UnicodeDecodeError, YAMLError) as error:
        raise UsageError(
            f"rules test: the file {file} cannot be read: {error}", fix="Name a YAML file with rules"
        ) from None
    rules, problems = parse_rules_file(text, get_value_columns(settings))
    if problems:
        raise ConfigError("\n".join(f"{file}:{problem}" for problem in problems))
    return rules


def write_alert_rules(
    spark: SparkSession, settings: Settings, rules: Sequence[StoredRule], say: Say, *, only: bool
) -> None:
    """Writes rules into `gold.rules`, and tells the user how many changed. A rule replaces the one with the same name.

    Args:
        spark: The Spark session.
        settings: The configuration.
        rules: The rules.
        say: Shows a line to the user.
        only: True to disable all other rules.
    """
    lake = Lake(settings)
    lake.create_or_update_tables(spark, [RULES])
    stored = {row["name"]: row for row in lake.reader(spark).read_rows(RULES)}
    now = datetime.now(UTC)
    rows = [{"name": one.rule.name, "text": one.text, "enabled": True, "updated_at": now} for one in rules]
    rows = [row for row in rows if _get_rule_text_and_enabled(stored.get(str(row["name"]))) != (row["text"], True)]
    unchanged, named = len(rules) - len(rows), {one.rule.name for one in rules}
    others = [row for name, row in stored.items() if only and name not in named and row["enabled"]]
    rows += [row | {"enabled": False, "updated_at": now} for row in others]
    if rows:
        source = pa.Table.from_pylist(rows, lake.reader(spark).read_table_schema(RULES))
        merge_rows(spark, lake, RULES, source, Upsert(("name",), _COLUMNS), Txn(f"rules-{uuid4()}", 0))
    written = len(rows) - len(others)
    say(
        f"{written} rules written, {unchanged} unchanged, {len(others)} disabled; a running gold applies them within "
        "seconds, otherwise run `sessionlake run gold --once`"
    )


def _get_rule_text_and_enabled(row: dict[str, object] | None) -> tuple[object, object] | None:
    return None if row is None else (row["text"], row["enabled"])


def show_alert_rules(reader: TableReader, settings: Settings, form: OutputFormat) -> None:
    """Prints the rules in `gold.rules`, and whether gold evaluates each."""
    declared = get_value_columns(settings)
    evaluated = (
        {rule.name: rule for rule in read_rules_from_status_table(reader, declared)}
        if reader.exists(RULE_STATUS)
        else {}
    )
    rows = []
    stored = list(reader.read_rows(RULES))
    for rule in load_enabled_rules(stored, declared, -1, settings.gold.retention.shortest_retention):
        now = evaluated.get(rule.name)
        is_current = now is not None and (now.rule, now.error) == (rule.rule, rule.error)
        state = "waits for gold" if not is_current else "stopped" if rule.error else "evaluated"
        version = None if rule.rule is None else rule.rule.version
        rows.append((rule.name, state, version, None if now is None or not is_current else now.batch, rule.error))
    rows += [(row["name"], "disabled", None, None, None) for row in stored if not row["enabled"]]
    show_rows(("rule", "state", "version", "since_batch", "error"), rows, form)


@dataclass(frozen=True)
class _LakeWithAddedEvents(LakeRuleInputs):
    """The lake, with events added that tested rules need and that gold has not recorded yet.

    Attributes:
        events: The added events.
    """

    events: pa.Table

    def read_pattern_matches(self, event_ids: Sequence[str], since_ms: int | None) -> pa.Table:
        del event_ids, since_ms
        return self.events


def print_alerts_of_tried_rules(
    reader: TableReader, settings: Settings, rules: Sequence[StoredRule], form: OutputFormat, say: Say
) -> None:
    """Prints which alerts the rules would add to gold's log of alerts, and which they would remove. Writes no table."""
    declared = get_value_columns(settings)
    if not reader.exists(RULES):
        raise UsageError(
            "rules test: gold has not run yet, so there are no events to test rules on",
            fix="Run `sessionlake run gold --once` first",
        )
    times = {row["topic"]: row["ts"] for row in reader.read_rows(RULE_TIMES)} or read_stream_times(reader, declared)
    tried = [one.rule for one in rules]
    events = list_events_to_find(tried)
    since = ("_ts", operator.ge, min(events.values(), default=0))
    once = OnceTopics(settings.capture)
    matches = find_pattern_matches(reader, list(events), declared, once, since) if events else MATCH.empty_table()
    batch = RuleBatchData(times, times, pa.table({}), matches, read_first_bucket_times(reader))
    rows = compute_alert_log_rows([], tried, batch, _LakeWithAddedEvents(reader, matches))
    show_rows(
        _TESTED,
        [
            (
                row.rule.name, "lost" if one.retracted else "gained", *one.alert.key, one.alert.event,
                find_nearest_datetime(one.alert.at_ms), dict(one.evidence.values) if one.evidence else None,
            )
            for row in rows
            for one in [row.change]
        ],
        form,
    )  # fmt: skip
    for rule in tried:
        lost = sum(row.change.retracted for row in rows if row.rule is rule)
        gained = sum(row.rule is rule for row in rows) - lost
        say(f"{rule.name}: {gained} alerts gained, {lost} lost")
