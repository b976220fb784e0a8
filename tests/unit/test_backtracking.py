"""Patterns of topics that a hostile topic name would make very slow are refused when the configuration is read."""

from __future__ import annotations

import re
import time

import pytest
from pydantic import ValidationError

from sessionlake.protocol.backtracking import find_reason_of_slow_regex_matching
from sessionlake.settings.capture import TopicRule
from sessionlake.settings.model import KafkaSettings, ProcessorSettings

GOOD = [
    r"capture\..+",
    r".*",
    r"capture\.(?:[a-z]+\.)*[a-z]+",
    r"capture(\.[a-z0-9-]+)+",
    r"(?!capture\.test)capture\..+",
    r"capture\.[a-z]+-\d{4}-\d{2}-\d{2}",
    r"\w{4}\w{4}\w{4}\w{4}\w{4}\w{4}",
    r"(capture|archive|backfill)\.(depth|trades)-\d+",
    r".+\..+\..+",
    r"(?i)Capture\.[A-Z]+",
    "|".join(f"capture.sensor-{n:04}" for n in range(500)),
]
BAD = {
    r"(a+)+": "in several ways",
    r"(a|a)+b": "in several ways",
    r"([a-z]|x)*y": "in several ways",
    r"(?i)(a|A)+b": "in several ways",
    r"capture\.(\w+\.?)+x": "in several ways",
    r"(.*)*": "can be empty",
    r"(a?){30}a{30}": "can be empty",
    r"(a|b|ab)*c": "in several ways",
    r".*.*.*.*.*x": "more than 4",
    r".*a.*a.*a.*a.*a.*b": "more than 4",
    r"(a)\1+": "refers back",
    r"(?=(a+)+b)a+": "in several ways",
}


@pytest.mark.parametrize("pattern", GOOD)
def test_a_pattern_that_reads_a_name_in_few_ways_is_taken(pattern: str) -> None:
    assert find_reason_of_slow_regex_matching(pattern) is None


@pytest.mark.parametrize("pattern", BAD)
def test_a_pattern_that_reads_a_name_in_too_many_ways_is_refused_with_the_reason(pattern: str) -> None:
    for made in (lambda: KafkaSettings(topic_pattern=pattern), lambda: TopicRule(pattern=pattern)):
        with pytest.raises(ValidationError, match=f"249 characters.*{re.escape(BAD[pattern])}"):
            made()
    with pytest.raises(ValidationError, match=re.escape(BAD[pattern])):
        ProcessorSettings.model_validate({"name": "p", "class": "m:C", "into": "silver.t", "topics": pattern})


@pytest.mark.parametrize("pattern", GOOD)
def test_a_pattern_that_is_taken_is_quick_on_the_longest_names(pattern: str) -> None:
    compiled, began = re.compile(pattern), time.process_time()
    for character in "a.-0":
        for end in ("", "!", "x"):
            compiled.fullmatch(f"capture.{character * (241 - len(end))}{end}")
            compiled.fullmatch(f"{character * (249 - len(end))}{end}")
    assert time.process_time() - began < 5
