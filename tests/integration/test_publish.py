"""A table published to a real broker: whoever folds the topic has the table, through kills, replays and restores."""

from __future__ import annotations

import random
import signal
import struct
from pathlib import Path
from typing import Any

import pytest
import yaml
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, NewTopic

from sessionlake.delta.commit import merge_rows
from sessionlake.delta.lake import Lake
from sessionlake.delta.schemas.names import LEDGER
from sessionlake.delta.storage.txn import Txn
from sessionlake.delta.storage.upsert import Upsert
from sessionlake.errors import BrokerError, LakeError
from sessionlake.kafka.clients import build_librdkafka_client_config
from sessionlake.local.broker import BrokerStatus
from sessionlake.protocol.names import DELETE
from sessionlake.publish.topic import prepare_topic
from sessionlake.settings.model import Settings
from support.lakes import find_table_folder
from support.published import Message, Outgoing, rows_received, without_replays

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]
ROWS = "silver.session_rows"
KEY = ("topic", "partition", "session_id", "row_id")
VALUES: dict[str, list[Any]] = {
    "double": [0.1, -0.0, 5e-324, 1.7976931348623157e308, 1e22, float("nan"), float("inf"), float("-inf")],
    "float": [0.0, -0.0, 0.5, 3.4028234663852886e38, float("nan"), float("-inf")],
    "bigint": [0, 2**63 - 1, -(2**63), 2**53 + 1],
    "tinyint": [-128, 127],
    "string": ["", "ü", "\n", "\x00", "\u2028", "😀", '"\\/', "null"],
    "boolean": [True, False],
}
COLUMNS = {f"a_{kind}": kind for kind in VALUES}
FLOATS = {"a_double", "a_float"}


class Scene(Outgoing):
    """A table that changes at random, and the topics that it is published to."""

    def __init__(self, spark: Any, file: Path, seed: int) -> None:
        super().__init__(spark.newSession(), file)
        self.lake, self.rnd, self.merges = Lake(self.settings), random.Random(seed), 0
        self.lake.create_or_update_tables(spark, [ROWS, LEDGER])
        self.schema = self.lake.read(spark, ROWS).schema.add(DELETE, "boolean")

    def change(self, rows: int = 15) -> None:
        """One version: rows inserted, updated and deleted by a real MERGE, by delta-rs and by Spark in turns."""
        picked = {
            (self.rnd.choice("ab"), f"s{self.rnd.randint(0, 2)}", self.rnd.choice(VALUES["string"]), n % 2): None
            for n in range(rows)
        }
        source = [(*key, *self.values(), partition, self.rnd.random() < 0.3) for *key, partition in picked]
        frame = self.spark.createDataFrame(source, self.schema)
        names = [name for name in self.schema.names if name != DELETE]
        upsert = Upsert(KEY, tuple(name for name in names if name not in KEY), deletes=True)
        self.merges += 1
        rows = frame.toArrow() if self.merges % 2 else frame
        merge_rows(self.spark, self.lake, ROWS, rows, upsert, Txn("test", self.merges))

    def values(self) -> list[Any]:
        rnd = self.rnd
        declared = [rnd.choice([*VALUES[kind], None]) for kind in COLUMNS.values()]
        return [*declared, rnd.choice([None, '{"x":"ö"}']), *(rnd.randint(-(2**63), 2**63 - 1) for _ in range(4))]

    def table(self) -> dict[tuple[str, ...], Any]:
        rows = self.lake.read(self.spark, ROWS).toArrow().to_pylist()
        return {tuple(row[name] for name in KEY): exactly(row) for row in rows}


def folded(messages: list[Message]) -> dict[tuple[str, ...], Any]:
    return {key: exactly(row) for key, row in rows_received(messages, KEY).items()}


def exactly(row: dict[str, Any]) -> dict[str, Any]:
    """Floating-point values by their bits: NaN is itself, and the zeros differ."""
    return {n: struct.pack("d", float(v)) if n in FLOATS and v is not None else v for n, v in row.items()}


def configured(folder: Path, broker: BrokerStatus, **place: Any) -> Path:
    """The configuration of a scene, whose tables are in a home there unless a place is named."""
    kafka = {"bootstrap_servers": broker.bootstrap_servers}
    content = place | {"home": str(folder / "home"), "kafka": kafka, "capture": {"columns": COLUMNS}}
    file = folder / "sessionlake.yml"
    file.write_text(yaml.safe_dump(content, sort_keys=False))
    return file


@pytest.fixture(scope="module")
def scene(spark: Any, broker: BrokerStatus, tmp_path_factory: pytest.TempPathFactory) -> Scene:
    return Scene(spark, configured(tmp_path_factory.mktemp("publish"), broker), seed=11)


def test_whoever_folds_the_topic_has_the_table_through_a_kill_a_replay_and_a_restore(scene: Scene) -> None:
    topic = f"{scene.file.parent.name}.killed"  # a catalog's scene has another
    scene.change()
    assert scene.publish(ROWS, topic).startswith("done: ")
    assert folded(scene.sent(topic)) == scene.table()
    scene.change()
    scene.change()
    scene.lake.open_delta_table(scene.spark, ROWS).restoreToVersion(
        1
    )  # deletes and inserts the same rows in one version
    killed = scene.publish_killed(ROWS, topic, "after:kafka")
    assert killed.returncode == -signal.SIGKILL, killed.stderr[-3000:]
    scene.change()
    scene.publish(ROWS, topic)
    messages = scene.sent(topic)
    assert folded(messages) == scene.table()

    once = set(messages)
    assert len(messages) > len(once), "nothing was replayed"
    assert len({(m.key, m.version) for m in once}) == len(once), "one message a key and version, and the same again"
    assert folded(without_replays(messages)) == scene.table()
    ledger = scene.lake.read(scene.spark, LEDGER).collect()
    assert sum(row["messages"] for row in ledger if row["layer"].endswith(topic)) == len(once)


