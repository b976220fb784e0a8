"""What the tables of rules hold; `schemas` has them among all tables."""

from __future__ import annotations

from sessionlake.delta.schemas.definition import TableSchema, Writes
from sessionlake.delta.schemas.names import RULE_EVENTS, RULE_MATCHES, RULE_STATUS, RULE_TIMES, RULES

_KEY = tuple((name, "string") for name in ("topic", "session_id", "row_id"))

RULE_TABLES: dict[str, TableSchema] = {
    RULES: TableSchema(
        (("name", "string"), ("text", "string"), ("enabled", "boolean"), ("updated_at", "timestamp")),
        "Rules as they are written: to be edited; gold takes them in with its next batch",
        writes=Writes.BOTH,
    ),
    RULE_STATUS: TableSchema(
        (("rule", "string"), ("version", "string"), ("text", "string"), ("error", "string"), ("taken_by", "bigint")),
        "The rules that gold evaluates, since which batch, and why it does not evaluate one",
        writes=Writes.REPLACE,
    ),
    RULE_TIMES: TableSchema(
        (("topic", "string"), ("ts", "bigint")),
        "Stream time of each topic up to which rules were evaluated",
        writes=Writes.REPLACE,
    ),
    RULE_MATCHES: TableSchema(
        (
            ("event", "string"),
            *_KEY,
            ("ts", "bigint"),
            ("life", "bigint"),
            ("position", "bigint"),
            ("ordinal", "int"),
            ("value", "string"),
        ),
        "Changes that are an event of some rule's pattern",
        cluster_by=("event",),
        skipping=("event", "ts"),
        writes=Writes.BOTH,
    ),
    RULE_EVENTS: TableSchema(
        (
            ("rule", "string"),
            ("rule_version", "string"),
            *_KEY,
            ("value", "string"),
            ("event", "string"),
            ("retracts", "string"),
            ("window_start", "timestamp"),
            ("window_end", "timestamp"),
            ("values", "map<string,double>"),
            ("late", "boolean"),
            ("late_ts", "timestamp"),
            ("cause", "string"),
            ("_batch", "bigint"),
        ),
        "Alerts raised, cleared and retracted: what they rest on, which version decided, and why so late",
        cluster_by=("rule",),
        skipping=("rule", "window_end", "_batch"),
        writes=Writes.BOTH,
    ),
}
