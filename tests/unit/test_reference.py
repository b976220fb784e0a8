"""The pages of the reference that are made from the code are what the code says now."""

from __future__ import annotations

import pytest

from sessionlake.settings.model import Settings
from support.reference import FOLDER, PAGES
from support.settings_page import settings_of


@pytest.mark.parametrize("name", PAGES)
def test_a_page_is_what_the_code_says(name):
    written = (FOLDER / f"{name}.md").read_text(encoding="utf-8")
    assert written == PAGES[name]().rstrip("\n") + "\n", "run `make reference`"


def test_settings_of_every_depth_are_on_their_page():
    assert {setting.key for setting in settings_of(Settings)} >= {
        "home", "kafka.topic_pattern", "capture.by_topic[].pattern", "gold.products[].aggregates", "processors[].name",
    }  # fmt: skip


def test_every_setting_says_what_it_means():
    assert [setting.key for setting in settings_of(Settings) if not setting.meaning] == []
