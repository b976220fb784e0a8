"""The ground truth: what silver must hold for given Kafka messages, computed a second time and on its own.

A judge that reads the protocol as a person would: one message after the other, dictionaries, the standard library.
It shares no code with the pipeline, so an error would have to be made twice, in two different ways, to go unnoticed.
"""

from __future__ import annotations

from sessionlake_lab.truth.files import read, rows_digest, table_digest, write
from sessionlake_lab.truth.judge import Truth
from sessionlake_lab.truth.model import KafkaMessage, Rules, Tables, Violation

__all__ = ["KafkaMessage", "Rules", "Tables", "Truth", "Violation", "read", "rows_digest", "table_digest", "write"]
