"""When silver's states can be compared at all; that they are compared is shown over real ones in `tests/spark`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from sessionlake.delta.schemas.names import SILVER
from sessionlake.errors import LakeError
from sessionlake.operations.rebuild import compare_states
from sessionlake.settings.model import Settings

ANY: Any = object()


@pytest.mark.parametrize(
    ("of_states", "last", "why"),
    [(-1, -1, "there are none yet"), (3, 4, "they are of batch 3, and the ledger's last is 4")],
)
def test_states_of_other_messages_are_passed_over_with_the_reason(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, of_states: int, last: int, why: str
):
    monkeypatch.setattr(compare_states, "read_state_and_ledger_batch", lambda *_: (of_states, last))
    assert why in (compare_states.compare_states_with_rebuilt(ANY, settings, ANY).skipped or "")


def test_a_first_batch_that_died_before_the_checkpoint_had_it_is_ended_and_nothing_is_lost(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
):
    planned = Path(settings.checkpoint_path(SILVER)) / "offsets" / "0"
    planned.parent.mkdir(parents=True)
    planned.touch()
    monkeypatch.setattr(compare_states, "read_state_and_ledger_batch", lambda *_: (-1, 0))
    skipped = compare_states.compare_states_with_rebuilt(ANY, settings, ANY).skipped
    assert (
        skipped
        == "there are none yet, and silver has not finished its first batch: run `sessionlake run silver --once`"
    )


def test_states_that_are_lost_are_no_reason_to_pass_over_them(settings: Settings, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(compare_states, "read_state_and_ledger_batch", lambda *_: (-1, 4))
    with pytest.raises(LakeError, match=r"its checkpoint has no state.*sessionlake recover silver"):
        compare_states.compare_states_with_rebuilt(ANY, settings, ANY)
