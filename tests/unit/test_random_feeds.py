"""Of random feeds, the generated code gives what the slow reader gives, whatever the messages."""

from __future__ import annotations

import random
from collections import Counter

import pytest
import yaml

from sessionlake.feeds.compiled import CompiledFeed
from sessionlake.feeds.feed import Feed
from sessionlake.feeds.lists import EventLists
from sessionlake.feeds.reader import KafkaRecords, read
from support.event_lists import in_order
from support.feed_cases import feed
from support.random_feeds import random_feed, random_records
from support.seeds import seeds

FEEDS, MESSAGES = 60, 30


def compare_readers(seed: int) -> Counter[str]:
    """Compares both readers for many feeds, as far as they are valid; returns what they have read."""
    rnd, seen = random.Random(seed), Counter[str]()
    for _ in range(FEEDS):
        settings, records = random_feed(rnd), random_records(rnd, MESSAGES)
        try:
            valid = feed(yaml.safe_dump(settings))
        except ValueError:
            continue
        compiled, expected = CompiledFeed.of(valid), EventLists.of(valid)
        for number, one in enumerate(records):
            expected.add(valid, number, read(valid, one))
        found = compiled.read(KafkaRecords.of(records))
        assert in_order(found, valid) == in_order(expected, valid), settings
        seen += Counter(feeds=1, code=len(compiled.sources), events=len(expected.message))
        seen += Counter(joined=_count_joined_messages(valid, expected), slow=compiled.slow)
    return seen


def _count_joined_messages(valid: Feed, events: EventLists) -> int:
    """The number of messages of feeds with split rules that have several events."""
    splits = any(rule.split for rule in valid.rules)
    return sum(count > 1 for count in Counter(events.message).values()) if splits else 0


@pytest.mark.parametrize("seed", seeds(3, 600))
def test_both_readers_agree(seed: int) -> None:
    seen = compare_readers(seed)
    assert seen["feeds"] > FEEDS // 3
    assert seen["code"] > seen["feeds"] * 0.8
    assert seen["events"] > 50


def test_these_messages_have_several_events() -> None:
    assert compare_readers(0)["joined"] > 5
