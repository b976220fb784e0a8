"""Archives: what is written is read, once and in bounded memory, and what is damaged is told and does no harm."""

from __future__ import annotations

import gzip
import json
import os
import random
import struct
import tracemalloc
import zipfile
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sessionlake.bronze.archive.files import LastOpenedZip
from sessionlake.bronze.archive.lines import (
    ArchivedMessage,
    MemberDamage,
    encode_footer_line,
    encode_header_line,
    parse_message_line,
)
from sessionlake.bronze.archive.members import (
    encode_gzip_member,
    list_members,
    read_and_check_members,
    read_member_messages,
)
from sessionlake.bronze.archive.source import (
    STREAM_START,
    find_position_after_next_batch,
    plan_archive_members_by_task,
    read_members_as_record_batches,
)
from sessionlake.bronze.archive.writer import write_archive, write_archives
from sessionlake.errors import DataLossError, LakeError
from support.archives import PLACES, capture, content
from support.seeds import examples

KINDS = pytest.mark.parametrize("kind", ["zip", "gz"])


def read(path, file=0):
    """All messages of a file, and why members of it cannot be used."""
    found, damages = [], []
    with LastOpenedZip() as files:
        for member in list_members(path, file):
            for known in read_and_check_members(member, files):
                if known.damage is not None:
                    damages.append(known.damage)
                    continue
                place = known.header.topic, known.header.partition
                found += [(place, message) for message in read_member_messages(known, files)]
    return found, damages


CONTENT = st.none() | st.binary(max_size=20) | st.text(max_size=20).map(str.encode)
MESSAGES = st.lists(
    st.tuples(
        st.integers(0, 2**40),
        st.integers(-(10**10), 10**13),
        CONTENT,
        CONTENT,
        st.sampled_from([0, 1]),
        st.none() | st.lists(st.tuples(st.text(max_size=5), CONTENT), max_size=2).map(tuple),
    ),
    unique_by=lambda fields: fields[0],
)


@KINDS
@examples(usual=24, in_all=240)
@given(given=MESSAGES)
def test_what_is_written_is_read_whatever_its_bytes(kind, given, tmp_path_factory):
    file = tmp_path_factory.mktemp("archive") / f"a.{kind}"
    messages = [(("t", 3), ArchivedMessage(*fields)) for fields in sorted(given, key=lambda fields: fields[0])]
    write_archive(file, messages)
    assert read(file) == (messages, [])


@KINDS
def test_a_member_begins_where_another_topic_partition_does(kind, tmp_path):
    made = write_archive(tmp_path / f"a.{kind}", capture())
    assert (made.messages, made.members, len(list_members(tmp_path / f"a.{kind}", 0))) == (80, 2, 2)
    assert read(tmp_path / f"a.{kind}") == (capture(), [])


def test_gzip_s_own_tool_reads_ours_and_we_read_its_chains(tmp_path):
    contents = [content(place, [m for at, m in capture() if at == place]) for place in PLACES]
    ours, theirs = tmp_path / "ours.gz", tmp_path / "theirs.gz"
    ours.write_bytes(b"".join(map(encode_gzip_member, contents)))
    theirs.write_bytes(b"".join(map(gzip.compress, contents)))
    assert gzip.decompress(ours.read_bytes()) == b"".join(contents)
    assert len(list_members(theirs, 0)) == 1
    assert read(theirs) == read(ours) == (capture(), [])


LINE = b'{"timestamp":1,"value":"v","offset":%d}\n'
BODY = LINE % 1 + LINE % 2
ALL = 1 << 30
DEEP = b"[" * 100_000 + b"]" * 100_000
WHOLE = encode_header_line("t", 0) + BODY + encode_footer_line(2, zlib.crc32(BODY))


@pytest.mark.parametrize(("stamp", "kind"), [(-1, -1), (-1, 0), (253_402_300_800_000, 0), (-9_223_372_036_854_775, 1)])
def test_a_timestamp_that_says_no_time_or_a_far_one_is_read_as_kafka_had_it(stamp: int, kind: int) -> None:
    found = parse_message_line(b'{"timestamp":%d,"timestamp_type":%d}' % (stamp, kind))
    assert (found.timestamp, found.timestamp_type) == (stamp, kind)


