"""Times by topic: up to where events were read, and from where on there are slices of them."""

from __future__ import annotations

from collections.abc import Mapping

from sessionlake.gold.rules.alerts import Alert
from sessionlake.gold.rules.rule import Rule
from sessionlake.gold.rules.tree import MINUTE_MS

StreamTimes = Mapping[str, int]
"""Of topics, in ms."""


def stream_time(rule: Rule, topic: str | None, times: StreamTimes) -> int | None:
    """Stream time of a key, or None where nothing was read.

    Args:
        topic: None: the key is across topics.
    """
    if topic is not None:
        return times.get(topic)
    return max((time for name, time in times.items() if rule.reads(name)), default=None)


def can_tell(rule: Rule, alert: Alert, begins: StreamTimes) -> bool:
    """Whether all is there that decides if a rule of windows says this: what it held a minute before, too.

    Args:
        begins: where the slices of topics begin of which some are gone.
    """
    begin = stream_time(rule, alert.key[0], begins)
    return begin is None or alert.at_ms > begin + rule.longest * MINUTE_MS
