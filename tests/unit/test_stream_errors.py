"""Errors as Spark raises them (see `support/record_spark_errors.py`), and the texts that operators read instead."""

from __future__ import annotations

import json
from functools import partial
from json import JSONDecodeError
from pathlib import Path

import pyarrow as pa
import pytest
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

from sessionlake import errors
from sessionlake.errors import (
    LAST_RESORT,
    BrokerError,
    LakeError,
    MachineSetupError,
    OffsetHoleError,
    SchemaRegistryError,
    SessionlakeError,
    add_failure_location_note,
)
from sessionlake.publish.failures import PublishQuery
from sessionlake.silver.fold.pack import ShardMessagePacker
from sessionlake.spark.failures import (
    RESULT_TOO_BIG,
    JvmException,
    PythonException,
    parse_spark_failure,
    parse_spark_failure_text,
)
from sessionlake.streaming import sharded
from sessionlake.streaming.checkpoint import build_checkpoint_recovery_hint
from sessionlake.streaming.errors import convert_to_layer_error, convert_to_operator_error, explain_sql_error

RECORDS = Path(__file__).parent / "spark_errors"
NAMES = sorted(file.stem for file in RECORDS.glob("*.json"))
NOWHERE = "/lake/checkpoint"
MALFORMED = "ValueError: a malformed header in the state store of 1 chunks: data may be lost"
# What would lose data where an operator follows it.
HARM = ("new checkpoint", "clear the", "from scratch", "failOnDataLoss", "delete your")


class CapturedError(PySparkException):
    """An error as pyspark captures it, without a JVM to ask."""

    def __init__(self, text: str, condition: str | None) -> None:
        super().__init__(message=text)
        self.text, self.condition = text, condition

    def __str__(self) -> str:
        return self.text

    def getCondition(self) -> str | None:  # noqa: N802 (pyspark's name)
        return self.condition