@pytest.mark.parametrize(
    ("text", "damage"),
    [
        (b"", MemberDamage.HEADER),
        (b"{}\n" + WHOLE, MemberDamage.HEADER),
        (WHOLE.replace(b'"version":1', b'"version":2'), MemberDamage.HEADER),
        (WHOLE.replace(b'"partition":0', b'"partition":-1'), MemberDamage.HEADER),
        (WHOLE.replace(b'"topic":"t"', b'"topic":"t\\u0000s"'), MemberDamage.HEADER),
        (WHOLE.replace(b'"partition":0', b'"partition":0,"more":' + DEEP), MemberDamage.HEADER),
        (
            WHOLE.replace(b'"partition":0', b'"partition":0,"first_offset":%d' % 2**70).replace(b',"offset":1', b""),
            MemberDamage.MESSAGE,
        ),
        (WHOLE.replace(b'"timestamp":1,', b'"timestamp":1,"more":' + DEEP + b",", 1), MemberDamage.MESSAGE),
        (WHOLE.replace(b'"timestamp":1,', b"", 1), MemberDamage.MESSAGE),
        (WHOLE.replace(b'"timestamp":1,', b'"timestamp":9999999999999999,', 1), MemberDamage.MESSAGE),
        (WHOLE.replace(b'"value":"v"', b'"value":{"base64":"?"}', 1), MemberDamage.MESSAGE),
        (WHOLE.replace(b'"offset":2', b'"offset":1'), MemberDamage.MESSAGE),
        (encode_header_line("t", 0) + BODY, MemberDamage.FOOTER),
        (encode_header_line("t", 0), MemberDamage.FOOTER),
        (WHOLE + b"more\n", MemberDamage.MESSAGE),
        (encode_header_line("t", 0) + BODY + encode_footer_line(3, zlib.crc32(BODY)), MemberDamage.COUNT),
        (WHOLE.replace(b'"v"', b'"w"', 1), MemberDamage.CHECKSUM),
    ],
    ids=lambda value: value if isinstance(value, MemberDamage) else "member",
)
@KINDS
def test_what_is_wrong_with_a_member_is_reported_and_the_next_one_is_read(kind, text, damage, tmp_path):
    file = tmp_path / f"a.{kind}"
    if kind == "zip":
        with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("a", text)
            archive.writestr("b", WHOLE)
    else:
        file.write_bytes(gzip.compress(text) + gzip.compress(WHOLE))
    found, damages = read(file)
    assert damages == [damage]
    assert [message.offset for _, message in found] == [1, 2]
    rows = [row for batch in read_members_as_record_batches(list_members(file, 0)) for row in batch.to_pylist()]
    assert [(row["damage"], row["offset"]) for row in rows] == [(damage, None), (None, 1), (None, 2)]


def test_behind_a_line_that_is_too_long_the_next_member_is_found(tmp_path, monkeypatch):
    monkeypatch.setattr("sessionlake.bronze.archive.members.MAX_LINE_BYTES", 1 << 20)
    endless = (
        encode_header_line("t", 0) + b'{"timestamp":1,"value":"' + random.Random(0).randbytes(1 << 20).hex().encode()
    )
    (tmp_path / "a.gz").write_bytes(gzip.compress(endless) + gzip.compress(WHOLE))
    found, damages = read(tmp_path / "a.gz")
    assert damages == [MemberDamage.MESSAGE]
    assert [message.offset for _, message in found] == [1, 2]


