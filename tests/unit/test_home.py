from __future__ import annotations

import stat
import threading

import pytest

from sessionlake.cli import doctor
from sessionlake.errors import MachineSetupError
from sessionlake.local.home import create_home_folder, hold_lock_after_waiting
from sessionlake.local.paths import get_temporary_folder_of_process
from sessionlake.settings.model import Settings


def test_the_home_and_its_folders_are_made_and_left_empty(tmp_path):
    home = create_home_folder(Settings(home=tmp_path / "a" / "b"), "kafka", "logs")
    assert sorted(path.name for path in home.rglob("*")) == ["kafka", "logs"]


def test_a_home_below_a_file_is_named_with_the_variable(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(MachineSetupError, match=r"home .*/file/home cannot be written .*SESSIONLAKE_HOME"):
        create_home_folder(Settings(home=tmp_path / "file" / "home"))


def test_a_read_only_home_is_named_with_the_variable():
    # /proc refuses even root, as a read-only mount would.
    with pytest.raises(MachineSetupError, match=r"home /proc/home cannot be written .*SESSIONLAKE_HOME"):
        create_home_folder(Settings(home="/proc/home"))


def rights(folder):
    return stat.S_IMODE(folder.stat().st_mode)


def test_a_home_is_made_for_its_owner_alone(tmp_path):
    settings = Settings(home=tmp_path / "a" / "home")
    create_home_folder(settings, "logs")
    assert rights(settings.home) == 0o700
    assert doctor._check_home_folder(settings) == doctor.CheckResult(
        doctor.CheckSeverity.OK, "home", str(settings.home)
    )


def test_a_home_that_a_lock_makes_is_its_owner_s_alone(tmp_path):
    settings = Settings(home=tmp_path / "home")
    with hold_lock_after_waiting(settings, "commit"):
        assert rights(settings.home) == 0o700


def test_a_lock_taken_again_by_its_thread_does_not_wait_and_is_held_until_the_outer_block_ends(tmp_path):
    settings, entered = Settings(home=tmp_path / "home"), threading.Event()

    def enter() -> None:
        with hold_lock_after_waiting(settings, "commit"):
            entered.set()

    with hold_lock_after_waiting(settings, "commit"):
        with hold_lock_after_waiting(settings, "commit"):
            pass
        other = threading.Thread(target=enter)
        other.start()
        assert not entered.wait(0.2)
    assert entered.wait(5)
    other.join()


@pytest.mark.parametrize("mode", [0o755, 0o750, 0o701])
def test_a_home_that_others_can_read_keeps_its_rights_and_doctor_says_so(tmp_path, mode):
    settings = Settings(home=tmp_path / "a home")
    settings.home.mkdir()
    settings.home.chmod(mode)
    create_home_folder(settings)
    assert rights(settings.home) == mode
    found = doctor._check_home_folder(settings)
    assert found.level is doctor.CheckSeverity.WARN
    assert f"mode {mode:o}" in found.detail
    assert f"`chmod 700 '{settings.home}'`" in found.detail


def test_what_lasts_as_long_as_the_process_is_in_a_folder_of_its_own():
    assert rights(get_temporary_folder_of_process()) == 0o700
    assert get_temporary_folder_of_process() == get_temporary_folder_of_process()
