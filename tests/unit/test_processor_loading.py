"""From the configuration to a processor: what is wrong is named by its key, before anything runs."""

from __future__ import annotations

from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any, get_type_hints

import pytest

from sessionlake.cli.run import keep_only_named_processor
from sessionlake.delta.schemas.tables import TABLES
from sessionlake.errors import ConfigError, LakeError, ProcessorError, SessionlakeError, UsageError
from sessionlake.examples.logins import Logins
from sessionlake.operations.pipeline import Layer, Pipeline, list_layers_to_run
from sessionlake.processors import Row
from sessionlake.processors.job import find_processor_settings, load_processor
from sessionlake.processors.load import ProcessorClassReference
from sessionlake.processors.output import OutputColumns
from sessionlake.processors.typed import generate_types_source
from sessionlake.settings.model import CaptureSettings, Settings, load_settings
from support import typed_feed

LOGINS = "sessionlake.examples.logins:Logins"
GOOD = """
from dataclasses import dataclass
from sessionlake.processors import Processor

@dataclass
class State:
    n: int = 0

class Good(Processor[State]):
    state = State
    output = {"n": "bigint"}
    def on_message(self, state, message):
        return ()
"""
CASES = [
    ("", "Nope", r"module made_\d+ has no Nope; its classes: State, Good"),
    ("", "State", "is not a subclass of sessionlake.processors.Processor"),
    ("class Bad(Processor[State]):\n    state = State\n    output = {'n': 'int'}", "Bad", "does not define on_message"),
    ("class Bad(Good):\n    state = dict", "Bad", "must be a dataclass or a msgspec Struct, found <class 'dict'>"),
    ("class Bad(Good):\n    version = '1'", "Bad", "version must be an integer from 1 on, found '1'"),
    ("class Bad(Good):\n    output = {}", "Bad", "at least one column must be declared"),
    ("class Bad(Good):\n    output = {'n': 'money'}", "Bad", "column 'n': type 'money' is not one of .*timestamp"),
    ("class Bad(Good):\n    output = {'_offset': 'int'}", "Bad", "column '_offset': the processor's table has"),
    ("class Bad(Good):\n    output = {'n': 'int', 'N': 'int'}", "Bad", "differ only in case, which SQL does not see"),
    ("1 / 0", "Good", r"module made_\d+ cannot be imported: ZeroDivisionError"),
]


@pytest.mark.parametrize(("more", "name", "said"), CASES, ids=[str(i) for i in range(len(CASES))])
def test_a_class_that_cannot_be_used_is_reported_by_its_key(tmp_path: Path, request, more, name, said):
    module = f"made_{request.node.callspec.id}"
    (tmp_path / f"{module}.py").write_text(GOOD + "\n" + more)
    with pytest.raises(ConfigError, match=rf"processors\.mine\.class: .*{said}"):
        ProcessorClassReference("mine", f"{module}:{name}", {}, str(tmp_path)).load_processor()


def test_a_class_of_a_module_in_the_working_folder_is_found(tmp_path, monkeypatch):
    (tmp_path / "my_own_module.py").write_text(GOOD)
    monkeypatch.chdir(tmp_path)
    settings = Settings(home=tmp_path, processors=[{"name": "mine", "class": "my_own_module:Good"}])
    assert type(load_processor(settings, "mine").loaded_processor.processor).__name__ == "Good"


def test_an_entry_point_of_an_installed_package_is_found(tmp_path, monkeypatch):
    package = tmp_path / "theirs-1.0.dist-info"
    package.mkdir()
    (package / "METADATA").write_text("Metadata-Version: 2.1\nName: theirs\nVersion: 1.0\n")
    (package / "entry_points.txt").write_text(f"[sessionlake.processors]\ntheir-logins = {LOGINS}\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert isinstance(ProcessorClassReference("mine", "their-logins").load_processor(), Logins)
    with pytest.raises(ConfigError, match=r"no installed package has an entry point 'other' .*their-logins"):
        ProcessorClassReference("mine", "other").load_processor()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"nope": 1}, r"does not accept them \(.*'nope'\)\. Give options that it accepts: \(longest_hours"),
        ({"longest_hours": "x"}, "does not accept them: "),
    ],
)
def test_options_that_do_not_fit_are_reported_with_those_that_do(options, said):
    with pytest.raises(ConfigError, match=rf"processors\.mine\.options: .*{said}"):
        ProcessorClassReference("mine", LOGINS, options).load_processor()


