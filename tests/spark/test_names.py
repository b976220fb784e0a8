"""Columns of any name in a real lake: whatever users call them, silver and all that is asked of it is right."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

from sessionlake.commands.rebuild import verify_silver
from sessionlake.config import CaptureSettings, Settings, SilverSettings, TopicRule
from sessionlake.lab.truth import KafkaMessage
from sessionlake.lake.tables import Lake
from sessionlake.protocol.columns import PUBLISHED
from sessionlake.silver import job
from sessionlake.silver.merge.merger import TableMerger
from support.lakes import assert_silver_is_the_truth, limit, write_bronze
from support.names import STRANGE, own_names, usable

NAMES = usable([*STRANGE, *own_names()], *PUBLISHED)
TYPES = ("double", "string", "bigint")
COLUMNS = {name: "string" if name == "id" else TYPES[i % 3] for i, name in enumerate(NAMES)}
STRICT, ONCE = "capture.strict", "capture.once"
SECOND = 1_000


def value(rnd: random.Random, name: str) -> Any:
    kind = COLUMNS[name]
    return (
        rnd.choice([None, 1.5, -2.0])
        if kind == "double"
        else rnd.choice([None, *("xy" if kind == "string" else (1, 2))])
    )


def rows(rnd: random.Random, count: int) -> list[dict[str, Any]]:
    """A row has some of the columns."""
    names = [name for name in NAMES if name != "id"]
    return [
        {name: value(rnd, name) for name in rnd.sample(names, len(names) // 2)} | {"id": row}
        for row in rnd.sample("pqr", count)
    ]


def messages(rnd: random.Random, count: int) -> list[KafkaMessage]:
    """Two sessions; of the second, messages come out of order."""
    found = []
    for topic in (STRICT, ONCE):
        for seq in range(count):
            first = seq % 7 == 0
            body: dict[str, Any] = {"type": "snapshot" if first else "update", "seq": seq, "ts": seq * SECOND}
            body["rows"] = rows(rnd, rnd.randint(1, 3))
            if seq % 5 == 4:
                body["deleted"] = ["q"]
            found.append((topic, body))
        found.append((topic, {"type": "end", "seq": count, "ts": count * SECOND}))
    late = [one for one in found if one[0] == ONCE]
    late[2], late[5] = late[5], late[2]
    told = [*(one for one in found if one[0] == STRICT), *late]
    places = dict.fromkeys((STRICT, ONCE), 0)
    made = []
    for topic, body in told:
        at = places[topic] * 4 * SECOND
        made.append(KafkaMessage(topic, 0, places[topic], at, b"s", json.dumps(body).encode()))
        places[topic] += 1
    return sorted(made, key=lambda message: message.timestamp)


class Lakes:
    """Silver over columns of every name."""

    def __init__(self, spark: Any, location: dict[str, Any]) -> None:
        rules = (TopicRule(pattern=r".*once", integrity="once"),)
        capture = CaptureSettings(columns=COLUMNS, by_topic=rules, on_violation="record")
        silver = SilverSettings(shards=2, snapshot_interval="7 s")
        self.spark, self.settings = spark, Settings(**location, capture=capture, silver=silver)
        self.lake, self.sent = Lake(self.settings), list[KafkaMessage]()
        self.lake.ensure(spark, ["bronze.messages"])

    def arrive(self, found: list[KafkaMessage]) -> None:
        write_bronze(self.spark, self.lake, found)
        self.sent += found
        job.start(self.spark, self.settings, once=True).wait()
        TableMerger(self.spark, self.settings).catch_up()


@pytest.fixture(scope="module")
def lakes(spark: Any, tmp_path_factory: pytest.TempPathFactory) -> Lakes:
    """Three batches, of which the second is merged on the cluster."""
    made = Lakes(spark, {"home": tmp_path_factory.mktemp("names") / "home"})
    every = messages(random.Random(5), 12)
    made.arrive(every[:8])
    with pytest.MonkeyPatch.context() as patch:
        limit(patch, driver_changes=0, driver_cuts=0, driver_bytes=0)
        made.arrive(every[8:16])
    made.arrive(every[16:])
    return made


def test_silver_is_the_truth(lakes: Lakes) -> None:
    assert_silver_is_the_truth(lakes.spark, lakes.settings, lakes.sent)


def test_silver_is_verified_and_rebuilt(lakes: Lakes) -> None:
    said: list[str] = []
    assert verify_silver(lakes.spark, lakes.settings, said.append), said
