"""The pages of settings and commands say what the code says: `make pages` writes them."""

from __future__ import annotations

import pytest

from sessionlake.settings.model import Settings
from support.reference_pages import PAGES, REFERENCE


@pytest.mark.parametrize("name", PAGES)
def test_a_generated_page_is_what_the_code_says(name: str):
    assert (REFERENCE / name).read_text(encoding="utf-8") == PAGES[name](), "run `make pages`"


def test_every_section_of_the_settings_is_on_the_page():
    page = PAGES["settings.md"]()
    assert [name for name in Settings.model_fields if f"`{name}`" not in page and f"## {name}\n" not in page] == []


def test_the_page_of_settings_has_defaults_as_the_file_writes_them():
    page = PAGES["settings.md"]()
    assert "| `silver.merge_interval` | `5 seconds` |" in page
    assert "| `bronze.archive.path` | required |" in page
    assert "| `gold.products[].output` | `update` |" in page


def test_the_page_of_commands_has_arguments_options_and_choices():
    page = PAGES["commands.md"]()
    assert "## sessionlake trace TOPIC PARTITION OFFSET\n" in page
    assert "| `--format` | `parquet` |" in page
    assert "One of `parquet`, `csv`, `jsonl`." in page
