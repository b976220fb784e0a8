"""The ground truth: the silver tables expected for given Kafka messages, from an independent implementation.

It follows the protocol literally: one message after the other, with dictionaries and the standard library. It shares no
code with the pipeline, so an error goes unnoticed only if both implementations have it.
"""

from __future__ import annotations

from sessionlake_lab.truth.files import (
    hash_session_table,
    hash_session_tables,
    read_expected_tables,
    write_expected_tables,
)
from sessionlake_lab.truth.judge import GroundTruth
from sessionlake_lab.truth.model import CaptureRules, ExpectedTables, KafkaMessage, TruthViolationError

__all__ = [
    "CaptureRules",
    "ExpectedTables",
    "GroundTruth",
    "KafkaMessage",
    "TruthViolationError",
    "hash_session_table",
    "hash_session_tables",
    "read_expected_tables",
    "write_expected_tables",
]
