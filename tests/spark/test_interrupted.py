"""Operations that replace tables or states, interrupted at each step: the error names what finishes or cancels them."""

from __future__ import annotations

import re
import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import pytest

from sessionlake.cli import gold as gold_commands
from sessionlake.cli.options import RecoverableLayer
from sessionlake.cli.recover import recover_layer
from sessionlake.delta.lake import Lake
from sessionlake.delta.schemas.names import CHANGES, ERASURES
from sessionlake.errors import DataLossError, LakeError, SessionlakeError, UsageError
from sessionlake.gold import job as gold
from sessionlake.ledger.erasures import read_erasure_receipts
from sessionlake.operations.forgetting.forget import SessionForgetter
from sessionlake.operations.forgetting.forget import _ForgetJournalInputs as Forgotten
from sessionlake.operations.rebuild import processors as processor_rebuild
from sessionlake.operations.rebuild import silver as silver_rebuild
from sessionlake.operations.rebuild.replay import REPLAYED
from sessionlake.operations.rebuild.verify import verify_silver_tables
from sessionlake.operations.resharding import reshard as resharding
from sessionlake.operations.resharding.layers import count_shards_of_states
from sessionlake.processors import job as processors
from sessionlake.settings.model import CaptureSettings, ProcessorSettings, Settings, SilverSettings
from sessionlake.silver import job
from sessionlake.streaming import handover
from sessionlake.streaming.journal import OperationJournal, read_bronze_version_of_rebuild, record_tables_being_built
from sessionlake.streaming.operation import (
    FORGET,
    REBUILD_SILVER,
    RESHARD,
    ReplacingOperation,
    create_processor_rebuild_operation,
)
from spark.test_forgetting import GONE, OTHERS, TOPIC, run, stream
from support.lakes import rows_of

T = TypeVar("T")
PROCESSOR = "processor-top"
MODULES = (
    "delta.commit", "operations.forgetting.states", "operations.rebuild.endings", "operations.resharding.reshard",
    "streaming.handover", "streaming.journal",
)  # fmt: skip

pytestmark = [pytest.mark.spark, pytest.mark.soak]


class DiedError(BaseException):
    """Stands for a process that is killed."""


def fill(spark: Any, location: dict[str, Any]) -> Settings:
    """Runs one batch through every layer."""
    capture = CaptureSettings(columns={"price": "double"}, integrity="strict", on_violation="record")
    own = ProcessorSettings(name="top", target="sessionlake.examples.top_of_book:TopOfBook")
    settings = Settings(**location, capture=capture, silver=SilverSettings(shards=2), processors=(own,))
    run(spark, settings, *stream(1))
    return settings


@pytest.fixture(scope="module")
def filled(spark: Any, tmp_path_factory: pytest.TempPathFactory) -> Settings:
    """A home in which every layer has read one batch; each test gets a copy."""
    return fill(spark, {"home": tmp_path_factory.mktemp("filled") / "home"})


@pytest.fixture
def settings(filled: Settings, tmp_path: Path) -> Settings:
    return filled.model_copy(update={"home": shutil.copytree(filled.home, tmp_path / "home")})


@contextmanager
def dying(monkeypatch: pytest.MonkeyPatch, at: Callable[[str], bool]) -> Iterator[None]:
    """Inside, whoever comes to such a place dies."""

    def die(name: str) -> None:
        if at(name):
            raise DiedError

    with monkeypatch.context() as patch:
        for module in MODULES:
            patch.setattr(f"sessionlake.{module}.inject_fault_if_requested", die)
        yield


def died_at(monkeypatch: pytest.MonkeyPatch, place: str, work: Callable[[], Any]) -> None:
    with dying(monkeypatch, place.__eq__), pytest.raises(DiedError):
        work()


def finished(
    monkeypatch: pytest.MonkeyPatch, work: Callable[[], T], refused: Callable[[], None]
) -> tuple[T, Sequence[str]]:
    """Does the work again and again, and dies once at each place; what came of it in the end, and the places.

    Args:
        refused: checks, after each death, that others are kept out.
    """
    died: list[str] = []

    def is_new(name: str) -> bool:
        new = name not in died
        died.extend([name] * new)
        return new

    while True:
        with dying(monkeypatch, is_new), suppress(DiedError):
            return work(), died
        refused()


