"""Records Spark's errors of real failures. `tests/unit/test_stream_errors.py` reads the recordings without a JVM.

Run it from the root of the repository when the version of Spark, Delta or Kafka changes, and review the differences:

    python tests/support/record_spark_errors.py [NAME...]

Each failure is provoked in a separate folder and written to `tests/unit/spark_errors/NAME.json`: the class, the
condition and the text of the error, with `/lake` for the folder and without most of the JVM's frames.
"""

from __future__ import annotations

import json
import re
import shutil
import socket
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

import sessionlake
from sessionlake.errors import LakeError, SchemaRegistryError, SessionlakeError
from sessionlake.settings.model import KafkaSettings, Settings
from sessionlake.silver.fold.pack import ShardMessagePacker
from sessionlake.spark.session import get_or_start_spark_session, stop_spark
from sessionlake.streaming.query import BatchFunction, LayerQuery
from sessionlake.streaming.sharded import PACKED_SCHEMA, fold_shards

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

RECORDS = Path(__file__).parent.parent / "unit" / "spark_errors"
FRAMES = 2
"""Number of frames that are kept of each JVM exception."""
_HURRIED = {"kafka.default.api.timeout.ms": "4000", "kafka.request.timeout.ms": "3000"}
_TOPIC = "recorded"


class Recorded(LayerQuery):
    """Keeps the error to explain: the exception of the batch, or Spark's version of it if `heard` is false."""

    error: BaseException | None = None
    heard = True

    def _explain_query_error(self, error: BaseException) -> SessionlakeError:
        if self.error is None:
            self.error = error if self._raised is None or not self.heard else self._raised
        return SessionlakeError("recorded")


class Malformed:
    """A fold that fails with its own exception."""

    def __call__(self, _shard: int, _state: bytes | None, chunks: list[bytes]) -> Any:
        raise ValueError(f"a malformed header in the state store of {len(chunks)} chunks: data may be lost")


class Foreign:
    """A fold whose state has another version."""

    def __call__(self, _shard: int, _state: bytes | None, _chunks: list[bytes]) -> Any:
        raise LakeError("the silver state is of format 'silver/9', this version reads 'silver/2'")


class Keeps:
    """A fold that stores a state and returns one row."""

    def __call__(self, _shard: int, _state: bytes | None, chunks: list[bytes]) -> Any:
        return b"state", [("row", chunks[0])]


