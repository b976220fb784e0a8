"""The years that dates of SQL and of Python can tell: 1 to 9999. Event times and Kafka timestamps may lie outside."""

from __future__ import annotations

FIRST_MS, LAST_MS = -62_135_596_800_000, 253_402_300_799_999
"""The first and the last of their moments, in milliseconds since 1970."""