def contents(spark: Any, settings: Settings) -> dict[str, Counter[str]]:
    """All rows of silver and of the processor, but for what names a batch."""
    tables = (*REPLAYED, settings.processors[0].output_table)
    return {
        table: Counter(repr({**row, "_batch": None}) for row in rows_of(spark, Lake(settings), table))
        for table in tables
    }


def commands(spark: Any, settings: Settings) -> Mapping[str, Callable[[], Any]]:
    """Each command that writes or verifies, by its name."""
    return {
        "run silver": lambda: job.start(spark, settings, once=True).wait(),
        "run gold": lambda: gold.start(spark, settings, once=True).wait(),
        "run processor": lambda: processors.start(spark, settings, "top", once=True).wait(),
        "rebuild silver": lambda: silver_rebuild.rebuild_silver_tables(spark, settings),
        "rebuild processor": lambda: processor_rebuild.rebuild_processor(spark, settings, "top"),
        "reshard": lambda: resharding.reshard_layers(spark, settings, settings.silver.shards),
        "forget": lambda: SessionForgetter(spark, settings).forget_session(OTHERS[1]),
        "verify silver": lambda: verify_silver_tables(spark, settings),
        "verify gold": lambda: gold_commands.verify_gold_tables(spark, settings, lambda _: None),
        "recover bronze": lambda: recover_layer(spark, settings, RecoverableLayer.BRONZE, lambda _: None),
        "recover gold": lambda: recover_layer(spark, settings, RecoverableLayer.GOLD, lambda _: None),
        "recover ledger": lambda: recover_layer(spark, settings, RecoverableLayer.LEDGER, lambda _: None),
    }


def assert_refused(spark: Any, settings: Settings, named: str, *but: str) -> None:
    """Every command says what finishes the operation that was interrupted, and changes nothing; but for some."""
    for name, command in commands(spark, settings).items():
        if name in but:
            continue
        with pytest.raises(SessionlakeError) as caught:
            command()
        assert named in str(caught.value), name


RESUME = "`sessionlake forget --resume`"


