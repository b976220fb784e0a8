"""The page as a real browser shows it: nothing is refused, every chart has its colours, and no script runs."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from sessionlake.delta.lake import Lake
from sessionlake.history.report.page import write_report
from sessionlake.settings.model import Settings
from support.reports import Seen, fill

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
ALONE = ("--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--hide-scrollbars")
ALONE += ("--disable-background-networking", "--disable-component-update", "--disable-sync", "--enable-logging=stderr")
# As the page's style has them, light: bronze, silver, silver tables, gold, a value and its average, a minute's band.
COLORS = ("#b4682f", "#64788f", "#1f8a8c", "#c79200", "#a9afc0", "#4453c9", "#d3d7f3")
FULLY = 20
"""Pixels, at least, that have a colour and are not the edge of something."""

pytestmark = pytest.mark.skipif(BROWSER is None, reason="no Chromium or Chrome is on PATH to look at the page with")


@dataclass(frozen=True)
class Browser:
    """Starts with an empty profile each time.

    Attributes:
        folder: for profiles and pictures.
    """

    folder: Path

    def shows(self, file: Path, *options: str) -> tuple[str, list[str]]:
        """What an option of its own has it write, and what it has to say about the page."""
        own = f"--user-data-dir={self.folder / 'profile'}"
        done = subprocess.run(
            [str(BROWSER), *ALONE, own, *options, file.as_uri()],
            capture_output=True,
            text=True,
            check=True,
            timeout=120,
        )
        shutil.rmtree(self.folder / "profile")
        return done.stdout, [line for line in done.stderr.splitlines() if "CONSOLE" in line]


@pytest.fixture
def browser(tmp_path: Path) -> Browser:
    return Browser(tmp_path)


@pytest.fixture
def file(settings: Settings) -> Path:
    lake = Lake(settings)
    fill(lake, ["capture.a", "capture.<b>", "capture.\u202ec"])
    return write_report(lake.reader(), settings)


def test_a_browser_takes_the_page_as_it_was_written_and_refuses_nothing_of_it(browser, file):
    shown, complaints = browser.shows(file, "--dump-dom")
    assert complaints == []
    found, written = Seen(shown), Seen(file.read_text(encoding="utf-8"))
    assert found.charts == written.charts
    assert len(found.charts) == 2 + 3 * 2
    assert found.all_text("h2") == written.all_text("h2")


@pytest.mark.parametrize("width", [1400, 420])
def test_every_color_of_its_charts_is_seen(browser, file, tmp_path, width):
    from matplotlib.image import imread

    picture = tmp_path / "page.png"
    _, complaints = browser.shows(file, f"--screenshot={picture}", f"--window-size={width},5000")
    assert complaints == []
    pixels = np.rint(imread(picture)[..., :3] * 255).astype(int)
    seen = {color: int((pixels == rgb(color)).all(axis=-1).sum()) for color in COLORS}
    assert {color for color, count in seen.items() if count < FULLY} == set()


def rgb(color: str) -> list[int]:
    return list(bytes.fromhex(color.removeprefix("#")))


def test_a_script_in_the_page_would_not_run_and_be_reported(browser, file):
    page = file.read_text(encoding="utf-8")
    file.write_text(page.replace("</main>", "<script>document.title = 'ran'</script></main>"), encoding="utf-8")
    shown, complaints = browser.shows(file, "--dump-dom")
    assert Seen(shown).all_text("title")[0].startswith("sessionlake: ")
    assert any("Content Security Policy" in line for line in complaints)
