"""Definitions of the tables of rules, in the schema `gold`. `schemas.tables` collects all definitions."""

from __future__ import annotations

from sessionlake.delta.schemas.columns import GOLD_BATCH, ORDINAL, PARTITION, ROW_ID, SESSION_ID, TOPIC, TS
from sessionlake.delta.schemas.definition import Column, TableSchema, WriteMode
from sessionlake.delta.schemas.names import RULE_EVENTS, RULE_MATCHES, RULE_STATUS, RULE_TIMES, RULES

RULE_SCHEMAS: dict[str, TableSchema] = {
    RULES: TableSchema(
        (
            Column("name", "string", "Name of the rule"),
            Column("text", "string", "The rule as YAML, without its name"),
            Column("enabled", "boolean", "False if the rule is not to be evaluated"),
            Column("updated_at", "timestamp", "Wall-clock time of the last change; null if its writer gave none"),
        ),
        "Rules as users write and edit them; a running gold applies them within seconds",
        written_by="cli.rules",
        writes=WriteMode.BOTH,
    ),
    RULE_STATUS: TableSchema(
        (
            Column("rule", "string", "Name of the rule"),
            Column("version", "string", "Fingerprint of what the rule says; null if it is not evaluated"),
            Column("text", "string", "The rule as YAML, as gold read it; null if it has no text"),
            Column("error", "string", "Why the rule is not evaluated; null if it is"),
            Column("taken_by", "bigint", "Number of the gold batch that read the rule so first"),
        ),
        "Enabled rules: since which batch gold evaluates each, or why it does not",
        written_by="gold.alerts.rule_loading",
        writes=WriteMode.REPLACE,
    ),
    RULE_TIMES: TableSchema(
        (TOPIC, Column("ts", "bigint", "Highest event time read of the topic, ms since 1970")),
        "Event time of each topic up to which rules were evaluated",
        written_by="gold.alerts.step",
        writes=WriteMode.REPLACE,
    ),
    RULE_MATCHES: TableSchema(
        (
            Column("event", "string", "Fingerprint of the condition that the change meets"),
            TOPIC,
            SESSION_ID,
            PARTITION,
            ROW_ID,
            TS,
            Column("life", "bigint", "The session's _life under class once, else -1"),
            Column("position", "bigint", "seq of the message under class once, else its _position"),
            ORDINAL,
            Column("value", "string", "Value of the column that is part of the rule's key; null if none is"),
        ),
        "Changes that meet a condition in the pattern of a rule",
        written_by="gold.alerts.step",
        cluster_by=("event",),
        statistics_columns=("event", "ts"),
        writes=WriteMode.BOTH,
    ),
    RULE_EVENTS: TableSchema(
        (
            Column("rule", "string", "Name of the rule"),
            Column("rule_version", "string", "Fingerprint of what the rule says"),
            Column("topic", "string", "Kafka topic; null if it is not part of the rule's key"),
            Column("session_id", "string", "Id of the capture session; null if it is not part of the rule's key"),
            Column("partition", "int", "The session's Kafka partition; null unless topic and session_id have values"),
            Column("row_id", "string", "Id of the row; null if it is not part of the rule's key"),
            Column("value", "string", "Value of the column that is part of the rule's key; null if none is"),
            Column("event", "string", "raised, cleared, or retracted (an alert before is taken back)"),
            Column("retracts", "string", "The event that is taken back; null unless event is retracted"),
            Column(
                "window_start",
                "timestamp",
                "Event time from which the alert was evaluated; null if it is retracted, or had no bound",
            ),
            Column("window_end", "timestamp", "Event time of the alert"),
            Column(
                "values",
                "map<string,double>",
                "What decided it: the rule's aggregates, as it writes them, and their values; null if it is retracted",
            ),
            Column("late", "boolean", "True if a late point changed what had been said"),
            Column("late_ts", "timestamp", "First late event time that the alert can rest on; null if it is not late"),
            Column("cause", "string", "Why it is written: on time, late data, or new or changed rule"),
            GOLD_BATCH,
        ),
        "Alerts raised, cleared and retracted, with the values that decided and the version of the rule",
        written_by="gold.alerts.step",
        cluster_by=("rule",),
        statistics_columns=("rule", "window_end", "_batch"),
        writes=WriteMode.BOTH,
    ),
}
"""Definitions of the tables of rules, by two-level table name."""
