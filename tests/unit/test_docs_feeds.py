"""The how-to about feeds: its messages, feeds, tests and outputs are pasted and run as a reader would."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from sessionlake.cli import app as cli
from sessionlake.feed_testing import check_feeds
from support.docs import ROOT

PAGE = ROOT / "docs" / "how-to" / "bring-your-own-messages.md"
TEXT = PAGE.read_text(encoding="utf-8")
MOST_WORDS = 900


def call(*words: str) -> str:
    result = CliRunner().invoke(cli.app, ["feed", *words])
    assert result.stderr == ""
    return result.stdout


def blocks_of(section: str) -> dict[str, str]:
    """The blocks of a section, by language."""
    return dict(re.findall(r"^```(\w+)\n(.*?)^```$", section, re.MULTILINE | re.DOTALL))


WORKED = [section for section in TEXT.split("\n## ") if "feed infer" in section and "```json" in section]
FILES = [re.findall(r"`feed infer (\S+)`", section)[0] for section in WORKED]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SESSIONLAKE_HOME", str(tmp_path / "home"))
    return tmp_path


@pytest.mark.parametrize("section", WORKED, ids=FILES)
def test_a_worked_example_gives_the_feed_and_the_output_that_the_page_shows(section, folder):
    file = re.findall(r"`feed infer (\S+)`", section)[0]
    blocks = blocks_of(section)
    (folder / file).write_text(blocks["json"], encoding="utf-8")
    proposed = call("infer", file)
    assert yaml.safe_load(proposed) == yaml.safe_load(blocks["yaml"])
    (folder / "sessionlake.yml").write_text(blocks["yaml"], encoding="utf-8")
    command = re.findall(r"`feed (try [^`]+)`", section)[0]
    assert call(*command.split()) == blocks["text"]


def test_there_is_a_worked_example_of_a_book_a_table_and_sensors():
    assert FILES == ["book.jsonl", "orders.jsonl", "readings.jsonl"]


def test_the_test_of_the_page_passes_and_fails_as_the_page_shows(folder):
    (folder / "sessionlake.yml").write_text(blocks_of(WORKED[0])["yaml"], encoding="utf-8")
    blocks = blocks_of(TEXT.split("\n## Test a feed")[1])
    (folder / "book.test.yml").write_text(blocks["yaml"], encoding="utf-8")
    assert call("test", "book.test.yml") == "book.test.yml: frames 3, as expected\n"
    check_feeds("book.test.yml", config="sessionlake.yml")
    (folder / "book.test.yml").write_text(blocks["yaml"].replace('"0"', '"1"'), encoding="utf-8")
    assert call("test", "book.test.yml") == blocks["text"]


def test_the_checksums_of_the_reference_fit_and_a_changed_digit_does_not(folder):
    reference = (ROOT / "docs" / "reference" / "feeds.md").read_text(encoding="utf-8")
    feed, frames = re.findall(r"^```yaml\n(.*?)^```$", reference.split("\n## Checksums")[1], re.MULTILINE | re.DOTALL)
    (folder / "sessionlake.yml").write_text(feed, encoding="utf-8")
    (folder / "checked.test.yml").write_text(frames, encoding="utf-8")
    assert call("test", "checked.test.yml") == "checked.test.yml: frames 3, as expected\n"
    (folder / "checked.test.yml").write_text(frames.replace('"3"', '"3.0"'), encoding="utf-8")
    assert "frame 1: checksum: the table does not have" in call("test", "checked.test.yml")


def test_the_page_is_short_without_the_data_and_output_in_it():
    read = re.sub(r"^```(json|text)\n.*?^```$", "", TEXT, flags=re.MULTILINE | re.DOTALL)
    assert len(read.split()) <= MOST_WORDS
