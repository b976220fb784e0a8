"""A checkpoint is put aside once no state store can write into it any more, by who still has the claim then."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from sessionlake.errors import ClaimedByOtherProcessError
from sessionlake.spark.session import DATABRICKS_VARIABLE
from sessionlake.streaming import stores
from sessionlake.streaming.stores import archive_checkpoint_folders


class Place:
    """A cluster, and a lake, of which is told what happens to a checkpoint, in order."""

    def __init__(self, folder: Path, master: str) -> None:
        self.checkpoint, self.told, self.is_lost = folder / "silver", list[str](), False
        self.checkpoint.mkdir()
        utils = SimpleNamespace(timeStringAsMs={"8s": 8000}.__getitem__)
        network = SimpleNamespace(util=SimpleNamespace(JavaUtils=utils))
        spark = SimpleNamespace(org=SimpleNamespace(apache=SimpleNamespace(spark=SimpleNamespace(network=network))))
        conf = SimpleNamespace(get={"spark.sql.streaming.stateStore.maintenanceInterval": "8s"}.__getitem__)
        self.spark: Any = SimpleNamespace(sparkContext=SimpleNamespace(master=master), conf=conf, _jvm=spark)
        self.lake: Any = SimpleNamespace(storage=self)

    def sleep(self, seconds: float) -> None:
        self.told.append(f"waits {seconds:g} s, {'there' if self.checkpoint.exists() else 'aside'}")

    def require_claims_still_held(self) -> None:
        self.told.append("claimed")
        if self.is_lost:
            raise ClaimedByOtherProcessError("another has it")

    def put_aside(self) -> list[str]:
        archive_checkpoint_folders(
            self.spark, self.lake, (self.checkpoint, self.checkpoint.with_name("silver.handover")), "r"
        )
        return [entry.name for entry in self.checkpoint.parent.iterdir()]


@pytest.fixture
def place(tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Place:
    found = Place(tmp_path, request.param)
    monkeypatch.setattr(stores.time, "sleep", found.sleep)
    return found


@pytest.mark.parametrize("place", ["local[4]"], indirect=True)
def test_where_stores_are_closed_with_their_query_nothing_is_waited_for(place: Place) -> None:
    assert place.put_aside() == ["silver.before-r"]
    assert place.told == ["claimed"]
    assert place.put_aside() == ["silver.before-r"]  # as after a crash


@pytest.mark.parametrize("place", ["spark://master:7077", "local[*]"], indirect=True)
def test_elsewhere_an_upkeep_passes_first_and_once(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(DATABRICKS_VARIABLE, "17.3")  # whose single node says local[*], too
    assert place.put_aside() == ["silver.before-r"]
    assert place.put_aside() == ["silver.before-r"]
    assert place.told == ["waits 10 s, there", "claimed", "claimed"]


@pytest.mark.parametrize("place", ["spark://master:7077"], indirect=True)
def test_who_has_lost_the_claim_meanwhile_puts_nothing_aside(place: Place) -> None:
    place.is_lost = True
    with pytest.raises(ClaimedByOtherProcessError):
        place.put_aside()
    assert place.checkpoint.is_dir()
    assert place.told == ["waits 10 s, there", "claimed"]
