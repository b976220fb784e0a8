"""Gold published to a real broker: whoever folds the topic has the table, whatever corrects it or takes rows away."""

from __future__ import annotations

import signal
import threading
from base64 import b64encode
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import yaml

from sessionlake.delta.schemas.names import CHANGES, METRICS_1M
from sessionlake.errors import LakeError
from sessionlake.gold.aggregate.final import FinalTable
from sessionlake.gold.declared.tables import (
    GoldTable,
    create_product_from_settings,
    find_final_tables,
    list_declared_gold_tables,
)
from sessionlake.gold.job import rebuild_tables
from sessionlake.operations.pipeline import Layer, run_once
from sessionlake.settings.model import load_settings
from spark.test_expiry import HOUR, stream
from spark.test_gold import Feed, change
from support.lakes import limit, rows_of
from support.published import Outgoing, rows_received, without_replays

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]
EPOCH = datetime.fromtimestamp(0, UTC)
CLOSED = {"name": "closed", "keys": ["topic", "session_id"], "bucket": "10 minutes", "lateness": "30 minutes"}
GOLD: dict[str, Any] = {
    "shards": 4,
    "rolling_points": 3,
    "retention": {"metrics_1m": "2 hours"},
    "products": [
        {"name": "own", "of": "texts", "keys": ["topic", "column"], "aggregates": {"texts": "approx_distinct"}},
        CLOSED | {"aggregates": {"n": "count"}, "output": "append"},
    ],
    "references": [{"name": "sites", "keys": {"row": "string"}, "columns": {"place": "string", "since": "date"}}],
    "enriched": [{"name": "placed", "join": [{"reference": "sites", "keys": {"row": "row_id"}}]}],
}


class GoldScene(Outgoing):
    """Gold over silver's changes, and the topics that its tables are published to."""

    def __init__(self, spark: Any, file: Path) -> None:
        super().__init__(spark, file)
        self.feed = Feed(spark, self.settings)

    def configure(self, **gold: Any) -> None:
        """Other settings of gold's."""
        content = yaml.safe_load(self.file.read_text())
        self.file.write_text(yaml.safe_dump(content | {"gold": content["gold"] | gold}, sort_keys=False))
        self.settings = self.feed.settings = load_settings(self.file)

    def tables(self) -> list[GoldTable | FinalTable]:
        known = list_declared_gold_tables(self.settings)
        return [table for table in (*known, *find_final_tables(known)) if table.name in self.settings.gold.change_feed]

    def topic(self, name: str) -> str:
        """Where a table goes: no other test's."""
        return f"{name}.{self.file.parent.name}"

    def parse_failure(self, table: GoldTable | FinalTable) -> str:
        """Why the table could not be published; empty if it was."""
        try:
            self.publish(table.table_name, self.topic(table.name))
        except LakeError as error:
            return str(error)
        return ""

    def require_sent(self, table: GoldTable | FinalTable) -> None:
        """The topic comes to the table, its replays left out or not."""
        rows = rows_of(self.spark, self.feed.lake, table.table_name)
        held = [{n: spelled(v) for n, v in row.items() if not n.startswith("_")} for row in rows]
        truth = {tuple(row[name] for name in table.row_keys): row for row in held}
        messages = self.sent(self.topic(table.name))
        assert len(truth) == len(rows) > 0
        assert rows_received(messages, table.row_keys) == truth
        assert rows_received(without_replays(messages), table.row_keys) == truth
        assert len({(m.key, m.version) for m in messages}) == len({*messages}), "one message a key and version"


def spelled(value: Any) -> Any:
    """As JSON has it."""
    if isinstance(value, datetime):
        return round((value - EPOCH).total_seconds() * 1_000_000)
    return b64encode(value).decode() if isinstance(value, bytes) else value


@pytest.fixture
def scene(spark: Any, broker: Any, tmp_path: Path) -> GoldScene:
    kafka = {"bootstrap_servers": broker.bootstrap_servers}
    content = {"home": str(tmp_path / "home"), "kafka": kafka, "gold": GOLD}
    (tmp_path / "sessionlake.yml").write_text(yaml.safe_dump(content, sort_keys=False))
    return GoldScene(spark, tmp_path / "sessionlake.yml")


