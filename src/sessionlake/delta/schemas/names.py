"""The names of all tables and layers, in one place: what they hold is in `schemas`, and each layer writes its own.

A table is named `<schema>.<table>` throughout; `tables.Lake` knows where that is on a laptop and in a catalog.
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
"""How the names of tables begin that users write."""
PRODUCTS = (METRICS_1M, METRICS_1H, METRICS_1D, DISTINCT_VALUES)
"""What gold makes by merging aggregates."""
SESSION_SUMMARY = "gold.session_summary"
DATA_QUALITY = "gold.data_quality"
VIEWS = (SESSION_SUMMARY, DATA_QUALITY)
"""What gold asks of silver's tables, and holds nothing of."""

RULES = "gold.rules"
RULE_STATUS = "gold.rule_status"
RULE_TIMES = "gold.rule_times"
RULE_MATCHES = "gold.rule_matches"
RULE_EVENTS = "gold.rule_events"
RULE_RESULTS = (RULE_STATUS, RULE_TIMES, RULE_MATCHES, RULE_EVENTS)
"""What gold makes of `gold.rules`."""

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
"""By the claim, tables whose rows its holder alone changes: see `replace_claimed` and `merge_claimed` of `commit`."""

BRONZE = "bronze"
SILVER = "silver"
SILVER_TABLES = "silver_tables"
"""The ledger's name for the MERGEs beside silver's stream."""
GOLD = "gold"
SILENCES_APP = "silences"
TOPICS_APP = "topics"
WRITTEN_OUTSIDE_BATCHES = {BRONZE: ((MESSAGES, SILENCES_APP), (TOPICS, TOPICS_APP))}
"""By the claim, tables that a layer also writes outside its batches, and the application ids of those commits."""
