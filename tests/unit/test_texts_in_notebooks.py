"""What data says is shown as it is, in tables and pictures of notebooks: no formula, no HTML, no Markdown."""

from __future__ import annotations

import io
from html import unescape
from typing import Any

import matplotlib as mpl
import pandas as pd
import pytest

from sessionlake.notebook import pictures
from sessionlake.notebook.context import NotebookContext

HOSTILE = ("a$b$c", "$\\frac{", "$x^2$", "<b>bold</b>", "**not bold**", "'; DROP TABLE t; --", "\\$1", "a&b", "%s {0}")
AT = pd.to_datetime([0, 60, 120], unit="s", utc=True)


def drawn(figure: Any) -> str:
    """The texts of a picture, one behind the other."""
    out = io.StringIO()
    with mpl.rc_context({"svg.fonttype": "none"}):
        figure.savefig(out, format="svg")
    return unescape(out.getvalue())


@pytest.mark.parametrize("text", HOSTILE)
def test_a_picture_has_titles_rows_topics_and_lanes_character_by_character(text: str) -> None:
    changes = pd.DataFrame({"time": AT, "change": ["clear", "upsert", "delete"], "row_id": [None, text, text]})
    events = pd.DataFrame({"time": AT[:1], "event": ["gap"]})
    assert drawn(pictures.draw_session_timeline(changes, events, "title")).count(f">{text}<") == 1
    found = pd.DataFrame({"topic": [text] * 3, "kind": ["gap"] * 3, "time": AT})
    assert f">{text}<" in drawn(pictures.draw_counts_by_kind_and_topic(found, "what"))
    lanes = pd.DataFrame({"lane": [text], "begin": AT[:1], "end": AT[1:2]})
    assert f">{text}<" in drawn(pictures.draw_stream_time_intervals(lanes, "title"))
    assert f">{text} of it<" in drawn(pictures.draw_rolling_averages(points(), f"{text} of it"))


def points() -> pd.DataFrame:
    return pd.DataFrame({"time": AT, "value": [1.0, 2.0, 3.0], "average": [1.0, 1.5, 2.0], "points": [1, 2, 3]})


@pytest.mark.parametrize("text", HOSTILE)
def test_a_table_in_jupyter_has_the_text_and_nothing_of_it_is_markup_or_a_formula(text: str) -> None:
    shown: list[str] = []
    book = NotebookContext.__new__(NotebookContext)
    book._display = lambda frame: shown.append(frame._repr_html_())
    book.show_rows(pd.DataFrame({"session_id": [text]}))
    assert "tex2jax_ignore" in shown[0]
    assert "<b>" not in shown[0]
    assert f"<td>{text}</td>" in unescape(shown[0])