def test_a_module_that_is_not_there_is_reported_with_where_it_was_looked_for():
    with pytest.raises(ConfigError, match=r"module no_such cannot be imported .*not installed, nor in /nowhere"):
        ProcessorClassReference("mine", "no_such:Class", {}, "/nowhere").load_processor()


@pytest.mark.parametrize(
    ("entry", "said"),
    [
        ("{name: Bad-Name, class: x}", "processors.0.name = 'Bad-Name'"),
        ("{name: a}", "processors.0.class"),
        ("{name: a, class: x, topics: '('}", "not a regular expression"),
        ("{name: a, class: x, table: ops.ledger}", "processors.0.table = 'ops.ledger'"),
        ("{name: a, class: x, nope: 1}", "no such key; known here: class, "),
        ("{name: a, class: x}, {name: a, class: y, table: gold.a}", "two processors have the name a"),
        ("{name: a, class: x}, {name: b, class: y, table: silver.a}", "two processors have the table silver.a"),
    ],
)
def test_a_configuration_that_cannot_be_used_is_reported_by_its_key(tmp_path, entry, said):
    file = tmp_path / "sessionlake.yml"
    file.write_text(f"processors: [{entry}]")
    with pytest.raises(ConfigError) as raised:
        load_settings(file)
    assert said in str(raised.value)


def settings_of(*names: str) -> Settings:
    return Settings(processors=[{"name": name, "class": LOGINS} for name in names])


def test_all_runs_every_layer_and_processor_and_processors_can_be_run_alone():
    settings = settings_of("one", "two")
    assert list_layers_to_run(settings, Layer.ALL) == ("bronze", "silver", "gold", "processor-one", "processor-two")
    assert list_layers_to_run(settings, Layer.SILVER) == ("silver",)
    assert list_layers_to_run(keep_only_named_processor(settings, Layer.PROCESSOR, "two"), Layer.PROCESSOR) == (
        "processor-two",
    )
    everyone = ("processor-one", "processor-two")
    assert list_layers_to_run(keep_only_named_processor(settings, Layer.PROCESSOR, None), Layer.PROCESSOR) == everyone


@pytest.mark.parametrize(
    ("layer", "name", "error", "said"),
    [
        (
            Layer.PROCESSOR,
            "three",
            ConfigError,
            "no processor is named 'three' in the configuration. Name one of the configured processors: one, two",
        ),
        (Layer.SILVER, "one", UsageError, "only `run processor` takes a name"),
    ],
)
def test_a_name_that_does_not_fit_is_reported(layer, name, error, said):
    with pytest.raises(error, match=said):
        keep_only_named_processor(settings_of("one", "two"), layer, name)


def test_where_no_processor_is_configured_none_can_run():
    with pytest.raises(UsageError, match="no processor is configured"):
        keep_only_named_processor(Settings(), Layer.PROCESSOR, None)


class Ended:
    """A query that an error has ended."""

    def __init__(self, error: SessionlakeError) -> None:
        self._error = error

    def check_query_health(self) -> None:
        raise self._error


def test_a_processor_that_fails_among_all_is_reported_once_and_a_layer_stops_them_all():
    told: list[SessionlakeError] = []
    pipeline = Pipeline(None, settings_of("one"), Layer.ALL, on_failure=told.append)
    failure, fault = ProcessorError("one failed"), LakeError("no table")
    pipeline.queries["processor-one"] = Ended(failure)
    pipeline.raise_error_of_failed_layer()
    pipeline.raise_error_of_failed_layer()
    assert (told, pipeline.failed) == ([failure], {"processor-one": failure})
    pipeline.queries["silver"] = Ended(fault)
    with pytest.raises(LakeError, match="no table"):
        pipeline.raise_error_of_failed_layer()


