"""The pages of the reference that are made from the code are what the code says now: `make reference` writes them."""

from __future__ import annotations

import re

import pytest

from support.reference import FOLDER, PAGES, written


@pytest.mark.parametrize("name", PAGES)
def test_a_page_is_what_the_code_says(name):
    assert (FOLDER / f"{name}.md").read_text(encoding="utf-8") == written(PAGES[name]()), "run `make reference`"


def test_every_setting_says_what_it_means():
    rows = re.findall(r"^\| `(.+?)` \| .* \| (.*) \|$", PAGES["settings"](), re.MULTILINE)
    assert len(rows) > 100
    assert [key for key, meaning in rows if not meaning] == []


def test_errors_and_commands_are_all_there():
    assert len(re.findall(r"^## sessionlake ", PAGES["commands"](), re.MULTILINE)) > 40
    assert len(re.findall(r"^\| .+ \| .* \|$", PAGES["errors"](), re.MULTILINE)) > 300