@pytest.mark.soak
def test_a_publication_that_has_sent_nothing_begins_with_what_the_table_holds_now(scene: Scene) -> None:
    topic = "rows.unsent"
    scene.change()
    killed = scene.publish_killed(ROWS, topic, "before:kafka")
    assert killed.returncode == -signal.SIGKILL, killed.stderr[-3000:]
    scene.change()
    scene.publish(ROWS, topic)  # the log may no longer reach back to what was planned
    assert folded(scene.sent(topic)) == scene.table()
    assert len(scene.sent(topic)) == len(scene.table())


@pytest.mark.soak
def test_a_batch_that_the_topic_takes_in_part_is_sent_again_and_lost_changes_are_reported(scene: Scene) -> None:
    topic, admin = "rows.small", AdminClient(scene.client)
    made(admin, topic, {"max.message.bytes": "40000"})
    scene.change()
    scene.lake.open_delta_table(scene.spark, ROWS).update("topic = 'a'", {"a_string": "repeat('x', 50000)"})
    with pytest.raises(BrokerError, match=r"larger than topic rows\.small takes"):
        scene.publish(ROWS, topic)
    assert 0 < len(scene.sent(topic)) < len(scene.table())
    entry = ConfigEntry("max.message.bytes", "100000", incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ConfigResource.Type.TOPIC, topic, incremental_configs=[entry])
    admin.incremental_alter_configs([resource])[resource].result(30)
    scene.publish(ROWS, topic)
    assert folded(scene.sent(topic)) == scene.table()

    scene.change()
    for file in (find_table_folder(scene.lake, ROWS) / "_change_data").iterdir():  # as VACUUM does after a week
        file.unlink()
    with pytest.raises(LakeError, match=r"changes that were not published yet are gone.*publish into a new topic"):
        scene.publish(ROWS, topic)


@pytest.mark.soak
def test_a_table_of_which_a_column_is_gone_goes_on_into_a_new_topic(scene: Scene) -> None:
    topic = "rows.columns"
    scene.change()
    scene.publish(ROWS, topic)
    rows = scene.lake.read(scene.spark, ROWS).drop("a_boolean").localCheckpoint()
    scene.lake.overwrite_table(scene.spark, ROWS, rows, Txn("columns", 0), "{}", columns=True)
    expected_text = r"had a column a_boolean \(boolean\) when it was published last.*publish into a new topic"
    with pytest.raises(LakeError, match=expected_text):
        scene.publish(ROWS, topic)
    scene.publish(ROWS, "rows.without")
    assert folded(scene.sent("rows.without")) == scene.table()


@pytest.mark.parametrize(
    ("config", "text"),
    [
        ({"retention.ms": "604800000"}, "drops messages by age or size"),
        ({"cleanup.policy": "compact,delete", "retention.bytes": "1"}, "drops messages by age or size"),
        ({"max.message.bytes": "1000"}, "max.message.bytes=1000"),
    ],
)
def test_a_topic_that_would_lose_rows_is_refused(broker_settings: Settings, tmp_path: Path, config: Any, text: str):
    admin = AdminClient(build_librdkafka_client_config(broker_settings))
    made(admin, tmp_path.name, config)
    with pytest.raises(BrokerError, match=text):
        prepare_topic(broker_settings, tmp_path.name, is_first_run=True, restart_hint="")


def test_a_missing_topic_is_made_compacted_at_first_and_reported_later(broker_settings: Settings, tmp_path: Path):
    with pytest.raises(BrokerError, match=r"does not exist any more.*start over"):
        prepare_topic(broker_settings, tmp_path.name, is_first_run=False, restart_hint="start over")
    assert prepare_topic(broker_settings, tmp_path.name, is_first_run=True, restart_hint="") == 0
    resource = ConfigResource(ConfigResource.Type.TOPIC, tmp_path.name)
    admin = AdminClient(build_librdkafka_client_config(broker_settings))
    assert admin.describe_configs([resource])[resource].result(30)["cleanup.policy"].value == "compact"


def test_a_topic_that_holds_other_messages_is_refused_at_first_and_gone_on_with_later(
    broker_settings: Settings, tmp_path: Path
):
    producer = Producer(build_librdkafka_client_config(broker_settings))
    made(AdminClient(build_librdkafka_client_config(broker_settings)), tmp_path.name, {})
    producer.produce(tmp_path.name, b"{}", b"{}")
    assert producer.flush(30) == 0
    with pytest.raises(BrokerError, match="could have rows of another publication"):
        prepare_topic(broker_settings, tmp_path.name, is_first_run=True, restart_hint="")
    assert prepare_topic(broker_settings, tmp_path.name, is_first_run=False, restart_hint="") == 1


def made(admin: AdminClient, topic: str, config: dict[str, str]) -> None:
    admin.create_topics([NewTopic(topic, config=config)])[topic].result(30)