def test_a_forgetting_is_given_up_until_something_is_erased_and_then_finished_by_who_does_not_know_the_session(
    spark: Any, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = Lake(settings)
    before = contents(spark, settings)
    work = partial(SessionForgetter(spark, settings).forget_session, GONE)

    for place in (f"before:{ERASURES}", f"after:{ERASURES}", "before:forget:bronze"):
        died_at(monkeypatch, place, work)
        assert_refused(spark, settings, RESUME)
        SessionForgetter(spark, settings).cancel_forgetting()
        assert not FORGET.find_journal_file(settings).exists()
        assert read_erasure_receipts(lake.reader(spark)) == []
        assert contents(spark, settings) == before
    with pytest.raises(UsageError, match="forget --cancel: no forgetting is unfinished"):
        SessionForgetter(spark, settings).cancel_forgetting()
    with pytest.raises(UsageError, match="forget --resume: no forgetting is unfinished"):
        SessionForgetter(spark, settings).resume_forgetting()

    died_at(monkeypatch, "after:forget:bronze", work)  # erased, and not noted yet
    with pytest.raises(LakeError, match=rf"already erased .* cannot be undone. Run {RESUME}"):
        SessionForgetter(spark, settings).cancel_forgetting()
    with pytest.raises(UsageError, match=rf"another session is not forgotten completely yet .*{RESUME}"):
        SessionForgetter(spark, settings).forget_session(OTHERS[0])

    def refused() -> None:
        with pytest.raises(LakeError, match=RESUME):
            job.start(spark, settings, once=True)

    found, died = finished(monkeypatch, SessionForgetter(spark, settings).resume_forgetting, refused)
    assert {"after:gold.aside", "after:silver.swapped", f"after:{PROCESSOR}.swapped", "after:forget:aside"} <= {*died}
    assert found.report["search"]["found"] == []
    run(spark, settings)
    assert verify_silver_tables(spark, settings).is_exact
    assert GONE not in {row["session_id"] for row in rows_of(spark, lake, CHANGES)}


def test_states_that_cannot_be_read_stop_a_forgetting_before_it_begins(spark: Any, settings: Settings) -> None:
    before = contents(spark, settings)
    for file in (Path(settings.checkpoint_path("silver")) / "state").rglob("*.*"):
        file.write_bytes(b"damaged")
    with pytest.raises(SessionlakeError):
        SessionForgetter(spark, settings).forget_session(GONE)
    assert not FORGET.find_journal_file(settings).exists()
    assert read_erasure_receipts(Lake(settings).reader(spark)) == []
    assert contents(spark, settings) == before


def test_states_that_are_lost_while_a_session_is_forgotten_are_made_from_the_bronze_that_has_it_no_more(
    spark: Any, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    died_at(monkeypatch, "after:forget:aside", partial(SessionForgetter(spark, settings).forget_session, GONE))
    journal = OperationJournal.read_journal(settings, FORGET, Forgotten)
    assert journal is not None
    for step in [name for name in journal.done if name.startswith("states of")]:
        del journal.done[step]
    journal.write_journal()
    shutil.rmtree(settings.checkpoint_path("silver"))
    shutil.rmtree(handover.find_active_handover_folder(settings))
    recover_layer(spark, settings, RecoverableLayer.SILVER, lambda _: None)
    found = SessionForgetter(spark, settings).resume_forgetting()
    assert found.report["search"]["found"] == []
    run(spark, settings)
    assert verify_silver_tables(spark, settings).is_exact


def test_a_rebuild_of_silver_is_given_up_before_it_has_replaced_a_table_and_finished_or_begun_again_after_that(
    spark: Any, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, second = stream(2)
    before = contents(spark, settings)
    work, named = partial(silver_rebuild.rebuild_silver_tables, spark, settings), "`sessionlake rebuild silver`"
    refused = partial(assert_refused, spark, settings, named, "rebuild silver", "rebuild processor", "run processor")

    died_at(monkeypatch, f"before:publish:{REPLAYED[0]}", work)
    refused("recover bronze", "recover ledger")
    silver_rebuild.cancel_rebuild(spark, settings)
    assert contents(spark, settings) == before
    run(spark, settings, second)
    assert verify_silver_tables(spark, settings).is_exact
    with pytest.raises(UsageError, match="rebuild silver --cancel: no such rebuild is unfinished"):
        silver_rebuild.cancel_rebuild(spark, settings)

    died_at(monkeypatch, f"after:publish:{REPLAYED[0]}", work)
    with pytest.raises(LakeError, match=rf"{REPLAYED[0]} was replaced already, which cannot be undone. Run {named}"):
        silver_rebuild.cancel_rebuild(spark, settings)

    def kept_out() -> None:
        with pytest.raises(LakeError, match=named):
            job.start(spark, settings, once=True)

    done, died = finished(monkeypatch, work, kept_out)
    assert done.finished_interrupted
    assert {"before:publish:swap", f"after:publish:{REPLAYED[-1]}"} <= {*died}
    run(spark, settings)
    assert verify_silver_tables(spark, settings).is_exact

    died_at(monkeypatch, f"after:publish:{REPLAYED[1]}", work)
    shutil.rmtree(handover.find_prepared_handover_folder(settings))
    with pytest.raises(DataLossError, match=r"is gone or damaged.*`sessionlake rebuild silver --start-over`"):
        work()
    REBUILD_SILVER.find_journal_file(settings).write_bytes(b"damaged")
    with pytest.raises(
        DataLossError, match=r"rebuild-silver.json cannot be.*`sessionlake rebuild silver --start-over`"
    ):
        work()
    silver_rebuild.rebuild_silver_tables(spark, settings, start_over=True)
    run(spark, settings)
    assert verify_silver_tables(spark, settings).is_exact


def test_a_rebuild_of_a_processor_is_given_up_before_it_has_replaced_its_table_and_finished_or_begun_again_after_that(
    spark: Any, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, into = contents(spark, settings), settings.processors[0].output_table
    work = partial(processor_rebuild.rebuild_processor, spark, settings, "top")
    named = "`sessionlake rebuild processor:top`"

    for place, undo in ((f"before:publish:{into}", True), (f"after:publish:{into}", False)):
        died_at(monkeypatch, place, work)
        for name in ("run processor", "reshard", "forget"):
            with pytest.raises(LakeError, match=named):
                commands(spark, settings)[name]()
        if undo:
            processor_rebuild.cancel_rebuild(spark, settings, "top")
            assert contents(spark, settings) == before
            assert read_bronze_version_of_rebuild(settings, PROCESSOR) is None
            commands(spark, settings)["run processor"]()
    with pytest.raises(LakeError, match=rf"{into} was replaced already, which cannot be undone. Run {named}"):
        processor_rebuild.cancel_rebuild(spark, settings, "top")
    shutil.rmtree(handover.find_prepared_handover_folder(settings, PROCESSOR))
    with pytest.raises(DataLossError, match=r"is gone or damaged.*`sessionlake rebuild processor:top --start-over`"):
        work()
    processor_rebuild.rebuild_processor(spark, settings, "top", start_over=True)
    commands(spark, settings)["run processor"]()
    assert contents(spark, settings) == before
    assert not processor_rebuild.preview_processor_rebuild(spark, settings, "top")


def test_a_rebuild_that_died_before_it_had_anything_to_publish_holds_nothing_back_for_good(
    spark: Any, settings: Settings
) -> None:
    with record_tables_being_built(settings, create_processor_rebuild_operation(settings.processors[0]), 1):
        pass  # a killed process leaves no more than this
    assert read_bronze_version_of_rebuild(settings, PROCESSOR) == 1
    commands(spark, settings)["run processor"]()
    assert read_bronze_version_of_rebuild(settings, PROCESSOR) is None


def test_a_resharding_is_finished_though_what_it_prepared_is_lost_or_ended_with_the_layers_that_it_has_moved(
    spark: Any, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = contents(spark, settings)
    other = settings.model_copy(update={"silver": SilverSettings(shards=3)})
    work, named = partial(resharding.reshard_layers, spark, other, 3), "`sessionlake reshard 3`"

    died_at(monkeypatch, "after:silver.swapped", work)
    assert_refused(spark, other, named, "reshard")
    [lost, *_] = sorted(handover.find_prepared_handover_folder(settings, PROCESSOR).glob("*.state"))
    lost.unlink()
    assert resharding.reshard_layers(spark, other, 3) == ["silver", PROCESSOR]
    assert [count_shards_of_states(spark, other, layer) for layer in ("silver", PROCESSOR)] == [3, 3]

    died_at(monkeypatch, "after:silver.swapped", partial(resharding.reshard_layers, spark, settings, 2))
    assert resharding.cancel_resharding(spark, settings) == ["silver"]
    assert not RESHARD.find_journal_file(settings).exists()
    assert [count_shards_of_states(spark, settings, layer) for layer in ("silver", PROCESSOR)] == [2, 3]
    with pytest.raises(LakeError, match=r"or move .* with `sessionlake reshard 2`"):
        commands(spark, settings)["run processor"]()
    assert resharding.reshard_layers(spark, settings, 2) == [PROCESSOR]
    run(spark, settings)
    assert verify_silver_tables(spark, settings).is_exact
    assert contents(spark, settings) == before
    with pytest.raises(UsageError, match="reshard --cancel: no resharding is unfinished"):
        resharding.cancel_resharding(spark, settings)


@pytest.mark.parametrize("operation", [FORGET, RESHARD], ids=lambda operation: operation.name)
def test_a_note_that_is_damaged_is_named_with_what_to_do(
    spark: Any, settings: Settings, operation: ReplacingOperation
) -> None:
    file = operation.find_journal_file(settings)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(b'{"receipt": "1"')
    with pytest.raises(DataLossError, match=rf"{re.escape(str(file))} cannot be read .* [Rr]emove it") as caught:
        OperationJournal.read_journal(settings, operation, dict[str, Any])
    assert "`sessionlake forget`" in str(caught.value) or "command that moves them" in str(caught.value)
    with pytest.raises(LakeError, match=r"sessionlake (forget|reshard)"):
        job.start(spark, settings, once=True)
    assert TOPIC  # the layers stand still, and nothing was written
