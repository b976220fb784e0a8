"""A batch that died between two tables is finished by the settings that began it."""

from __future__ import annotations

from pathlib import Path

import pytest

from sessionlake.config import Settings
from sessionlake.errors import LakeError
from sessionlake.lake.ledger import OffsetRange
from sessionlake.streaming.guards import begun, committing, forget_begun

RANGES = [OffsetRange("t", 0, 4, 6, 3)]


class PowerCutError(Exception):
    pass


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    found = Settings(home=tmp_path)
    Path(found.checkpoint("silver")).parent.mkdir(parents=True)
    with pytest.raises(PowerCutError), committing(found, "silver", 3, "a", RANGES):
        raise PowerCutError
    return found


def test_other_settings_are_refused_until_the_batch_is_whole(settings):
    with (
        pytest.raises(LakeError, match=r"interrupted while it committed batch 3, .*config_hash a, now b"),
        committing(settings, "silver", 3, "b", RANGES),
    ):
        pytest.fail("begun")
    with committing(settings, "silver", 3, "a", RANGES):
        assert begun(settings, "silver").offsets == [("t", 0, 4, 6)]
    assert begun(settings, "silver") is None
    with (  # its query may not know yet that it is done
        pytest.raises(LakeError, match=r"interrupted while it committed batch 3, .*config_hash a, now b"),
        committing(settings, "silver", 3, "b", RANGES),
    ):
        pytest.fail("begun")
    for batch, by in ((3, "a"), (4, "b"), (5, "a")):
        with committing(settings, "silver", batch, by, RANGES):
            pass
    forget_begun(settings, "silver")
    with committing(settings, "silver", 5, "c", RANGES):
        pass


def test_another_layer_is_not_concerned(settings):
    with committing(settings, "processor-p", 3, "b", RANGES):
        pass
    assert begun(settings, "silver") is not None


@pytest.mark.parametrize("name", ["committing", "committed"])
@pytest.mark.parametrize("content", ["", '{"batch":3', '{"batch":"three","config_hash":"a","offsets":[]}'])
def test_a_note_that_cannot_be_read_is_named_with_what_to_do_and_stays(settings, content, name):
    note = Path(f"{settings.checkpoint('silver')}.{name}.json")
    note.write_text(content)
    with (
        pytest.raises(
            LakeError, match=rf"silver.{name}.json cannot be read .*recover silver.*backup.*remove it and run again"
        ),
        committing(settings, "silver", 3, "a", RANGES),
    ):
        pytest.fail("begun")
    assert note.read_text() == content


def test_a_note_that_was_not_whole_when_the_power_failed_leaves_the_one_before(settings, monkeypatch):
    def power_cut(_: int) -> None:
        raise PowerCutError

    with monkeypatch.context() as failing:
        failing.setattr("os.fsync", power_cut)
        with pytest.raises(PowerCutError), committing(settings, "silver", 4, "a", RANGES):
            pytest.fail("begun")
    assert begun(settings, "silver").batch == 3
