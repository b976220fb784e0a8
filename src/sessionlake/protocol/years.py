"""The range of dates in SQL and Python, the years 1 to 9999. Event times and Kafka timestamps may be outside of it."""

from __future__ import annotations

FIRST_MS, LAST_MS = -62_135_596_800_000, 253_402_300_799_999
"""The first and last moment of these years, in ms since 1970."""
