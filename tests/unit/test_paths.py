"""Paths and URIs: one way there and back, for every path that a file system has."""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path
from urllib.parse import quote, urlsplit

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sessionlake.delta.folders.table_files import find_table_folder, list_data_files, open_table
from sessionlake.errors import MachineSetupError
from sessionlake.local import paths
from sessionlake.local.home import create_home_folder
from sessionlake.local.paths import (
    convert_path_to_uri,
    convert_uri_to_path,
    decode_path_from_delta_log,
    encode_path_for_delta_log,
    find_path_without_special_characters,
    resolve_path_of_delta_log,
)
from sessionlake.settings.model import Settings

NAME = "a b#c%20d+ü&=;?*'\"😀"
NAMES = st.text(st.characters(exclude_characters="/\0", exclude_categories=["Cs"]), min_size=1, max_size=20).filter(
    lambda name: name not in {".", ".."} and len(os.fsencode(name)) < 200
)
PATHS = st.lists(NAMES, min_size=1, max_size=4).map(lambda names: Path("/", *names))


@given(PATHS)
def test_a_path_is_the_same_after_it_was_a_uri(path: Path) -> None:
    uri = convert_path_to_uri(path)
    assert convert_uri_to_path(uri) == path
    assert convert_uri_to_path(uri.replace("file:///", "file:/", 1)) == path  # as Hadoop writes it
    assert uri.isascii()
    parts = urlsplit(uri)
    assert (parts.scheme, parts.netloc, parts.query, parts.fragment) == ("file", "", "", "")


@given(st.lists(NAMES, min_size=1, max_size=3).map("/".join))
def test_a_file_is_the_same_after_the_log_has_named_it(file: str) -> None:
    assert decode_path_from_delta_log(encode_path_for_delta_log(file)) == file
    assert resolve_path_of_delta_log(Path("/table"), encode_path_for_delta_log(file)) == Path("/table", file)
    assert json.loads(json.dumps(encode_path_for_delta_log(file))).isascii()


@given(PATHS)
def test_a_file_elsewhere_is_named_by_its_uri(path: Path) -> None:
    assert resolve_path_of_delta_log(Path("/table"), convert_path_to_uri(path)) == path


def test_bytes_that_are_no_utf_8_are_kept() -> None:
    path = Path(os.fsdecode(b"/caf\xe9"))
    assert (convert_path_to_uri(path), convert_uri_to_path(convert_path_to_uri(path))) == ("file:///caf%E9", path)


@pytest.mark.parametrize("name", [" ", "#", "%", "+", "ü", "%20", "?", "&"])
def test_a_folder_has_a_name_without_characters_that_uris_encode(tmp_path: Path, name: str) -> None:
    (folder := tmp_path / f"a{name}b").mkdir()
    (folder / "file").write_text("content")
    link = find_path_without_special_characters(folder)
    assert (link / "file").read_text() == "content"
    assert convert_path_to_uri(link) == f"file://{link}"
    assert find_path_without_special_characters(folder) == link
    assert find_path_without_special_characters(tmp_path) == tmp_path


def test_files_of_a_table_are_found_though_log_and_folder_encode_their_names(tmp_path: Path) -> None:
    from deltalake import DeltaTable, Schema
    from deltalake.transaction import AddAction

    (folder := tmp_path / "a b#c%d+ü" / "table").mkdir(parents=True)
    rows = pa.table({"a": [1, 2]})
    pq.write_table(rows, folder / NAME)
    table = DeltaTable.create(folder, Schema.from_arrow(rows.schema))
    size = (folder / NAME).stat().st_size
    table.create_write_transaction(
        [AddAction(NAME, size, {}, 1, data_change=True, stats='{"numRecords":2}')], "append", rows.schema
    )

    delta = open_table(folder)
    assert find_table_folder(delta) == folder
    assert [file.full_path for file in list_data_files(delta)] == [folder / NAME]


def test_links_have_no_encoded_characters_though_the_temporary_folder_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (own := tmp_path / "a b#c%d").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(own))
    paths.get_temporary_folder_of_process.cache_clear()
    paths._create_symbolic_link.cache_clear()
    try:
        link = find_path_without_special_characters(own)
        assert quote(str(link)) == str(link)
        assert link.resolve() == own.resolve()
    finally:
        paths.get_temporary_folder_of_process.cache_clear()
        paths._create_symbolic_link.cache_clear()


@pytest.mark.parametrize("part", ["a%20b", "a[b]", "a|b", "a^b", "a\\b", "a\nb"])
def test_a_home_whose_tables_could_not_be_opened_is_refused_before_it_is_made(tmp_path: Path, part: str) -> None:
    home = tmp_path / part / "home"
    with pytest.raises(MachineSetupError, match=r"its tables cannot be opened.*SESSIONLAKE_HOME"):
        create_home_folder(Settings(home=home))
    assert not home.parent.exists()


def test_a_link_to_a_home_whose_tables_could_not_be_opened_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a%20b").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "a%20b")
    with pytest.raises(MachineSetupError, match=r"contains '%20'"):
        create_home_folder(Settings(home=tmp_path / "link"))


def test_all_other_characters_are_allowed_in_a_home(tmp_path: Path) -> None:
    home = tmp_path / "a b#c%d+ü 100% é?*{x}'\"&=;:@~`$!,"
    assert create_home_folder(Settings(home=home)) == home