def unanswered(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for _ in batches:
        raise SchemaRegistryError("schema registry http://127.0.0.1:8081 does not answer: start it")
        yield


class Case:
    """Environment of a failure: a folder, a table to stream from, a checkpoint."""

    def __init__(self, spark: SparkSession, folder: Path, settings: Settings) -> None:
        self.spark, self.folder, self.settings = spark, folder, settings
        self.table, self.checkpoint = folder / "table", folder / "checkpoint"

    def append(self, n: int = 2, columns: str = PACKED_SCHEMA, **options: str) -> None:
        values = [(i, b"chunk") for i in range(n)] if columns == PACKED_SCHEMA else [(str(i),) for i in range(n)]
        frame = self.spark.createDataFrame(values, columns)
        mode = options.pop("mode", "append")
        frame.coalesce(1).write.format("delta").mode(mode).options(**options).save(str(self.table))

    def source(self) -> DataFrame:
        return self.spark.readStream.format("delta").load(str(self.table))

    def run(
        self, frame: DataFrame, batch: BatchFunction = lambda rows, _: rows.collect(), *, heard: bool = True
    ) -> BaseException | None:
        query = Recorded("silver", str(self.checkpoint))
        query.heard = heard
        try:
            query.start(frame, batch, trigger=timedelta(0), once=True)
            query.wait(120)
        except SessionlakeError:
            return query.error
        return None

    def files(self, pattern: str) -> list[Path]:
        return [file for file in self.checkpoint.glob(pattern) if not file.name.startswith(".")]

    def damage(self, pattern: str, text: str) -> None:
        for file in self.files(pattern):
            file.write_text(text, encoding="utf-8")
            file.with_name(f".{file.name}.crc").unlink(missing_ok=True)


def corrupt_offsets(case: Case) -> BaseException | None:
    return _damaged(case, "offsets/*", "v1\n{not json")


def corrupt_commits(case: Case) -> BaseException | None:
    return _damaged(case, "commits/*", "v1\n{not json")


def empty_offsets(case: Case) -> BaseException | None:
    return _damaged(case, "offsets/*", "")


def corrupt_metadata(case: Case) -> BaseException | None:
    return _damaged(case, "metadata", "{")


def _damaged(case: Case, pattern: str, text: str) -> BaseException | None:
    case.append()
    case.run(case.source())
    case.append()
    case.damage(pattern, text)
    return case.run(case.source())


def missing_state(case: Case, *, heard: bool = True) -> BaseException | None:
    case.append()
    case.run(fold_shards(case.source(), Keeps()))
    case.append()
    for file in case.files("state/0/*/*.changelog") + case.files("state/0/*/*.zip"):
        file.unlink()
        file.with_name(f".{file.name}.crc").unlink(missing_ok=True)
    return case.run(fold_shards(case.source(), Keeps()), heard=heard)


def missing_state_unheard(case: Case) -> BaseException | None:
    return missing_state(case, heard=False)


def truncated_state(case: Case) -> BaseException | None:
    case.append()
    case.run(fold_shards(case.source(), Keeps()))
    case.append()
    case.damage("state/0/*/*.changelog", "")
    return case.run(fold_shards(case.source(), Keeps()))


def fold_fails(case: Case) -> BaseException | None:
    case.append(1)
    return case.run(fold_shards(case.source(), Malformed()))


def fold_fails_unheard(case: Case) -> BaseException | None:
    case.append(1)
    return case.run(fold_shards(case.source(), Malformed()), heard=False)


def fold_refuses(case: Case) -> BaseException | None:
    case.append(1)
    return case.run(fold_shards(case.source(), Foreign()))


def registry_in_worker(case: Case) -> BaseException | None:
    case.append(1)
    return case.run(case.source().mapInArrow(unanswered, PACKED_SCHEMA))


def pack_fails(case: Case) -> BaseException | None:
    case.append(3)
    raw = case.source().selectExpr(
        "0 AS shard",
        "'a' AS topic",
        "1 AS partition",
        "10L + shard AS offset",
        "now() AS timestamp",
        "chunk AS value",
        "now() AS ingested_at",
    )  # without the key
    packer = ShardMessagePacker(None, 1)
    return case.run(raw.mapInArrow(packer, PACKED_SCHEMA))


def batch_fails(case: Case) -> BaseException | None:
    case.append()

    def fails(_rows: DataFrame, _: object) -> None:
        raise ValueError("a malformed row")

    return case.run(case.source(), fails)


def table_deleted(case: Case) -> BaseException | None:
    case.append()
    case.run(case.source())
    case.append()
    source = case.source()
    shutil.rmtree(case.table)
    return case.run(source)


def table_anew(case: Case) -> BaseException | None:
    case.append()
    case.run(case.source())
    shutil.rmtree(case.table)
    case.append()
    return case.run(case.source())


def table_file_gone(case: Case) -> BaseException | None:
    case.append()
    source = case.source()
    for file in case.table.glob("*.parquet"):
        file.unlink()
    return case.run(source)


def schema_changed(case: Case) -> BaseException | None:
    case.append()
    case.run(case.source())
    source = case.source()
    case.append(columns="other string", mode="overwrite", overwriteSchema="true")
    return case.run(source)


def no_broker(case: Case) -> BaseException | None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    return case.run(_kafka(case, f"127.0.0.1:{port}"))


def no_such_host(case: Case) -> BaseException | None:
    return case.run(_kafka(case, "broker.invalid:9092"))


def topic_deleted(case: Case) -> BaseException | None:
    return _lost(case, _delete)


def topic_anew(case: Case) -> BaseException | None:
    def anew(admin: Any) -> None:
        _delete(admin)
        time.sleep(1)
        _create(admin)

    return _lost(case, anew)


def _delete(admin: Any) -> None:
    for future in admin.delete_topics([_TOPIC]).values():
        future.result()


def _create(admin: Any) -> None:
    from confluent_kafka.admin import NewTopic

    for future in admin.create_topics([NewTopic(_TOPIC, 1, 1)]).values():
        future.result()


def topic_cut(case: Case) -> BaseException | None:
    from confluent_kafka import TopicPartition

    def cut(admin: Any) -> None:
        for future in admin.delete_records([TopicPartition(_TOPIC, 0, 6)]).values():
            future.result()

    return _lost(case, cut)


def _lost(case: Case, lose: Callable[[Any], object]) -> BaseException | None:
    from confluent_kafka import Producer
    from confluent_kafka.admin import AdminClient

    from sessionlake.local import broker

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    kafka = KafkaSettings(bootstrap_servers=f"127.0.0.1:{port}")
    own = Settings(home=case.folder / "home", kafka=kafka)
    address = broker.start_broker(own).bootstrap_servers
    try:
        admin, producer = AdminClient({"bootstrap.servers": address}), Producer({"bootstrap.servers": address})
        _create(admin)

        def send() -> None:
            for n in range(5):
                producer.produce(_TOPIC, str(n))
            producer.flush(20)

        send()
        case.run(_kafka(case, address))
        send()
        lose(admin)
        return case.run(_kafka(case, address))
    finally:
        broker.stop_broker(own)


def _kafka(case: Case, address: str) -> DataFrame:
    source = case.spark.readStream.format("kafka").option("kafka.bootstrap.servers", address)
    source = source.option("subscribe", _TOPIC).option("startingOffsets", "earliest").options(**_HURRIED)
    return source.load()


CASES = (
    corrupt_offsets,
    corrupt_commits,
    empty_offsets,
    corrupt_metadata,
    missing_state,
    missing_state_unheard,
    truncated_state,
    fold_fails,
    fold_fails_unheard,
    fold_refuses,
    registry_in_worker,
    pack_fails,
    batch_fails,
    table_deleted,
    table_anew,
    table_file_gone,
    schema_changed,
    no_broker,
    no_such_host,
    topic_deleted,
    topic_anew,
    topic_cut,
)


def recorded(error: BaseException, folder: Path) -> dict[str, Any]:
    """Returns an error in the form in which it is stored."""
    from pyspark.errors import PySparkException

    condition = error.getCondition() if isinstance(error, PySparkException) else None
    text = str(error)
    for place, name in (
        (str(folder), "/lake"),
        (str(Path(sessionlake.__file__).parent.parent), "/src"),
        (str(Path(__file__).parent), "/tests"),
        (str(Path(pa.__file__).parent.parent), "/site-packages"),
        (sys.base_prefix, "/python"),
        (sys.prefix, "/venv"),
    ):
        text = text.replace(place, name)
    mro = [f"{of.__module__}.{of.__name__}" for of in type(error).__mro__[:-1]]
    return {"class": mro[0], "also": mro[1:], "condition": condition, "text": shortened(text).splitlines()}


def shortened(text: str) -> str:
    """Returns a text without most of the JVM's frames."""
    lines, frames = [], 0
    for line in text.splitlines():
        frames = frames + 1 if re.match(r"\s+(at |\.\.\. \d+ more)", line) else 0
        if frames <= FRAMES:
            lines.append(line)
    return "\n".join(lines)


def main(names: list[str]) -> None:
    """Records the failures with these names, or all."""
    root = Path(tempfile.mkdtemp(prefix="recorded-"))
    settings = Settings(home=root / "home")
    spark = get_or_start_spark_session(settings, app="record")
    RECORDS.mkdir(exist_ok=True)
    try:
        for case in CASES:
            name = case.__name__
            if names and name not in names:
                continue
            folder = root / name
            folder.mkdir()
            try:
                error = case(Case(spark, folder, settings))
            except Exception:  # noqa: BLE001 (the others are recorded all the same)
                traceback.print_exc()
                continue
            if error is None:
                print(f"{name}: did not fail", flush=True)  # noqa: T201 - shows how far the tool is
                continue
            content = json.dumps(recorded(error, folder), indent=1, ensure_ascii=False)
            (RECORDS / f"{name}.json").write_text(f"{content}\n", encoding="utf-8")
            print(f"{name}: {type(error).__name__}", flush=True)  # noqa: T201 - shows how far the tool is
    finally:
        stop_spark()
        shutil.rmtree(root, ignore_errors=True)


if __name__ == "__main__":
    main(sys.argv[1:])