class PassedError(Py4JError):
    """An error as py4j passes it on."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text

    def __str__(self) -> str:
        return self.text


def recorded(name: str) -> BaseException:
    found = json.loads((RECORDS / f"{name}.json").read_text(encoding="utf-8"))
    text = "\n".join(found["text"])
    if found["class"] == "builtins.ValueError":
        return ValueError(text)
    if found["class"] == "py4j.protocol.Py4JJavaError":
        return PassedError(text)
    assert "pyspark.errors.exceptions.base.PySparkException" in found["also"], found["class"]
    return CapturedError(text, found["condition"])


EXPECTED: dict[str, tuple[type[SessionlakeError], str]] = {
    "batch_fails": (SessionlakeError, "silver stopped: ValueError: a malformed row"),
    "fold_fails": (SessionlakeError, f"silver, shard 0: {MALFORMED}"),
    "fold_fails_unheard": (SessionlakeError, f"silver, shard 0: {MALFORMED}"),
    "fold_refuses": (LakeError, "silver: the silver state is of format 'silver/9', this version reads 'silver/2'"),
    "registry_in_worker": (
        SchemaRegistryError,
        "silver: schema registry http://127.0.0.1:8081 does not answer: start it",
    ),
    "pack_fails": (
        SessionlakeError,
        "silver, topic a, partition 1, offsets 10 to 12: AttributeError: 'NoneType' object has no attribute 'columns'",
    ),
    "missing_state": (LakeError, f"silver: its checkpoint {NOWHERE} cannot be read. No table was changed. "),
    "missing_state_unheard": (LakeError, f"silver: its checkpoint {NOWHERE} cannot be read. No table was changed. "),
    "truncated_state": (LakeError, f"silver: its checkpoint {NOWHERE} cannot be read. No table was changed. "),
    "empty_offsets": (LakeError, f"silver: its checkpoint {NOWHERE} cannot be read. No table was changed. "),
    "table_deleted": (LakeError, "silver: a table or some of its files are gone"),
    "table_file_gone": (LakeError, "silver: a table or some of its files are gone"),
    "table_anew": (LakeError, "silver: the source table was dropped and created again since the last run"),
    "schema_changed": (
        LakeError,
        "silver: columns of the source table were changed while the layer ran. Run the layer again",
    ),
    "no_broker": (BrokerError, "silver: Kafka does not answer at kafka.bootstrap_servers"),
    "no_such_host": (BrokerError, "silver: Kafka does not answer at kafka.bootstrap_servers"),
    "topic_deleted": (OffsetHoleError, "silver: messages that were not read yet are gone from Kafka"),
    "topic_anew": (OffsetHoleError, "silver: messages that were not read yet are gone from Kafka"),
    "topic_cut": (OffsetHoleError, "silver: messages that were not read yet are gone from Kafka"),
    # Of what is wrong with the JSON, these texts do not say where it is: without the files, nothing is guessed.
    "corrupt_offsets": (SessionlakeError, "silver stopped: Unexpected character"),
    "corrupt_commits": (SessionlakeError, "silver stopped: Unexpected character"),
    "corrupt_metadata": (SessionlakeError, "silver stopped: com.fasterxml.jackson.core.io.JsonEOFException"),
}


def test_every_record_is_expected_to_be_reported_somehow() -> None:
    assert set(EXPECTED) == set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_a_failure_is_reported_by_what_it_is(name: str) -> None:
    kind, text = EXPECTED[name]
    error = convert_to_layer_error(recorded(name), "silver", NOWHERE)
    assert (type(error), str(error)[: len(text)]) == (kind, text)


@pytest.mark.parametrize("name", NAMES)
def test_no_text_advises_what_loses_data(name: str) -> None:
    remedy, _, quoted = str(convert_to_layer_error(recorded(name), "bronze", NOWHERE)).partition("Spark says:")
    assert not [word for word in HARM if word in quoted], quoted
    if "clean-home" in remedy:
        assert remedy.index("backup") < remedy.index("clean-home")
        assert LAST_RESORT in remedy


@pytest.mark.parametrize("name", ["fold_fails", "fold_fails_unheard", "batch_fails"])
def test_words_that_a_failure_quotes_make_it_no_matter_of_the_checkpoint(name: str) -> None:
    error = str(convert_to_layer_error(recorded(name), "silver", NOWHERE))
    assert not [word for word in ("checkpoint", "backup", "clean-home", "Kafka") if word in error]


@pytest.mark.parametrize("name", ["corrupt_offsets", "corrupt_commits", "corrupt_metadata"])
def test_json_that_spark_cannot_read_is_looked_for_in_the_checkpoint(name: str, tmp_path: Path) -> None:
    place = {"corrupt_metadata": "metadata"}.get(name, f"{name.removeprefix('corrupt_')}/0")
    (tmp_path / place).parent.mkdir(exist_ok=True)
    (tmp_path / place).write_text("{" if place == "metadata" else "v1\n{not json", encoding="utf-8")
    error = convert_to_layer_error(recorded(name), "silver", str(tmp_path))
    assert type(error) is LakeError
    assert f"the checkpoint {tmp_path} is damaged: {place} is not complete JSON" in str(error)
    assert "sessionlake recover silver" in str(error)
    assert "clean-home" not in str(error)


@pytest.mark.parametrize(
    ("condition", "cause", "kind"),
    [
        ("ROCKSDB_STORE_PROVIDER_OUT_OF_MEMORY", "java.lang.OutOfMemoryError: Java heap space", MachineSetupError),
        ("UNCATEGORIZED", "java.io.IOException: No space left on device", MachineSetupError),
        ("UNCATEGORIZED", "java.lang.InterruptedException", SessionlakeError),
    ],
)
def test_a_state_that_could_not_be_loaded_for_want_of_room_is_no_damage(
    condition: str, cause: str, kind: type[SessionlakeError]
) -> None:
    text = f"[CANNOT_LOAD_STATE_STORE.{condition}] An error occurred during loading state. SQLSTATE: 58030"
    text = f"An error occurred while calling o1.save.\n: org.apache.spark.SparkException: {text}\n\tat a.B.c(B.scala:1)"
    error = convert_to_layer_error(PassedError(f"{text}\nCaused by: {cause}\n\tat a.B.c(B.scala:1)"), "silver", NOWHERE)
    assert type(error) is kind
    assert "checkpoint" not in str(error)


def test_every_error_of_this_package_comes_back_from_a_worker_as_itself() -> None:
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, SessionlakeError)]
    assert len(kinds) > 5
    for kind in kinds:
        raised = _traceback(f"sessionlake.errors.{kind.__name__}: look\nat it\nwhere: shard 1")
        error = convert_to_layer_error(
            CapturedError(f"\n  An exception was thrown.\n{raised}\n", None), "gold", NOWHERE
        )
        assert (type(error), str(error)) == (kind, "gold: look\nat it")


def test_only_the_last_line_of_a_traceback_says_what_was_raised() -> None:
    quoted = "Caused by: org.apache.kafka.common.errors.TimeoutException: no\nsessionlake.errors.LakeError: neither"
    text = _traceback(f"KeyError: 'x'\n{quoted}\nwhere: shard 3")
    assert parse_spark_failure_text(text).python_exception == PythonException(
        "KeyError", f"'x'\n{quoted}", ("shard 3",)
    )
    assert type(convert_to_layer_error(CapturedError(text, None), "silver", NOWHERE)) is SessionlakeError


def test_a_worker_s_traceback_is_found_in_the_text_of_a_job() -> None:
    text = (
        "An error occurred while calling o1.save.\n"
        ": org.apache.spark.SparkException: Job aborted due to stage failure: Task 0 in stage 3.0 failed 1 times, "
        "most recent failure: Lost task 0.0 in stage 3.0 (TID 7) (here executor "
        f"driver): org.apache.spark.api.python.PythonException: {_traceback('KeyError: 1')}\n\n"
        "\tat org.apache.spark.X.y(X.scala:1)\n\nDriver stacktrace:\n\tat org.apache.spark.X.z(X.scala:2)\n"
        f"Caused by: org.apache.spark.api.python.PythonException: {_traceback('KeyError: 1')}\n\tat a.B.c(B.scala:3)"
    )
    failure = parse_spark_failure_text(text)
    assert failure.python_exception == PythonException("KeyError", "1")
    assert failure.jvm_exceptions[0] == JvmException("org.apache.spark.SparkException", "", "")


def test_a_job_s_failure_tells_its_cause() -> None:
    kafka = "org.apache.kafka.common.errors.RecordTooLargeException"
    text = f": org.apache.spark.SparkException: Job aborted.\n\tat a.B.c(B.scala:3)\nCaused by: {kafka}: 5 bytes\n"
    assert str(parse_spark_failure(PassedError(text))) == f"{kafka}: 5 bytes"
    query = PublishQuery("publish", NOWHERE, "rows")
    error = query._explain_query_error(PassedError(text))
    assert (type(error), str(error).partition(".")[0]) == (
        BrokerError,
        "publish: a row is larger than topic rows allows",
    )


@pytest.mark.parametrize(
    ("name", "kind", "text"),
    [
        ("table_file_gone", LakeError, "publish: changes that were not published yet are gone from the table"),
        ("table_anew", LakeError, "publish: the table was dropped and created again since it was published last"),
        (
            "schema_changed",
            LakeError,
            "publish: columns were added to the table while it was published. Run the command again",
        ),
        ("no_broker", BrokerError, "publish: Kafka does not accept the messages"),
        ("fold_fails", SessionlakeError, f"publish, shard 0: {MALFORMED}"),
    ],
)
def test_a_publication_tells_what_a_failure_means_for_it(name: str, kind: type[SessionlakeError], text: str) -> None:
    error = PublishQuery("publish", NOWHERE, "rows")._explain_query_error(recorded(name))
    assert (type(error), str(error)[: len(text)]) == (kind, text)


def test_what_a_fold_raises_says_of_which_shard() -> None:
    def fails(*_: object) -> tuple[None, list[tuple[str, bytes]]]:
        raise KeyError("x")

    with pytest.raises(KeyError) as raised:
        sharded._fold_with_shard_in_errors(fails, 12, None, [])
    assert str(convert_to_layer_error(raised.value, "silver", NOWHERE)) == "silver, shard 12: KeyError: 'x'"


def test_what_packing_raises_says_whose_messages_they_were() -> None:
    lanes = [("b", 1, 9), ("a", 0, 3), ("a", 0, 5), ("c", 0, 0), ("c", 1, 2)]
    raw = pa.table(dict(zip(("topic", "partition", "offset"), map(list, zip(*lanes, strict=True)), strict=True)))
    with pytest.raises(KeyError) as raised:
        ShardMessagePacker(None, 1).pack_message_block(raw)
    places = "topic a, partition 0, offsets 3 to 5; topic b, partition 1, offsets 9 to 9"
    assert parse_spark_failure(raised.value).python_exception.places == (
        f"{places}; topic c, partition 0, offsets 0 to 0; 1 more",
    )


def test_an_error_of_this_package_stays_as_it_is() -> None:
    error = LakeError("as it is")
    add_failure_location_note(error, "shard 1")
    assert convert_to_layer_error(error, "silver", NOWHERE) is error


def test_no_remedy_begins_with_an_empty_home() -> None:
    for layer in ("bronze", "silver", "gold"):
        assert build_checkpoint_recovery_hint(layer).startswith(f"Run `sessionlake recover {layer}`, ")
    assert build_checkpoint_recovery_hint("silver_tables") == build_checkpoint_recovery_hint("silver")
    for layer in ("processor-own", "publish-t-t"):
        assert build_checkpoint_recovery_hint(layer).startswith("Restore the checkpoint from a backup")
    assert "clean-home" not in "".join(
        map(build_checkpoint_recovery_hint, ("bronze", "silver", "gold", "processor-own"))
    )
    assert "Kafka no longer holds is lost" in build_checkpoint_recovery_hint("publish-t-t").replace(
        "whatever it no longer", "Kafka no longer"
    )


def _traceback(last: str) -> str:
    return f'Traceback (most recent call last):\n  File "/src/x.py", line 1, in call\n    malformed()\n{last}'


TOO_BIG = """An error occurred while calling o69.getResult.
: org.apache.spark.SparkException: Exception thrown in awaitResult: 
\tat org.apache.spark.util.SparkThreadUtils$.awaitResult(SparkThreadUtils.scala:53)
Caused by: org.apache.spark.SparkException: {said}
\tat org.apache.spark.scheduler.DAGScheduler.$anonfun$abortStage$3(DAGScheduler.scala:2935)
"""  # noqa: W291 (Spark's own blank)
REFUSED = "Total size of serialized results of 1 tasks (4.6 MiB) is bigger than spark.driver.maxResultSize (1200.0 KiB)"


@pytest.mark.parametrize(
    ("said", "too_big"),
    [
        (f"Job aborted due to stage failure: {REFUSED}", True),
        ("Job aborted due to stage failure: a file named spark.driver.maxResultSize is gone", False),
        (f"No messages: {REFUSED}", False),
    ],
)
def test_a_result_that_is_too_big_for_the_driver_is_known_by_how_spark_begins_to_say_so(said, too_big):
    assert RESULT_TOO_BIG.matches_failure(parse_spark_failure(PassedError(TOO_BIG.format(said=said)))) is too_big


def test_a_job_that_was_cancelled_is_ctrl_c_s() -> None:
    said = "[SPARK_JOB_CANCELLED] Job 3 cancelled as part of cancellation of all jobs SQLSTATE: XXKDA"
    text = f"An error occurred while calling o1.x.\n: org.apache.spark.SparkException: {said}\n\tat a.B.c(B.scala:1)"
    for error in (convert_to_operator_error, partial(explain_sql_error, "query")):
        with pytest.raises(KeyboardInterrupt):
            error(PassedError(text))


@pytest.mark.parametrize(
    ("error", "kind", "text"),
    [
        (JSONDecodeError("Expecting value", "{", 1), LakeError, "damaged"),
        (OSError("Could not open Parquet input source"), LakeError, "Could not open Parquet input source"),
        (
            OSError(28, "No space left on device", "/x/y"),
            MachineSetupError,
            "/x/y: No space left on device. a disk is full",
        ),
        (OSError("Generic error: No space left on device (os error 28)"), MachineSetupError, "Free some space"),
        (PassedError("An error occurred while calling o1.x"), SessionlakeError, "Spark failed"),
    ],
)
def test_what_stops_a_command_is_one_error_with_its_reason(error: Exception, kind: type, text: str) -> None:
    error = convert_to_operator_error(error)
    assert type(error) is kind
    assert text in str(error)


@pytest.mark.parametrize("error", [KeyError("x"), BrokenPipeError(32, "Broken pipe")])
def test_what_has_nothing_to_do_with_spark_passes_as_it_is(error: Exception) -> None:
    assert convert_to_operator_error(error) is None


def test_where_in_delta_rs_a_fault_was_is_not_reported() -> None:
    assert (
        str(parse_spark_failure(ValueError("Json error\n   0: <unknown>\n   1: <unknown>"))) == "ValueError: Json error"
    )
