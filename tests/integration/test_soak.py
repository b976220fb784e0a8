"""Killed twenty times at times that nobody chose."""

from __future__ import annotations

import random
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from sessionlake.settings.model import Settings
from support.crashes import assert_every_message_once, configured, fill, lose_last_commits, make, run, worker
from support.streams import cut

KILLS = 20
LONGEST_SECONDS = 30


@pytest.mark.soak
@pytest.mark.timeout(60 * 60)
def test_killed_twenty_times_at_random_equals_the_truth(
    spark: Any, broker_settings: Settings, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    seed = random.SystemRandom().randrange(1 << 32)
    request.node.add_report_section("call", "seed", f"random.Random({seed})")
    rnd = random.Random(seed)
    file = tmp_path / "sessionlake.yml"
    settings = configured(file, broker_settings)
    messages = make(tmp_path, 2_000)
    for batch in cut(rnd, messages, KILLS):
        fill(settings, batch)
        process = subprocess.Popen(**worker(file), stderr=subprocess.DEVNULL)
        try:
            time.sleep(rnd.uniform(1, LONGEST_SECONDS))
        finally:
            process.send_signal(signal.SIGKILL)
            process.wait()
        if rnd.random() < 0.5:
            lose_last_commits(settings)
    ended = run(file, None)
    assert ended.returncode == 0, ended.stderr[-3000:]
    assert_every_message_once(spark, settings, messages)
