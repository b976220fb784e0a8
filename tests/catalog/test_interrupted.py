"""Operations that replace a catalog's tables or states, interrupted at each step: the error names what ends them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import pytest

from sessionlake.cli import processors as processor_commands
from sessionlake.cli import rebuild as silver_commands
from sessionlake.cli.show import OutputFormat
from sessionlake.errors import LakeError
from sessionlake.operations.rebuild.silver import EVERYTHING
from sessionlake.operations.rebuild.verify import verify_silver_tables
from sessionlake.settings.model import Settings
from spark.test_forgetting import run
from spark.test_interrupted import (  # noqa: F401 - these tests run here once more
    commands,
    contents,
    died_at,
    fill,
    test_a_forgetting_is_given_up_until_something_is_erased_and_then_finished_by_who_does_not_know_the_session,
    test_a_resharding_is_finished_though_what_it_prepared_is_lost_or_ended_with_the_layers_that_it_has_moved,
)

pytestmark = [pytest.mark.soak, pytest.mark.timeout(900)]


class Rebuild(NamedTuple):
    """A rebuild as the command line does it, under its leases."""

    name: str
    first_table: str
    work: Callable[..., object]
    cancel: Callable[..., object]


@pytest.fixture
def settings(spark: Any, location: dict[str, Any]) -> Settings:
    """A catalog in which every layer has read one batch."""
    return fill(spark, location)


def rebuild_silver_tables(spark: Any, settings: Settings) -> None:
    silver_commands.rebuild_silver(spark, settings, None, EVERYTHING, print)


def cancel_silver(spark: Any, settings: Settings) -> None:
    silver_commands.cancel_silver_rebuild(spark, settings, print)


def rebuild_processor(spark: Any, settings: Settings) -> None:
    processor_commands.rebuild_processor(spark, settings, "top", OutputFormat.JSON, print)


def cancel_processor(spark: Any, settings: Settings) -> None:
    processor_commands.cancel_processor_rebuild(spark, settings, "top", print)


@pytest.mark.parametrize(
    "rebuild",
    [
        Rebuild("silver", "silver.session_changes", rebuild_silver_tables, cancel_silver),
        Rebuild("processor:top", "silver.top", rebuild_processor, cancel_processor),
    ],
    ids=lambda rebuild: rebuild.name,
)
def test_a_rebuild_that_died_is_not_cancelled_once_it_has_ended_the_query_and_is_finished(
    spark: Any, settings: Settings, monkeypatch: pytest.MonkeyPatch, rebuild: Rebuild
) -> None:
    before = contents(spark, settings)
    layer = "silver" if rebuild.name == "silver" else "processor-top"
    for when in ("before", "after"):
        died_at(monkeypatch, f"{when}:publish:{rebuild.first_table}", partial(rebuild.work, spark, settings))
        why = f"the query of {layer} was ended for it, which cannot be undone. Run `sessionlake rebuild {rebuild.name}`"
        with pytest.raises(LakeError, match=why):
            rebuild.cancel(spark, settings)
        with pytest.raises(LakeError, match=f"`sessionlake rebuild {rebuild.name}`"):
            commands(spark, settings)["run " + rebuild.name.partition(":")[0]]()
        rebuild.work(spark, settings)
        assert contents(spark, settings) == before
    run(spark, settings)
    assert verify_silver_tables(spark, settings).is_exact