@pytest.mark.soak
def test_a_product_of_a_tables_rows_is_published_without_being_named_and_rows_that_go_are_reported(
    scene: GoldScene,
) -> None:
    by_row = {"name": "by_row", "source": CHANGES, "keys": ["topic", "session_id", "row_id"], "time": "_ts"}
    by_row |= {"value": "price", "bucket": "1 hour", "aggregates": {"n": "count", "mean": "mean"}}
    by_n = {"name": "by_n", "source": "gold.by_row", "keys": ["n"], "aggregates": {"hours": "count"}}
    scene.configure(products=[by_n, by_row])
    products, changes = [create_product_from_settings(one) for one in scene.settings.gold.products], stream(3, 110)
    one_hour = [change("s", "r", 1000 + n, 100 * HOUR, price=1.0) for n in range(31)]  # of 30 changes, then of 31
    for part in (changes[:40] + one_hour[:30], changes[40:] + one_hour[30:]):
        scene.feed.write(part)
        run_once(scene.spark, scene.settings, Layer.PROCESSOR, threading.Event())
        for product in products:
            scene.publish(product.table_name, scene.topic(product.name))
            scene.require_sent(product)
    assert any(message.value is None for message in scene.sent(scene.topic("by_n"))), "no row has gone"


@pytest.mark.soak
def test_whoever_folds_the_topic_has_the_table_though_buckets_are_corrected_and_removed(scene: GoldScene) -> None:
    feed, changes = scene.feed, stream(3, 110)
    scene.configure(change_feed=["metrics_1m"])
    [minutes] = scene.tables()
    feed.write(changes[:40]).run()
    scene.publish(METRICS_1M, scene.topic("metrics_1m"))
    scene.require_sent(minutes)
    feed.write(changes[40:]).run()
    scene.publish(METRICS_1M, scene.topic("metrics_1m"))
    scene.require_sent(minutes)
    assert any(message.value is None for message in scene.sent(scene.topic("metrics_1m"))), "no bucket has gone"


@pytest.mark.soak
def test_whoever_folds_the_topics_has_gold_through_late_points_expiry_a_kill_a_rebuild_and_a_gap(
    scene: GoldScene, monkeypatch: pytest.MonkeyPatch
) -> None:
    fed = ["metrics_1m", "rolling_average", "sensor_average", "distinct_values", "own", "placed", "closed_final"]
    scene.configure(change_feed=fed)
    changes, feed = stream(3, 150), scene.feed
    texts = [change("s", "r", 10_000 + i, 0, 0, status=f"{i % 7}") for i in range(20)]
    feed.write([*changes[:40], *texts[:5]]).run()
    for table in scene.tables():
        scene.publish(table.table_name, scene.topic(table.name))
        scene.require_sent(table)
    limit(monkeypatch, rewritten_rows=0)  # from here on rows are marked
    feed.write([*changes[40:80], *texts[5:]]).run()
    feed.write(changes[80:110]).run()
    killed = scene.publish_killed(METRICS_1M, scene.topic("metrics_1m"), "after:kafka")
    assert killed.returncode == -signal.SIGKILL, killed.stderr[-3000:]
    feed.write(changes[110:]).run()
    for table in scene.tables():
        scene.publish(table.table_name, scene.topic(table.name))
        scene.require_sent(table)
    sent = scene.sent(scene.topic("metrics_1m"))
    assert len(sent) > len({*sent}), "nothing was replayed"
    assert any(message.value is None for message in sent), "no bucket has gone"
    versions = [m.version for m in scene.sent(scene.topic("rolling_average"))]

    scene.configure(retention={"metrics_1m": "1 hour"})
    anew = [table for table in list_declared_gold_tables(scene.settings) if table.name in {*fed, "closed"}]
    rebuild_tables(scene.spark, scene.settings, anew)
    for table in scene.tables():
        scene.publish(table.table_name, scene.topic(table.name))
        scene.require_sent(table)
    assert max(m.version for m in scene.sent(scene.topic("rolling_average"))) > max(versions)

    had = scene.tables()
    scene.configure(change_feed=[])
    feed.write([change("s", "r", 500, 40 * HOUR, 40 * HOUR, price=3.0, status="1")]).run()
    scene.configure(change_feed=fed)
    feed.run()
    for table in had:  # Delta tells of the gap, or of what was written in it by its files
        told = scene.parse_failure(table)
        assert not told or "or its change feed was off for a while" in told
        if not told:
            scene.require_sent(table)