@KINDS
def test_a_flipped_byte_costs_its_member_alone(kind, tmp_path):
    file = tmp_path / f"a.{kind}"
    write_archive(file, capture())
    second = list_members(file, 0)[1]
    data = bytearray(file.read_bytes())
    at = data.rindex(b".jsonl", 0, len(data) // 2 + 400) + 40 if kind == "zip" else second.start + 100
    data[at] ^= 0xFF
    file.write_bytes(data)
    found, damages = read(file)
    assert damages == [MemberDamage.UNREADABLE]
    assert len(found) == 40


def test_a_directory_that_names_places_before_the_archive_costs_its_members_alone(tmp_path):
    write_archive(tmp_path / "a.zip", capture())
    data = bytearray((tmp_path / "a.zip").read_bytes())
    data[-5] ^= 1  # of where the directory begins, by which all other places are told
    (tmp_path / "a.zip").write_bytes(data)
    found, damages = read(tmp_path / "a.zip")
    assert (found, set(damages)) == ([], {MemberDamage.UNREADABLE})


@KINDS
@given(at=st.integers(0, 10_000), value=st.integers(1, 255))
def test_no_damage_gives_messages_that_were_not_archived(kind, at, value, tmp_path_factory):
    file = tmp_path_factory.mktemp("archive") / f"a.{kind}"
    write_archive(file, capture(10))
    data = bytearray(file.read_bytes())
    data[at % len(data)] ^= value
    file.write_bytes(data)
    found, _ = read(file)
    assert set(found) <= set(capture(10))


@KINDS
def test_a_file_that_is_cut_short_keeps_the_members_before(kind, tmp_path):
    file = tmp_path / f"a.{kind}"
    write_archive(file, capture())
    file.write_bytes(file.read_bytes()[:-40])
    found, damages = read(file)
    assert damages == [MemberDamage.UNREADABLE]
    assert found == ([] if kind == "zip" else capture()[:40])  # a zip's directory is at its end


def test_messages_without_offsets_are_numbered_by_file_member_and_line_or_from_the_header_on(tmp_path):
    body = b'{"timestamp":1}\n' * 2
    plain = encode_header_line("t", 0) + body + encode_footer_line(2, zlib.crc32(body))
    named = plain.replace(b'"partition":0', b'"partition":0,"first_offset":50')
    (tmp_path / "a.gz").write_bytes(gzip.compress(plain) + gzip.compress(plain) + gzip.compress(named))
    offsets = [message.offset for _, message in read(tmp_path / "a.gz", file=3)[0]]
    first, second = 3 << 40, (3 << 40) + (1 << 24)
    assert offsets == [first, first + 1, second, second + 1, 50, 51]


def test_a_member_is_read_in_bounded_memory(tmp_path):
    body = (b'{"timestamp":1,"value":"' + b"x" * 1000 + b'"}\n') * 25_000
    (tmp_path / "a.gz").write_bytes(
        encode_gzip_member(encode_header_line("t", 0) + body + encode_footer_line(25_000, zlib.crc32(body)))
    )
    del body
    (tmp_path / "b.gz").write_bytes(encode_gzip_member(WHOLE))
    assert (
        sum(batch.num_rows for batch in read_members_as_record_batches(list_members(tmp_path / "b.gz", 0))) == 2
    )  # what is imported is
    tracemalloc.start()
    count = sum(batch.num_rows for batch in read_members_as_record_batches(list_members(tmp_path / "a.gz", 0)))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert count == 25_000
    assert peak < 20 * 1024 * 1024


def rows(file):
    """What bronze gets of a file, as rows."""
    return [row for batch in read_members_as_record_batches(list_members(file, 0)) for row in batch.to_pylist()]


@pytest.mark.parametrize("method", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
@pytest.mark.parametrize("flip", [False, True], ids=["whole", "damaged"])
def test_members_compressed_otherwise_than_by_deflate_are_unreadable_and_the_others_are_read(method, flip, tmp_path):
    file = tmp_path / "a.zip"
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("bomb", b"0" * 2**24, compress_type=method)
        archive.writestr("stored", WHOLE, compress_type=zipfile.ZIP_STORED)
        archive.writestr("deflated", WHOLE.replace(b'"topic":"t"', b'"topic":"u"'), compress_type=zipfile.ZIP_DEFLATED)
    if flip:
        data = bytearray(file.read_bytes())
        data[60] ^= 0xFF
        file.write_bytes(data)
    bomb, *others = rows(file)
    assert (bomb["damage"], bomb["file"], bomb["member"]) == ("unreadable", str(file), "bomb")
    assert f"method {method}" in bomb["detail"]
    assert [(row["topic"], row["offset"]) for row in others] == [("t", 1), ("t", 2), ("u", 1), ("u", 2)]


@KINDS
@pytest.mark.parametrize("lines", [False, True], ids=["one line", "many lines"])
def test_what_a_member_decompresses_to_is_bounded(kind, lines, tmp_path, monkeypatch):
    monkeypatch.setattr("sessionlake.bronze.archive.members.MAX_MEMBER_BYTES", 1 << 20)
    size = (1 << 20) // len(LINE % 1) + 1 if lines else 0
    body = b"".join(LINE % n for n in range(size)) if lines else b'{"timestamp":1,"value":"' + b"0" * (1 << 20)
    text = encode_header_line("t", 0) + body + encode_footer_line(size, zlib.crc32(body))
    file = tmp_path / f"a.{kind}"
    if kind == "zip":
        with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("a", text)
            archive.writestr("b", WHOLE)
    else:
        file.write_bytes(encode_gzip_member(text) + encode_gzip_member(WHOLE))
    first, *others = rows(file)
    assert (first["damage"], first["detail"]) == (
        "unreadable",
        "unreadable: it decompresses to more than 1048576 bytes",
    )
    assert [row["offset"] for row in others] == [1, 2]


def without_name(data):
    """A zip file of one member whose name has one character, without that name."""
    data = bytearray(data)
    for signature, length_at, name_at in ((b"PK\x03\x04", 26, 30), (b"PK\x01\x02", 28, 46)):
        start = data.index(signature)
        data[start + length_at : start + length_at + 2] = bytes(2)
        del data[start + name_at]
    directory, end = data.index(b"PK\x01\x02"), data.index(b"PK\x05\x06")
    data[end + 12 : end + 20] = struct.pack("<II", end - directory, directory)
    return bytes(data)


def test_a_file_whose_name_is_no_text_is_read_and_its_damage_is_reported(tmp_path):
    file = tmp_path / os.fsdecode(b"caf\xe9.gz")
    file.write_bytes(encode_gzip_member(WHOLE) + encode_gzip_member(WHOLE[:-5]))
    rows = [row for batch in read_members_as_record_batches(list_members(file, 0)) for row in batch.to_pylist()]
    assert {row["file"] for row in rows} == {f"{tmp_path}/caf\\udce9.gz"}
    assert sum(row["damage"] is not None for row in rows) == 1


def test_a_member_with_an_empty_name_is_read(tmp_path):
    file = tmp_path / "a.zip"
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("x", WHOLE)
    file.write_bytes(without_name(file.read_bytes()))
    assert zipfile.ZipFile(file).namelist() == [""]
    assert [(row["damage"], row["offset"], row["member"]) for row in rows(file)] == [(None, 1, "0"), (None, 2, "0")]


def test_what_is_no_regular_file_is_unreadable_and_a_link_to_one_is_read(tmp_path):
    os.mkfifo(tmp_path / "a.gz")
    (tmp_path / "b.zip").mkdir()
    (tmp_path / "c.zip").symlink_to(tmp_path / "gone")
    (tmp_path / "d.gz").symlink_to("/dev/zero")
    (tmp_path / "e.gz").symlink_to(tmp_path / "e.gz")
    (tmp_path / "whole").write_bytes(encode_gzip_member(WHOLE))
    (tmp_path / "f.gz").symlink_to(tmp_path / "whole")
    end = find_position_after_next_batch(tmp_path, STREAM_START, ALL)
    found = [
        row
        for task in plan_archive_members_by_task(tmp_path, STREAM_START, end)
        for batch in read_members_as_record_batches(task)
        for row in batch.to_pylist()
    ]
    assert [(row["file"][-4:], row["damage"], row["offset"]) for row in found] == [
        *((name, "unreadable", None) for name in ("a.gz", ".zip", ".zip", "d.gz", "e.gz")),
        ("f.gz", None, 1),
        ("f.gz", None, 2),
    ]
    assert all("not a regular file" in row["detail"] for row in found[:5])


def test_a_zip_of_many_members_is_opened_once_for_each_task(tmp_path, monkeypatch):
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        for number in range(500):
            archive.writestr(str(number), WHOLE)
    opened = []
    real = zipfile.ZipFile.__init__
    monkeypatch.setattr(zipfile.ZipFile, "__init__", lambda *args, **more: opened.append(1) or real(*args, **more))
    end = find_position_after_next_batch(tmp_path, STREAM_START, ALL)
    tasks = plan_archive_members_by_task(tmp_path, STREAM_START, end)
    assert sum(batch.num_rows for task in tasks for batch in read_members_as_record_batches(task)) == 1000
    assert len(opened) == 1 + len(tasks)


@KINDS
def test_members_beyond_the_limit_are_one_row_whatever_their_number(kind, tmp_path, monkeypatch):
    monkeypatch.setattr("sessionlake.bronze.archive.members._MAX_MEMBERS", 3)
    file = tmp_path / f"a.{kind}"
    if kind == "zip":
        with zipfile.ZipFile(file, "w") as archive:
            for number in range(9):
                archive.writestr(str(number), WHOLE)
    else:
        file.write_bytes(encode_gzip_member(WHOLE) * 9)
        (tmp_path / "foreign.gz").write_bytes(gzip.compress(WHOLE) * 9)
        assert [row["damage"] for row in rows(tmp_path / "foreign.gz")] == [None] * 6 + ["bad_header"]
    assert [row["damage"] for row in rows(file)] == [None] * 6 + ["bad_header"]


def test_a_zip_s_directory_is_not_read_into_memory_whatever_its_size(tmp_path, monkeypatch):
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        for number in range(50):
            archive.writestr(str(number), WHOLE)
    monkeypatch.setattr("sessionlake.bronze.archive.files._MAX_DIRECTORY_BYTES", 1000)
    [row] = rows(tmp_path / "a.zip")
    assert (row["damage"], "its directory has more than 1000 bytes" in row["detail"]) == ("unreadable", True)


def test_a_long_line_costs_time_as_its_length(tmp_path):
    value = b"x" * (32 * 2**20)
    body = b'{"timestamp":1,"value":"' + value + b'","offset":1}\n'
    (tmp_path / "a.gz").write_bytes(
        encode_gzip_member(encode_header_line("t", 0) + body + encode_footer_line(1, zlib.crc32(body)))
    )
    tracemalloc.start()
    [row] = rows(tmp_path / "a.gz")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert row["value"] == value
    assert peak < 8 * len(value)


def test_files_are_taken_once_in_the_order_of_their_names_and_unfinished_ones_not(tmp_path):
    for name in ("b.zip", "a.gz", ".c.zip.partial", "_d.zip", "e.txt"):
        (tmp_path / name).write_bytes(encode_gzip_member(WHOLE))
    first = find_position_after_next_batch(tmp_path, STREAM_START, ALL)
    assert first == {"files": 2, "last": "b.zip", "there": 2}
    numbers = [
        (m.path[-4:], m.file) for task in plan_archive_members_by_task(tmp_path, STREAM_START, first) for m in task
    ]
    assert numbers == [("a.gz", 0), (".zip", 1)]
    (tmp_path / "c.gz").write_bytes(encode_gzip_member(WHOLE))
    (tmp_path / "a.gz").unlink()  # it was taken
    [[member]] = plan_archive_members_by_task(tmp_path, first, find_position_after_next_batch(tmp_path, first, ALL))
    assert (member.path[-4:], member.file) == ("c.gz", 2)
    assert json.loads(json.dumps(first)) == first


def test_a_file_that_comes_under_an_earlier_name_is_reported_and_not_passed_over(tmp_path):
    (tmp_path / "b.gz").write_bytes(encode_gzip_member(WHOLE))
    first = find_position_after_next_batch(tmp_path, STREAM_START, ALL)
    (tmp_path / "a.gz").write_bytes(encode_gzip_member(WHOLE))
    with pytest.raises(LakeError, match="with a name that sorts before"):
        find_position_after_next_batch(tmp_path, first, ALL)


def test_a_late_file_is_reported_where_others_that_were_taken_are_gone_too(tmp_path):
    for name in ("b.gz", "c.gz"):
        (tmp_path / name).write_bytes(encode_gzip_member(WHOLE))
    first = find_position_after_next_batch(tmp_path, STREAM_START, ALL)
    (tmp_path / "b.gz").unlink()
    (tmp_path / "d.gz").write_bytes(encode_gzip_member(WHOLE))
    second = find_position_after_next_batch(tmp_path, first, ALL)
    assert second == {"files": 3, "last": "d.gz", "there": 2}
    (tmp_path / "a.gz").write_bytes(encode_gzip_member(WHOLE))
    with pytest.raises(LakeError, match="files up to that name: 2 before, 3 now"):
        find_position_after_next_batch(tmp_path, second, ALL)


def test_a_file_that_is_gone_before_it_was_captured_is_reported(tmp_path):
    (tmp_path / "a.gz").write_bytes(encode_gzip_member(WHOLE))
    end = find_position_after_next_batch(tmp_path, STREAM_START, ALL)
    (tmp_path / "a.gz").unlink()
    with pytest.raises(DataLossError, match=r"with 1 files .* there are 0\. .* an empty file with its name and \.skip"):
        plan_archive_members_by_task(tmp_path, STREAM_START, end)


def test_a_file_that_was_named_so_since_its_batch_was_planned_is_passed_over_and_no_other(tmp_path):
    for name in ("a.gz", "b.gz", "c.gz"):
        (tmp_path / name).write_bytes(encode_gzip_member(WHOLE))
    end = find_position_after_next_batch(tmp_path, STREAM_START, ALL)
    (tmp_path / "b.gz").rename(tmp_path / "b.gz.skip")
    [[first, last]] = plan_archive_members_by_task(tmp_path, STREAM_START, end)
    assert (first.path[-4:], last.path[-4:]) == ("a.gz", "c.gz")
    assert find_position_after_next_batch(tmp_path, end, ALL) == end
    (tmp_path / "d.gz.skip").touch()  # of a later batch
    (tmp_path / "c.gz").unlink()
    with pytest.raises(DataLossError, match=r"with 3 files .* there are 1\."):
        plan_archive_members_by_task(tmp_path, STREAM_START, end)


def test_a_batch_has_files_of_about_so_many_bytes_and_one_at_least(tmp_path):
    size = len(encode_gzip_member(WHOLE))
    for name in ("a.gz", "b.gz", "c.gz"):
        (tmp_path / name).write_bytes(encode_gzip_member(WHOLE))
    assert find_position_after_next_batch(tmp_path, STREAM_START, 1) == {"files": 1, "last": "a.gz", "there": 1}
    assert find_position_after_next_batch(tmp_path, STREAM_START, size) == {"files": 1, "last": "a.gz", "there": 1}
    assert find_position_after_next_batch(tmp_path, STREAM_START, size + 1) == {"files": 2, "last": "b.gz", "there": 2}
    assert find_position_after_next_batch(tmp_path, {"files": 2, "last": "b.gz"}, 1) == {
        "files": 3,
        "last": "c.gz",
        "there": 3,
    }
    assert find_position_after_next_batch(tmp_path, {"files": 3, "last": "c.gz"}, 1) == {"files": 3, "last": "c.gz"}


@KINDS
def test_a_folder_of_archives_has_all_messages_in_the_order_of_names(kind, tmp_path):
    folder = tmp_path / "archives"
    made = write_archives(folder, iter(capture()), f".{kind}", 1)
    files = sorted(folder.iterdir())
    assert [file.name for file in files] == [f"000001.{kind}", f"000002.{kind}"]
    assert (made.messages, made.members) == (80, 2)
    assert [found for file in files for found in read(file)[0]] == capture()
    with pytest.raises(FileExistsError):
        write_archives(folder, [], f".{kind}", 1)
