"""The search for a session's id: in whatever file it is, it is found, and only where it stands by itself."""

from __future__ import annotations

import json
import os
import struct
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import write_deltalake

from sessionlake.delta.lake import Lake
from sessionlake.delta.schemas.names import DECISIONS, EVENTS, QUARANTINE
from sessionlake.delta.storage.session_rows import SessionRowSelection
from sessionlake.integrity.state import ShardState
from sessionlake.ledger.erasures import hash_forgotten_session
from sessionlake.operations.forgetting import receipt
from sessionlake.operations.forgetting.rows import find_topics_of_session
from sessionlake.operations.forgetting.search import FileSearchMatch, search_folder_for_text
from sessionlake.operations.forgetting.states import remove_session_from_state
from sessionlake.processors.shard_state import ProcessorShardState, SessionState
from sessionlake.protocol.arrow import build_session_key
from sessionlake.protocol.chunk import encode_ipc
from sessionlake.protocol.erased import ERASED_KEY
from sessionlake.settings.model import Settings
from sessionlake.silver.fold.process import join_shard_state, split_shard_state
from sessionlake.streaming import pause_requests
from support.lakes import find_table_folder

ID = "chamber-7"
NO_SPARK: Any = None


def places(folder: Path) -> list[str]:
    return [str(found) for found in search_folder_for_text(folder, ID).found]


def test_a_value_of_any_column_is_found_in_parquet_however_deep(tmp_path: Path) -> None:
    table = pa.table(
        {
            "text": [ID, "chamber-70"],
            "bytes": [b'{"id":"chamber-7"}', b"xchamber-7"],
            "deep": [[{"name": ID}], []],
            "coded": pa.array([ID, ID]).dictionary_encode(),
            "other": ["chamber_7", "-chamber-7-"],
        }
    )
    pq.write_table(table, tmp_path / "a.parquet", compression="zstd")
    assert places(tmp_path) == [
        "a.parquet, column bytes: 1",
        "a.parquet, column coded: 1",
        "a.parquet, column deep.name: 1",
        "a.parquet, column text: 1",
    ]


def packed(content: bytes, *, raw: bool) -> bytes:
    """As lz4-java's block stream has it."""
    block = content if raw else pa.Codec("lz4_raw").compress(content, asbytes=True)
    head = struct.pack("<BIII", 0x10 if raw else 0x20, len(block), len(content), 0)
    return b"LZ4Block" + head + block + b"LZ4Block" + struct.pack("<BIII", 0x10, 0, 0, 0)


@pytest.mark.parametrize("name", ['the "7"', "7\\8", "Fühler-7"])
def test_an_id_is_found_as_json_writes_it_and_as_json_in_json_does(tmp_path: Path, name: str) -> None:
    stats = json.dumps({"minValues": {"session_id": name}})
    (tmp_path / "text.json").write_text(name)
    (tmp_path / "once.json").write_text(json.dumps({"id": name}))
    (tmp_path / "plain.json").write_text(json.dumps({"id": name}, ensure_ascii=False))
    (tmp_path / "twice.json").write_text(json.dumps({"add": {"stats": stats}}))
    (tmp_path / "key.json").write_text(json.dumps(f"capture.a\0{name}"))
    pq.write_table(pa.table({"stats": [stats], "bytes": [name.encode()]}), tmp_path / "z.parquet")
    found = [str(found) for found in search_folder_for_text(tmp_path, name).found]
    files = ["key.json: 1", "once.json: 1", "plain.json: 1", "text.json: 1", "twice.json: 1"]
    assert found == [*files, "z.parquet, column bytes: 1", "z.parquet, column stats: 1"]


@pytest.mark.parametrize("raw", [True, False])
def test_what_spark_has_packed_is_unpacked(tmp_path: Path, raw: bool) -> None:
    (tmp_path / "1.delta").write_bytes(packed(b"abc " * 200 + f"\x09{ID}\0".encode() + b"abc " * 200, raw=raw))
    assert search_folder_for_text(tmp_path, ID).found == (FileSearchMatch("1.delta", None, 1),)


def test_what_is_packed_inside_a_handed_over_state_is_unpacked(tmp_path: Path) -> None:
    keys = pa.table({"key": [f"capture.a\0other-{n}" for n in range(5_000)] + [f"capture.a\0{ID}"]})
    stored = msgspec.msgpack.encode({"cursors": encode_ipc(keys, compress_columns=True)})
    assert ID.encode() not in stored
    (tmp_path / "0.state").write_bytes(stored)
    (tmp_path / "1.delta").write_bytes(packed(b"\xff" * 9 + stored, raw=False))
    assert places(tmp_path) == ["0.state: 1", "1.delta: 1"]


def test_an_id_in_a_state_whose_names_follow_each_other_is_found(tmp_path: Path) -> None:
    keys = pa.table({"key": [f"capture.a\0{name}" for name in ("x", ID, "y")]})
    (tmp_path / "1.delta").write_bytes(packed(encode_ipc(keys, compress_columns=False), raw=True))
    assert places(tmp_path) == ["1.delta: 1"]


