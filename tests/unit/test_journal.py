"""The journal of operations that replace tables or states: steps are done once, and who must not start does not."""

from __future__ import annotations

from pathlib import Path

import pytest

from sessionlake.errors import DataLossError, InterruptedOperationError
from sessionlake.settings.model import ProcessorSettings, Settings
from sessionlake.streaming.journal import (
    OperationJournal,
    discard_building_record,
    read_bronze_version_of_rebuild,
    record_tables_being_built,
    refuse_interrupted_operations,
)
from sessionlake.streaming.operation import (
    FORGET,
    REBUILD_SILVER,
    RECOVER_BRONZE,
    RESHARD,
    ReplacingOperation,
    create_processor_rebuild_operation,
    list_operations,
)

OWN = ProcessorSettings(name="top", target="a:B")
LAYERS = ("bronze", "silver", "gold", OWN.layer)


class PowerCutError(Exception):
    pass


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(home=tmp_path, processors=(OWN,))


def refused(settings: Settings, **how: bool) -> set[str]:
    """The layers that do not start."""
    found = set()
    for layer in LAYERS:
        try:
            refuse_interrupted_operations(settings, layer, **how)
        except InterruptedOperationError:
            found.add(layer)
    return found


@pytest.mark.parametrize(
    ("operation", "layers"),
    [
        (FORGET, {*LAYERS}),
        (RESHARD, {*LAYERS}),
        (RECOVER_BRONZE, {"bronze"}),
        (REBUILD_SILVER, {"silver", "gold"}),
        (create_processor_rebuild_operation(OWN), {OWN.layer}),
    ],
    ids=lambda value: value.name if isinstance(value, ReplacingOperation) else "",
)
def test_the_layers_that_an_operation_changes_do_not_start_until_it_has_ended(settings, operation, layers):
    assert operation in list_operations(settings)
    assert refused(settings) == set()
    journal = OperationJournal.create_journal(settings, operation, {"shards": 3})
    assert refused(settings) == layers
    with pytest.raises(InterruptedOperationError, match=rf"was interrupted.*\. Run `sessionlake {operation.name[:6]}"):
        refuse_interrupted_operations(settings)
    refuse_interrupted_operations(settings, except_for=[operation])
    journal.remove_journal()
    assert refused(settings) == set()


def test_the_error_names_what_finishes_an_operation_and_what_cancels_it(settings):
    OperationJournal.create_journal(settings, RESHARD, {"shards": 3})
    with pytest.raises(InterruptedOperationError, match=r"`sessionlake reshard 3`, .*`sessionlake reshard 3 --cancel`"):
        refuse_interrupted_operations(settings)


def test_a_step_is_done_again_until_it_is_noted_and_never_after_that(settings):
    done: list[str] = []

    def step(name: str) -> dict[str, int]:
        done.append(name)
        if len(done) == 2:
            raise PowerCutError
        return {"rows": len(done)}

    journal = OperationJournal.create_journal(settings, FORGET, {"session": "s"})
    assert journal.run_step_if_unfinished("a", lambda: step("a")) == {"rows": 1}
    with pytest.raises(PowerCutError):
        journal.run_step_if_unfinished("b", lambda: step("b"))
    again = OperationJournal.read_journal(settings, FORGET, dict[str, str])
    assert (again.inputs, again.done) == ({"session": "s"}, {"a": {"rows": 1}})
    assert [again.run_step_if_unfinished(name, lambda name=name: step(name)) for name in "ab"] == [
        {"rows": 1},
        {"rows": 3},
    ]
    assert done == ["a", "b", "b"]


def test_a_rebuild_that_is_being_built_stops_no_layer_and_leaves_nothing_to_finish(settings):
    with record_tables_being_built(settings, REBUILD_SILVER, 7):
        assert refused(settings) == set()
        assert read_bronze_version_of_rebuild(settings, "silver") == 7
        assert OperationJournal.read_journal(settings, REBUILD_SILVER, dict[str, int]) is None
    assert read_bronze_version_of_rebuild(settings, OWN.layer) is None
    discard_building_record(settings, REBUILD_SILVER)  # as the next start does
    assert read_bronze_version_of_rebuild(settings, "silver") is None


def test_a_rebuild_that_fails_while_it_is_built_leaves_no_record(settings):
    with pytest.raises(PowerCutError), record_tables_being_built(settings, REBUILD_SILVER, 7):
        raise PowerCutError
    assert not REBUILD_SILVER.find_journal_file(settings).exists()


def test_one_that_starts_over_leaves_the_record_of_the_one_that_replaced_tables(settings):
    OperationJournal.create_journal(settings, REBUILD_SILVER, {"version": 3}).run_step_if_unfinished(
        "silver.sessions", dict
    )
    with pytest.raises(PowerCutError), record_tables_being_built(settings, REBUILD_SILVER, 7):
        raise PowerCutError
    assert refused(settings) == {"silver", "gold"}
    assert OperationJournal.read_journal(settings, REBUILD_SILVER, dict[str, int]).done == {"silver.sessions": {}}


def test_tables_can_be_made_from_bronze_once_a_session_is_erased_there(settings):
    journal = OperationJournal.create_journal(settings, FORGET, {"session": "s"})
    assert refused(settings, from_bronze=True) == {*LAYERS}
    journal.run_step_if_unfinished("bronze", dict)
    assert refused(settings, from_bronze=True) == set()
    assert refused(settings) == {*LAYERS}


@pytest.mark.parametrize(
    "operation", [FORGET, RESHARD, RECOVER_BRONZE, REBUILD_SILVER, create_processor_rebuild_operation(OWN)]
)
def test_a_file_that_cannot_be_read_stops_layers_and_is_named_with_what_to_do(settings, operation):
    operation.find_journal_file(settings).parent.mkdir(parents=True)
    operation.find_journal_file(settings).write_bytes(b'{"step"')
    with pytest.raises(
        DataLossError, match=rf"{operation.name}.json of .* cannot be read .*sessionlake|command that moves them"
    ):
        OperationJournal.read_journal(settings, operation, dict[str, str])
    with pytest.raises(InterruptedOperationError, match="Run `sessionlake"):
        refuse_interrupted_operations(settings)
