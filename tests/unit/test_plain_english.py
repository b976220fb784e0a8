"""Texts are plain English: no sentence over 30 words, no word that has a plainer one, no docstring that only points."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.docs import ROOT
from support.plain_english import findings

TEXTS = sorted(
    [
        *(ROOT / "src").glob("*/*"),
        *(ROOT / "docs").iterdir(),
        ROOT / "notebooks",
        *ROOT.glob("*.md"),
        *(ROOT / "tests" / "support").glob("reference*.py"),
    ]
)


@pytest.mark.parametrize("path", TEXTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_texts_need_no_second_reading(path: Path) -> None:
    assert [str(one) for one in findings([path])] == [] or path.name == "__pycache__"


def test_what_reads_hard_is_found(tmp_path: Path) -> None:
    long = " ".join(["word"] * 31)
    (tmp_path / "a.py").write_text(
        f'"""See `b`."""\n\n\ndef told(whole: int) -> None:\n    """It is made anew. {long}."""\n    # Whoever comes\n'
    )
    (tmp_path / "a.md").write_text("It goes on.\n\n```\nanew\n```\n\n| a | no more |\n")
    assert [str(one).removeprefix(f"{tmp_path}/") for one in sorted(findings([tmp_path]))] == [
        "a.md:1: «goes on»: write continues, resumes",
        "a.md:7: «no more»: write no longer, not",
        "a.py:1: the docstring only points elsewhere: See `b`.",
        "a.py:4: private word in the name told",
        "a.py:4: private word in the name whole",
        "a.py:5: a sentence of 31 words: word word word word word word word word …",
        "a.py:5: «anew»: write again, from the start, new",
        "a.py:6: «Whoever»: write a process that, someone who",
    ]