def test_a_processor_that_fails_while_it_runs_alone_is_an_error():
    settings = keep_only_named_processor(settings_of("one"), Layer.PROCESSOR, "one")
    pipeline = Pipeline(None, settings, Layer.PROCESSOR)
    pipeline.queries["processor-one"] = Ended(ProcessorError("one failed"))
    with pytest.raises(ProcessorError, match="one failed"):
        pipeline.raise_error_of_failed_layer()


def test_a_processor_cannot_write_into_a_table_of_the_lake_s_own():
    settings = Settings(processors=[{"name": "quarantine", "class": LOGINS}])
    with pytest.raises(ConfigError, match=r"processors\.quarantine\.table: .* is a table of sessionlake itself"):
        find_processor_settings(settings, "quarantine")


def test_every_declared_type_has_a_column():
    types = ("boolean", "tinyint", "smallint", "int", "bigint", "float", "double", "string", "timestamp")
    values = (True, -128, 1, 2, 2**63 - 1, 0.5, 1, "ü", 1_700_000_000_000)
    output = OutputColumns({f"c{i}": sql for i, sql in enumerate(types)})
    assert [sql for name, sql in output.column_types if name[1:].isdigit()] == list(types)
    output.convert_record_to_struct({f"c{i}": value for i, value in enumerate(values)})
    with pytest.raises(ValueError, match=r"Expected `int` >= -128 - at `\$.c1`"):
        output.convert_record_to_struct({"c1": -129})


def test_records_have_exact_decimals_dates_and_bytes():
    types = {"total": "decimal(5, 2)", "day": "date", "raw": "binary"}
    output = OutputColumns(types)
    record = {"total": Decimal("1.5"), "day": date(2026, 1, 2), "raw": b"\xff"}
    columns = output.create_declared_arrays(
        [output.convert_record_to_struct(one) for one in (record, {"total": -3}, {})]
    )
    assert {name: column.to_pylist() for name, column in columns.items()} == {
        "total": [Decimal("1.50"), Decimal("-3.00"), None],
        "day": [date(2026, 1, 2), None, None],
        "raw": [b"\xff", None, None],
    }
    assert [str(column.type) for column in columns.values()] == ["decimal128(5, 2)", "date32[day]", "binary"]
    for wrong, why in (({"total": Decimal("0.001")}, "more than 2 decimals"), ({"total": 1000}, "more than 5 digits")):
        with pytest.raises(ValueError, match=why):
            output.convert_record_to_struct(wrong)
    with pytest.raises(ValueError, match=r"column 'many': type 'array<int>' is not one of .*date, binary, decimal"):
        OutputColumns({"many": "array<int>"})


def test_types_of_rows_are_those_that_are_declared_and_a_module_by_themselves(tmp_path: Path):
    columns = {"price": "double", "qty": "bigint", "class": "string", "on": "boolean"}
    settings = Settings(home=tmp_path, capture=CaptureSettings(columns=columns))
    made: dict[str, Any] = {}
    exec(generate_types_source(settings), made)  # noqa: S102 - the text is our own
    hints = get_type_hints(made["Values"])
    assert hints == {"price": float | None, "qty": int | None, "class": str | None, "on": bool | None}
    change = get_type_hints(made["Change"])
    assert (change["_ts"], change["row_id"], change["_set"]) == (int, str | None, list[str] | None)
    assert {*change} == {name for name, _ in TABLES["silver.session_changes"].list_column_types(settings)}
    assert made["values_of"](Row("r", {"price": 1.5})) == {"price": 1.5}


def test_types_of_rows_of_a_feed_are_those_of_python(tmp_path: Path):
    made: dict[str, Any] = {}
    exec(generate_types_source(Settings(home=tmp_path, capture=typed_feed.capture())), made)  # noqa: S102 - the text is our own
    hints = get_type_hints(made["Values"])
    found = {name: hints[name] for name in ("total", "day", "local", "raw", "doc", "shares", "grid")}
    assert found == {
        "total": Decimal | None, "day": date | None, "local": datetime | None, "raw": bytes | None, "doc": str | None,
        "shares": list[Decimal | None] | None, "grid": list[list[int | None] | None] | None,
    }  # fmt: skip