def test_other_files_are_searched_as_bytes_and_what_is_left_out_is_not(tmp_path: Path) -> None:
    (tmp_path / "kafka").mkdir()
    (tmp_path / "kafka" / "log").write_text(ID)
    (tmp_path / "log.json").write_text(f'{{"minValues":{{"session_id":"{ID}"}}}}')
    (tmp_path / "far").write_bytes(b"." * ((16 << 20) - 4) + ID.encode())
    (tmp_path / "else").write_text(f"{ID}1 x{ID} {ID}-b")
    found = search_folder_for_text(tmp_path, ID, ("kafka",))
    assert [one.place for one in found.found] == ["far", "log.json"]
    assert found.files == 3


def test_parquet_is_searched_by_value_before_it_has_its_name_and_named_if_it_cannot_be_read(tmp_path: Path) -> None:
    whole = tmp_path / "part-0.snappy.parquet#1"
    pq.write_table(pa.table({"text": [ID] * 1_000}), whole, compression="zstd")
    (tmp_path / "part-1.parquet#2").write_bytes(whole.read_bytes()[:20])
    (tmp_path / "part-2.parquet").write_text(ID)
    (tmp_path / "part-3.parquet").touch()  # of which nothing was written
    (tmp_path / ".part-0.snappy.parquet.crc").write_bytes(b"crc")
    found = search_folder_for_text(tmp_path, ID)
    assert [str(one) for one in found.found] == ["part-0.snappy.parquet#1, column text: 1000", "part-2.parquet: 1"]
    assert found.unread == ("part-1.parquet#2", "part-2.parquet")


def test_a_processors_state_loses_the_session_and_keeps_the_others_as_they_were() -> None:
    kept = SessionState(1, b"s", 3, 0, 17)
    memory = ProcessorShardState(
        {("t", 0): 5}, {build_session_key("t", number, name): kept for number in (0, 1) for name in "ab"}
    )
    left = remove_session_from_state(
        join_shard_state(ShardState().encode_shard_state(()), memory.encode_processor_state("p", 4)),
        (),
        ("t", "a"),
    )
    _, found = split_shard_state(left)
    assert ProcessorShardState.decode_processor_state(found) == ProcessorShardState(
        {("t", 0): 5}, {build_session_key("t", number, "b"): kept for number in (0, 1)}
    )


def test_a_sessions_messages_lose_all_but_place_and_time() -> None:
    rows = pa.record_batch(
        {
            "topic": ["t", "u", "t"],
            "offset": [1, 1, 2],
            "key": pa.array([b"a", b"a", None], pa.binary()),
            "value": pa.array([b"1", b"2", b"3"], pa.binary()),
            "headers": pa.array([[{"key": "k", "value": b"v"}], None, None], pa.list_(pa.struct(
                [("key", pa.string()), ("value", pa.binary())]
            ))),
        }
    )  # fmt: skip
    blanked = SessionRowSelection("t", "a", "key").erase_selected_rows(rows)
    assert blanked.schema == rows.schema
    assert blanked.to_pylist() == [
        {"topic": "t", "offset": 1, "key": ERASED_KEY, "value": None, "headers": None},
        *rows.to_pylist()[1:],
    ]


@pytest.mark.parametrize(("table", "column"), [(QUARANTINE, "key"), (EVENTS, "session_id"), (DECISIONS, "session_id")])
def test_a_sessions_topic_is_known_by_whatever_is_left_of_it(tmp_path: Path, table: str, column: str) -> None:
    lake = Lake(Settings(home=tmp_path))
    ids = pa.array([ID, ID, "chamber-70"]).cast(pa.binary() if column == "key" else pa.string())
    write_deltalake(find_table_folder(lake, table), pa.table({"topic": ["b", "a", "c"], column: ids}))
    assert find_topics_of_session(lake.reader(), ID) == ["a", "b"]


@pytest.mark.parametrize("catalog", [None, "main"])
def test_a_receipt_says_where_dropped_tables_can_be_restored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, catalog: str | None
) -> None:
    monkeypatch.setattr(receipt, "_list_unconfigured_gold_tables", lambda *_: [])
    lake = Lake(Settings(home=tmp_path, catalog=catalog))
    assert any("UNDROP" in told for told in receipt.list_copies_outside_lake(NO_SPARK, lake, "t")) == (
        catalog is not None
    )


def test_a_session_is_known_by_topic_and_id_together() -> None:
    salt = "00ff"
    assert (
        len(
            {
                hash_forgotten_session(salt, "t", "ab"),
                hash_forgotten_session(salt, "ta", "b"),
                hash_forgotten_session("00fe", "t", "ab"),
                hash_forgotten_session(salt, "t", "a"),
            }
        )
        == 4
    )
    assert np.unique([hash_forgotten_session(salt, "t", "ab")] * 2).size == 1


def test_layers_are_asked_as_long_as_the_one_who_asks_lives(tmp_path: Path) -> None:
    settings = Settings(home=tmp_path)
    assert pause_requests.read_pause_reason(settings) is None
    with pause_requests.request_pause(settings, "why"):
        assert pause_requests.read_pause_reason(settings) == "why"
        (request,) = (tmp_path / "checkpoints").glob("aside*")
        os.utime(request, (0, 0))  # who asked has died
        assert pause_requests.read_pause_reason(settings) is None
    assert pause_requests.read_pause_reason(settings) is None
