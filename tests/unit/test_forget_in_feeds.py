"""A session forgotten in messages that have others, too: they keep all they had, and nothing of the session is left."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa
import pytest

from sessionlake.delta.storage.session_rows import SessionMessageSelection
from sessionlake.feeds.json_spans import JsonMessageParts
from sessionlake.feeds.path_parsing import parse_feed_path
from sessionlake.integrity.state import ShardState
from sessionlake.integrity.state_difference import find_first_state_difference
from sessionlake.operations.forgetting.eraser import SessionEraser
from sessionlake.operations.forgetting.messages import SessionMessageEraser
from sessionlake.protocol.arrow import HEADERS
from sessionlake.protocol.erased import ERASED_KEY, PARTS_ERASED_HEADER
from sessionlake.protocol.types import Row
from sessionlake.settings.capture import CaptureSettings
from sessionlake.streaming.payloads import build_feed_decoder
from sessionlake_lab.truth import KafkaMessage
from support.folding import Folder, raw_table
from support.seeds import seeds
from support.split_streams import FEEDS, NAMES, capture_of_split, split_messages
from support.streams import cut
from unit import test_chains

Messages = list[KafkaMessage]
Capture = Callable[[], CaptureSettings]


def eraser_of(capture: CaptureSettings, session: str) -> SessionEraser:
    decoder = build_feed_decoder(capture, 1)
    assert decoder is not None
    return SessionEraser(decoder, session)


def erased(messages: Sequence[KafkaMessage], capture: CaptureSettings, session: str) -> Messages:
    """The messages without a session, as bronze has them after it is forgotten."""
    (batch,) = raw_table(messages, 1).drop_columns("shard").combine_chunks().to_batches() or [None]
    if batch is None:
        return []
    found = eraser_of(capture, session).erase_session_in_messages(batch)
    assert not found.refused
    left = list(messages)
    for number, value, is_shared in zip(found.message.tolist(), found.value, found.is_shared, strict=True):
        one = left[number]
        left[number] = one._replace(key=one.key if is_shared else ERASED_KEY, value=value)
    return left


def tables_of_others(folder: Folder, session: str) -> list[Any]:
    """All tables without the rows of a session."""
    silver = folder.silver
    lists = [silver.changes, silver.cuts, silver.quarantine, silver.events, list(silver.sessions.values())]
    found: list[Any] = [Counter(repr(row) for row in rows if row["session_id"] != session) for rows in lists]
    return [*found, {key: rows for key, rows in silver.rows.items() if key[2] != session and rows}]


def require_law(messages: Messages, capture: CaptureSettings, session: str, seed: int) -> None:
    """Checks that all is as before for other sessions, in a stream, after it was forgotten in it, and in a rebuild."""
    rnd = random.Random(seed)
    batches = list(cut(rnd, messages, 5))
    untouched, forgetting, rebuilt = (Folder(capture, 3, random.Random(seed)) for _ in range(3))
    for batch in batches:
        untouched.batch(batch)
    for batch in batches[:3]:
        forgetting.batch(batch)
        rebuilt.batch(erased(batch, capture, session))
    for shard, state in forgetting.states().items():
        state.replace_sessions(ShardState(), lambda _topic, _partition, name: name == session)
        forgetting.stored[shard] = state.encode_shard_state(capture.declared_columns)
    for batch in [[], *batches[3:]]:
        left = erased(batch, capture, session)
        for mine, other in zip(forgetting.states().values(), rebuilt.states().values(), strict=True):
            assert find_first_state_difference(mine, other) is None
        forgetting.batch(left)
        rebuilt.batch(left)
    expected = tables_of_others(untouched, session)
    assert tables_of_others(forgetting, session) == expected
    assert tables_of_others(rebuilt, session) == expected
    assert not [key for key in rebuilt.silver.sessions if key[2] == session]
    counts = rebuilt.silver.counts
    assert {place: one["messages"] for place, one in counts.items()} == {
        place: one["messages"] for place, one in untouched.silver.counts.items()
    }
    for one in counts.values():
        assert one["parts"] >= sum(one[name] for name in one if name not in {"messages", "parts"})


@pytest.mark.parametrize("form", FEEDS)
@pytest.mark.parametrize("policy", ["isolate", "record"])
@pytest.mark.parametrize("seed", seeds(2, 60))
def test_other_sessions_of_a_message_keep_all_they_had(form: str, policy: str, seed: int) -> None:
    rnd = random.Random(seed)
    messages = split_messages(form, rnd, 80)
    session = rnd.choice(NAMES)
    classes = ["strict", "order"] if form in {"links", "chain"} else ["strict", "once", "window"]
    capture = capture_of_split(form, on_violation=policy, integrity=rnd.choice(classes))
    require_law(messages, capture, session, seed)
    for before, after in zip(messages, erased(messages, capture, session), strict=True):
        value = after.value or b""
        if after.key == ERASED_KEY or value == before.value:
            continue
        assert before.value is not None
        assert len(value) == len(before.value)
        assert {b for a, b in zip(before.value, value, strict=True) if a != b} == {ord(" ")}
        for text in (json.dumps(session), json.dumps(session, ensure_ascii=False)):
            assert text.encode() not in value


@pytest.mark.parametrize("seed", seeds(3, 100))
@pytest.mark.parametrize("policy", ["isolate", "record"])
def test_other_sessions_of_a_chain_get_no_gap(policy: str, seed: int) -> None:
    rnd = random.Random(seed)
    require_law(test_chains.random_messages(rnd, 120), test_chains.settings(policy), rnd.choice("abc"), seed)


def test_the_random_streams_have_what_is_to_be_kept_apart() -> None:
    found = Counter[str]()
    for form in FEEDS:
        capture, messages = capture_of_split(form), split_messages(form, random.Random(1), 150)
        folder = Folder(capture, 2, random.Random(1))
        folder.batch(messages)
        found.update(f"{form} {row['event']}" for row in folder.silver.events)
        found.update(f"{form} {row['reason']}" for row in folder.silver.quarantine)
        for after in erased(messages, capture, "secret"):
            found[f"{form} {'whole' if after.key == ERASED_KEY else 'other'}"] += 1
            found[f"{form} kept chain"] += after.key == ERASED_KEY and after.value is not None
    for form in FEEDS:
        assert {f"{form} gap", f"{form} session_broken", f"{form} whole", f"{form} bad_value"} <= {*+found}
    assert found["chain kept chain"]


DOCUMENTS: list[tuple[str, Any, Callable[[Any], list[Any]]]] = [
    ("a.b[*]", {"a": {"b": [1, "x,]", {"c": []}, None]}, "z": ["b"]}, lambda d: d["a"]["b"]),
    ("[*]", [[1], {"a": "}"}, "é", 1e5], lambda d: d),
    ("a[-1][*]", {"a": [[9], [1, [2], '\\"']]}, lambda d: d["a"][-1]),
]  # fmt: skip


@pytest.mark.parametrize(("path", "document", "parts"), DOCUMENTS)
@pytest.mark.parametrize("indent", [None, 2])
def test_any_parts_are_removed_and_all_else_stays(
    path: str, document: Any, parts: Callable[[Any], list[Any]], indent: int | None
) -> None:
    text = json.dumps(document, indent=indent).encode()
    found = JsonMessageParts.find_message_parts(text, parse_feed_path(path))
    assert found is not None
    for chosen in range(2 ** len(found.parts)):
        is_removed = [bool(chosen >> number & 1) for number in range(len(found.parts))]
        expected = json.loads(text)
        own = parts(expected)
        own[:] = [part for part, gone in zip(own, is_removed, strict=True) if not gone]
        left = found.overwrite_parts_with_spaces(is_removed)
        assert (json.loads(left), len(left)) == (expected, len(text))


@pytest.mark.parametrize(
    ("path", "text", "is_removed", "left"),
    [
        ("e[*].u[*]", '{"e":[{"p":"A","u":[1,2]},{"p":"B","u":[3]}]}', [1, 1, 0], '{"e":[{"p":"B","u":[3]}]}'),
        ("e[*].u[*]", '{"e":[{"p":"A","u":[1,2]},{"p":"B","u":[3]}]}', [1, 0, 1], '{"e":[{"p":"A","u":[2]}]}'),
        ("entries(s)", '{"s":{"A":1,"B":2,"A":3}}', [1, 0], '{"s":{"B":2}}'),
        ("entries(s)", '{"s":{"A":1,"B":2,"A":3}}', [0, 1], '{"s":{"A":1,"A":3}}'),
        ("s[*]", '{"s":["hidden"],"t":{"s":[0]},"s":["A","B"]}', [1, 0], '{"t":{"s":[0]},"s":["B"]}'),
        ("x[*] | s[*]", '{"x":[],"s":["A","B"]}', [0, 1], '{"x":[],"s":["A"]}'),
        ("[1:-1][*]", '["A","B","C","D"]', [1, 0], '["A","C","D"]'),
        ("s[*]", '{"s":["A"]}', [1], '{"s":[]}'),
        ("s[*]", '{"s":[ "\\u0041" , [] ,null]}', [1, 0, 1], '{"s":[[]]}'),
    ],
)
def test_what_goes_with_a_part(path: str, text: str, is_removed: list[int], left: str) -> None:
    found = JsonMessageParts.find_message_parts(text.encode(), parse_feed_path(path))
    assert found is not None
    blanked = found.overwrite_parts_with_spaces(list(map(bool, is_removed)))
    assert b"".join(blanked.split()) == left.encode()
    json.loads(blanked)


def batch_of(*rows: Row) -> pa.RecordBatch:
    schema = pa.schema([*raw_table([], 1).schema][1:]).append(pa.field("headers", HEADERS))
    given = {"topic": "split", "partition": 0, "timestamp": test_chains.START * 1000, "ingested_at": None}
    return pa.RecordBatch.from_pylist([given | {"key": b"k", "headers": None} | row for row in rows], schema)


def books_of(*symbols: str) -> bytes:
    rows = [{"price": 1, "qty": 1}]
    parts = [{"symbol": one, "u": 1, "kind": "snapshot", "rows": rows} for one in symbols]
    return json.dumps({"books": parts}).encode()


def test_a_shared_message_keeps_its_key_and_headers_and_is_marked() -> None:
    header = {"key": "h", "value": b"1"}
    batch = batch_of(
        {"offset": 0, "value": books_of("A", "B"), "headers": [header]},
        {"offset": 1, "value": books_of("B")},
        {"offset": 2, "value": books_of("A"), "headers": [header]},
    )
    rows = SessionMessageSelection(
        "split",
        "A",
        places=pa.table({"partition": pa.array([0, 0], pa.int32()), "offset": [0, 2]}),
        eraser=SessionMessageEraser(eraser_of(capture_of_split("objects"), "A")),
    )
    first, other, whole = rows.erase_selected_rows(batch).to_pylist()
    assert first["key"] == b"k"
    assert first["headers"] == [header, {"key": PARTS_ERASED_HEADER, "value": None}]
    assert [part["symbol"] for part in json.loads(first["value"])["books"]] == ["B"]
    assert other == batch.to_pylist()[1]
    assert (whole["key"], whole["value"], whole["headers"]) == (ERASED_KEY, None, None)
    assert [whole["offset"], whole["timestamp"]] == [2, batch.to_pylist()[2]["timestamp"]]


_DEPENDS = {"time": {"path": "books[0].at"}}


@pytest.mark.parametrize(
    ("form", "changed", "value", "why"),
    [
        ("objects", _DEPENDS, b'{"books": [{"symbol": "A", "at": 1, "u": 1}, {"symbol": "B", "at": 2, "u": 1}]}',
         "other sessions' rows depend on its part"),
        ("chain", {"order": {"seq": "n", "chain": "^.c"}},
         b'{"n":1,"events":[{"c":"x","symbol":"A","rows":[{"price":1}]},{"c":"y","symbol":"B","rows":[{"price":1}]}]}',
         "a chain of other sessions would have a gap"),
    ],
)  # fmt: skip
def test_a_message_whose_other_sessions_need_the_part_is_refused(
    form: str, changed: dict[str, Any], value: bytes, why: str
) -> None:
    given = capture_of_split(form)
    feed = given.feeds[0].model_validate(given.feeds[0].model_dump(by_alias=True, exclude_unset=True) | changed)
    capture = given.model_copy(update={"feeds": (feed,)})
    found = eraser_of(capture, "A").erase_session_in_messages(batch_of({"offset": 0, "value": value}))
    assert why in found.refused[0]
