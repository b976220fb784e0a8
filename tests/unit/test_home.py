from __future__ import annotations

import pytest

from sessionlake.config import Settings
from sessionlake.errors import MachineError
from sessionlake.laptop.home import require_home


def test_the_home_and_its_folders_are_made_and_left_empty(tmp_path):
    home = require_home(Settings(home=tmp_path / "a" / "b"), "kafka", "logs")
    assert sorted(path.name for path in home.rglob("*")) == ["kafka", "logs"]


def test_a_home_below_a_file_is_named_with_the_variable(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(MachineError, match=r"home .*/file/home cannot be written .*SESSIONLAKE_HOME"):
        require_home(Settings(home=tmp_path / "file" / "home"))


def test_a_read_only_home_is_named_with_the_variable():
    # /proc refuses even root, as a read-only mount would.
    with pytest.raises(MachineError, match=r"home /proc/home cannot be written .*SESSIONLAKE_HOME"):
        require_home(Settings(home="/proc/home"))
