"""The preset `aws_shadow` has at each version the shadow that moto answers, an independent implementation of AWS IoT's.

`recordings/shadows.json` was made by `support/record_shadows.py`. It names the version of moto and the calls.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sessionlake.feeds.events import DecodedMessage
from sessionlake.feeds.reader import KafkaRecord, read_record
from sessionlake.feeds.table import SessionTable
from sessionlake_lab.truth import KafkaMessage
from support.feed_cases import feed
from support.folding import Folder
from support.preset_cases import THINGS
from support.streams import cut
from unit.test_feed_rows import rows_of, settings

SHADOWS: list[dict[str, Any]] = json.loads((Path(__file__).parent / "recordings/shadows.json").read_text())["shadows"]
Attributes = dict[tuple[str, str], str]
"""Values as JSON by section and name. As texts, 1 is not true."""


def topic_of(shadow: dict[str, Any]) -> str:
    name = f"/name/{shadow['shadowName']}" if "shadowName" in shadow else ""
    return f"$aws/things/{shadow['thingName']}/shadow{name}/update/documents"


def documents_of(shadow: dict[str, Any]) -> Iterator[tuple[dict[str, Any], Attributes]]:
    """Yields the message after each update, and the attributes that moto then answers."""
    previous = None
    for step in shadow["steps"]:
        answer = step.get("answer")
        if answer is None:  # the shadow was deleted
            previous = None
            continue
        current = {name: answer[name] for name in ("state", "metadata", "version")}
        document = {} if previous is None else {"previous": previous}
        attributes = {
            (section, name): json.dumps(value, sort_keys=True)
            for section, values in answer["state"].items()
            for name, value in values.items()
        }
        yield document | {"current": current, "timestamp": answer["timestamp"]}, attributes
        previous = current


def attributes_of(rows: dict[str, dict[str, Any]]) -> Attributes:
    return {
        (row["section"], row["attribute"]): json.dumps(json.loads(row["value"]), sort_keys=True)
        for row in rows.values()
    }


def message(shadow: dict[str, Any], offset: int, document: dict[str, Any]) -> KafkaMessage:
    at = document["timestamp"] * 1000
    return KafkaMessage("things", 0, offset, at, topic_of(shadow).encode(), json.dumps(document).encode())


@pytest.mark.parametrize("shadow", SHADOWS, ids=topic_of)
def test_the_table_is_the_shadow_at_each_version(shadow: dict[str, Any]) -> None:
    table = SessionTable(feed(THINGS))
    for offset, (document, attributes) in enumerate(documents_of(shadow)):
        found = read_record(table.feed, KafkaRecord(*message(shadow, offset, document)[:6]))
        assert isinstance(found, DecodedMessage), found
        for event in found.events:
            table.apply_event(event)
        assert attributes_of(table.rows) == attributes
        assert table.last_seq == document["current"]["version"]
    assert (table.gaps, table.duplicates) == (0, 0)


def test_silver_has_all_shadows_and_notices_a_lost_document() -> None:
    rnd = random.Random(1)
    sent = [(shadow, *one) for shadow in SHADOWS for one in documents_of(shadow)]
    messages = [message(shadow, offset, document) for offset, (shadow, document, _) in enumerate(sent)]
    last = {topic_of(shadow): attributes for shadow, _, attributes in sent}
    rules = settings(THINGS)
    for lost, gaps in ((None, 0), (1, 1)):
        folder = Folder(rules, 3, rnd)
        for batch in cut(rnd, [one for one in messages if one.offset != lost], 7):
            folder.batch(batch)
        rows = rows_of(folder.silver, rules.feeds[0].build())
        assert {session: attributes_of(found) for session, found in rows.items()} == last
        assert sum(session["gaps"] for session in folder.silver.sessions.values()) == gaps
        assert not folder.silver.quarantine
