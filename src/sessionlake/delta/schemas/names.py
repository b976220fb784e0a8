"""The names of all tables, layers and claims. The modules of `schemas` define the tables' columns.

All modules name a table `<schema>.<table>`. `Lake` maps this name to a folder or to a table in a catalog. A claim is
the exclusive right of one process to do something, such as to run a layer.
"""

from __future__ import annotations

MESSAGES = "bronze.messages"
DAMAGED = "bronze.damaged_members"

CHANGES = "silver.session_changes"
PROGRESS = "silver.session_progress"
CUTS = "silver.session_cuts"
QUARANTINE = "silver.quarantine"
EVENTS = "silver.integrity_events"
ROWS = "silver.session_rows"
SESSIONS = "silver.sessions"
SNAPSHOTS = "silver.session_snapshots"
SNAPSHOT_INDEX = "silver.session_snapshot_index"
PROCESSOR_ERRORS = "silver.processor_errors"

AVERAGES = "gold.rolling_average"
SENSOR_AVERAGES = "gold.sensor_average"
RESTATEMENTS = "gold.restatements"
LATE_POINTS = "gold.late_points"
METRICS_1M = "gold.metrics_1m"
METRICS_1H = "gold.metrics_1h"
METRICS_1D = "gold.metrics_1d"
DISTINCT_VALUES = "gold.distinct_values"
REFERENCE = "reference."
"""Prefix of the names of reference tables, which users write."""
PRODUCTS = (METRICS_1M, METRICS_1H, METRICS_1D, DISTINCT_VALUES)
"""Tables of gold whose rows are aggregates. New values are merged into them."""
SESSION_SUMMARY = "gold.session_summary"
DATA_QUALITY = "gold.data_quality"
VIEWS = (SESSION_SUMMARY, DATA_QUALITY)
"""Views in the schema `gold`, which are computed from silver's tables when they are queried."""
SESSION_AS_OF = "session_as_of"
METRICS_BETWEEN = "metrics_between"
DATA_QUALITY_SINCE = "data_quality_since"
FIGURES_WITH = "figures_with"
FUNCTIONS = tuple(
    f"{schema}.{name}"
    for schema, name in (
        ("silver", SESSION_AS_OF),
        ("gold", METRICS_BETWEEN),
        ("gold", DATA_QUALITY_SINCE),
        ("gold", FIGURES_WITH),
    )
)
"""SQL table functions of the lake, by their names in a catalog. On a laptop the names have no schema."""

RULES = "gold.rules"
RULE_STATUS = "gold.rule_status"
RULE_TIMES = "gold.rule_times"
RULE_MATCHES = "gold.rule_matches"
RULE_EVENTS = "gold.rule_events"
RULE_RESULTS = (RULE_STATUS, RULE_TIMES, RULE_MATCHES, RULE_EVENTS)
"""Tables with the results of the rules in `gold.rules`."""

LOOKUP_FAILURES = "gold.lookup_failures"

DECISIONS = "ops.decisions"
TOPICS = "ops.topics"
ABSENT = "ops.absent_offsets"
LEDGER = "ops.ledger"
POSITIONS = "ops.positions"
LEASES = "ops.leases"
RETAINED = "ops.retained"
ERASURES = "bronze.erasures"
RETENTION_CLAIM = "retention"
FORGET_CLAIM = "forget"
CLAIMED_TABLES = {RETENTION_CLAIM: (RETAINED, POSITIONS), FORGET_CLAIM: (ERASURES,)}
"""For each claim, the tables that only its holder may change, with functions like `replace_rows_as_claim_holder`."""

BRONZE = "bronze"
SILVER = "silver"
SILVER_TABLES = "silver_tables"
"""Layer name in the ledger for the MERGEs that follow silver's stream and write its MERGE tables."""
GOLD = "gold"
SILENCES_APP = "silences"
TOPICS_APP = "topics"
WRITTEN_OUTSIDE_BATCHES = {BRONZE: ((MESSAGES, SILENCES_APP), (TOPICS, TOPICS_APP))}
"""For each claim, tables that its holder also writes outside of batches: the table, and the writes' application id."""
