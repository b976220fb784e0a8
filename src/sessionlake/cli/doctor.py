"""`sessionlake doctor`: checks the machine, Kafka and the tables. Each finding is one line, with its remedy."""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from operator import eq
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sessionlake.delta.lake import Lake
from sessionlake.delta.schemas.names import (
    BRONZE,
    CHANGES,
    EVENTS,
    GOLD,
    MESSAGES,
    POSITIONS,
    QUARANTINE,
    SILVER,
)
from sessionlake.delta.schemas.tables import TABLES
from sessionlake.delta.storage.txn import REBUILD
from sessionlake.errors import LAST_RESORT, BrokerError, ConfigError, DataLossError, LakeError, SessionlakeError
from sessionlake.history.missing import missing_offsets
from sessionlake.integrity.outcome import IntegrityEventKind
from sessionlake.ledger.books import LedgerReader, iterate_rows_as_dicts
from sessionlake.ledger.positions import verify_ledger_sums
from sessionlake.ledger.topics import READ_STATES, TopicState, read_topics, select_latest_generations
from sessionlake.operations.preflight import (
    CheckSubject,
    list_layers_and_processors,
    refuse_restored_tables_of_layers,
    require_preflight_checks_passed,
)
from sessionlake.settings.kafka import MessageSourceKind
from sessionlake.settings.model import Settings, load_settings
from sessionlake.silver.tables.splits import ID
from sessionlake.spark.session import is_on_databricks
from sessionlake.streaming.checkpoint import build_checkpoint_recovery_hint
from sessionlake.streaming.errors import convert_to_operator_error
from sessionlake.streaming.generations import CheckpointGenerations
from sessionlake.streaming.losses import (
    describe_removed_rows,
    has_committed_batch,
    refuse_lost_files,
    refuse_lost_rows,
    require_recorded_topics,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from sessionlake.delta.storage.reading import Condition, TableReader

PROGRAM = "sessionlake"
# Tables that batches only append to, so that the ledger says how many rows they must have.
_APPENDED = (MESSAGES, CHANGES, QUARANTINE, EVENTS)
# How many names a finding lists.
_SHOWN_NAMES = 10

CheckDetail = str
"""What a check has found, as a text for the user, if nothing is wrong."""


class CheckSeverity(StrEnum):
    """How bad the result of a check is."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


@dataclass(frozen=True)
class CheckResult:
    """The result of one check.

    Attributes:
        level: Whether all is well, or how bad it is.
        check: The name of the check.
        detail: What was found, with the remedy if there is something to do.
    """

    level: CheckSeverity
    check: str
    detail: str


def run_doctor_checks(file: Path | None = None) -> list[CheckResult]:
    """Checks the machine, Kafka and the tables, and returns the results. Skips tables if the machine fails a check.

    Args:
        file: The configuration file. None means the file that other commands would use.
    """
    try:
        settings = load_settings(file)
    except ConfigError as error:
        return [CheckResult(CheckSeverity.FAIL, "config", str(error))]
    capture = settings.capture
    summary = (
        f"topics {settings.kafka.topic_pattern}, integrity {capture.integrity}, on violation {capture.on_violation}"
    )
    machine = (
        []
        if is_on_databricks()
        else [
            _run_doctor_check("java", _check_java),
            _run_doctor_check("jars", _check_spark_and_broker_jars),
            _check_home_folder(settings),
        ]
    )
    findings = [
        CheckResult(CheckSeverity.OK, "config", summary),
        *machine,
        _run_doctor_check("broker", lambda: _check_message_source(settings)),
    ]
    findings.append(_run_doctor_check("operations", lambda: _check_interrupted_operations(settings)))
    findings.append(_run_doctor_check("checkpoints", lambda: _check_checkpoints_match_tables(settings)))
    if any(item.level is CheckSeverity.FAIL for item in machine):
        return findings
    return [*findings, *_run_table_checks(settings)]


def check_databricks_bundle(commands: Any, folder: Path = Path()) -> list[CheckResult]:
    """Checks the Databricks bundle in a folder, and its settings file, for every target. Returns the faults.

    The name of each result is the file and line of the fault.

    Args:
        commands: The command line, by which the words in the jobs' definitions are checked.
        folder: The folder with `databricks.yml`.
    """
    from sessionlake.cli.job import explain_why_job_may_not_run
    from sessionlake.databricks.bundle.rules import find_bundle_faults

    prefix = "BUNDLE_VAR_"
    given = {name.removeprefix(prefix): value for name, value in os.environ.items() if name.startswith(prefix)}
    faults = find_bundle_faults(folder, given, partial(explain_why_job_may_not_run, commands))
    findings = [CheckResult(CheckSeverity.FAIL, f"{fault.file}:{fault.line}", fault.text) for fault in faults]
    return findings or [CheckResult(CheckSeverity.OK, "bundle", "no fault found. A workspace may find more")]


def _run_doctor_check(name: str, check: Callable[[], CheckDetail]) -> CheckResult:
    try:
        return CheckResult(CheckSeverity.OK, name, check())
    except BrokerError as error:  # a warning only, because only bronze needs the broker
        return CheckResult(CheckSeverity.WARN, name, str(error))
    except SessionlakeError as error:
        return CheckResult(CheckSeverity.FAIL, name, str(error))
    except Exception as error:
        if (readable_error := convert_to_operator_error(error)) is None:
            raise
        return CheckResult(CheckSeverity.FAIL, name, str(readable_error))


def _check_java() -> CheckDetail:
    from sessionlake.local.java import require_java

    return str(require_java())


def _check_spark_and_broker_jars() -> CheckDetail:
    from sessionlake.local.jars import fetch_broker_jars, fetch_spark_jars

    return f"{len(fetch_spark_jars())} for Spark and {len(fetch_broker_jars())} for the broker, cached"


def _check_home_folder(settings: Settings) -> CheckResult:
    from sessionlake.local.home import create_home_folder, read_home_mode_if_others_have_access

    finding = _run_doctor_check("home", lambda: str(create_home_folder(settings)))
    rights = None if finding.level is CheckSeverity.FAIL else read_home_mode_if_others_have_access(settings)
    if rights is None:
        return finding
    remedy = f"`chmod 700 {shlex.quote(str(settings.home))}`"
    text = f"{settings.home} has mode {rights}, so other users of this machine can read it. Run {remedy}"
    return CheckResult(CheckSeverity.WARN, "home", text)


def _check_message_source(settings: Settings) -> CheckDetail:
    from sessionlake.bronze.sources import require_readable_source

    require_readable_source(settings)
    source = settings.bronze.source
    return (
        f"answers at {settings.kafka.bootstrap_servers}" if source == "kafka" else f"not asked: bronze reads {source}"
    )


def _check_interrupted_operations(settings: Settings) -> CheckDetail:
    require_preflight_checks_passed(None, settings, CheckSubject.OPERATIONS, list_layers_and_processors(settings))
    return "no rebuild, resharding or forgetting is interrupted"


def _check_checkpoints_match_tables(settings: Settings) -> CheckDetail:
    require_preflight_checks_passed(None, settings, CheckSubject.CHECKPOINTS, list_layers_and_processors(settings))
    return (
        ", ".join(
            layer for layer in list_layers_and_processors(settings) if Path(settings.checkpoint_path(layer)).is_dir()
        )
        or "none yet"
    )


def _run_table_checks(settings: Settings) -> list[CheckResult]:
    from sessionlake.history.status import may_have_ledger
    from sessionlake.spark.session import get_or_start_spark_session

    lake = Lake(settings)
    ran = [layer for layer in list_layers_and_processors(settings) if has_committed_batch(settings, layer)]
    if not ran and not may_have_ledger(settings):
        return [CheckResult(CheckSeverity.OK, "ledger", "no batch yet: `sessionlake demo`, or `sessionlake run all`")]
    spark = get_or_start_spark_session(settings, app="doctor") if lake.storage.needs_spark else None
    stored = [
        _run_doctor_check("states", lambda: _check_layer_states(settings)),
        _run_doctor_check("files", lambda: _check_table_files_exist(spark, lake)),
    ]
    ledger = _run_doctor_check("ledger", lambda: _check_ledger_exists(spark, settings, ran))
    if ledger.level is CheckSeverity.FAIL:
        return [*stored, ledger]
    return [
        *stored,
        _run_doctor_check("ledger", lambda: _check_message_counts_match(lake.reader(spark), settings)),
        _run_doctor_check("sums", lambda: _check_ledger_sums(lake.reader(spark))),
        _run_doctor_check(
            "offsets", lambda: _check_offsets_are_contiguous(lake.reader(spark), allow_gaps=settings.allows_offset_gaps)
        ),
        _run_doctor_check("tables", lambda: _check_table_row_counts(spark, lake)),
        _run_doctor_check("versions", lambda: _check_no_table_was_restored(spark, lake)),
        _run_doctor_check("layers", lambda: _check_checkpoints_exist(lake.reader(spark), settings)),
        _run_doctor_check("messages", lambda: _check_unreadable_messages(settings)),
        _check_topic_states(spark, lake),
        _check_session_ids_in_one_partition(lake.reader(spark)),
    ]


def _check_unreadable_messages(settings: Settings) -> CheckDetail:
    from sessionlake.bronze.unreadable import read_message_that_stopped_layer

    if stopped := read_message_that_stopped_layer(settings):
        raise LakeError(str(stopped))
    return "bronze has not stopped at a message that it cannot read"


def _check_layer_states(settings: Settings) -> CheckDetail:
    require_preflight_checks_passed(None, settings, CheckSubject.STATES, list_layers_and_processors(settings))
    return "every layer has the states of its last batch"


def _check_table_files_exist(spark: SparkSession | None, lake: Lake) -> CheckDetail:
    known = [table for table in TABLES if lake.exists(spark, table)]
    for table in known:
        refuse_lost_files(spark, lake, table)
    return f"all files of {len(known)} tables exist"


def _check_ledger_exists(spark: SparkSession | None, settings: Settings, ran: Sequence[str]) -> CheckDetail:
    require_preflight_checks_passed(spark, settings, CheckSubject.LEDGER, ran)
    return "exists"


def _check_message_counts_match(reader: TableReader, settings: Settings) -> CheckDetail:
    from sessionlake.history.status import layer_statuses

    layers = layer_statuses(reader, settings)
    for layer in layers:
        if layer.unaccounted:
            raise LakeError(
                f"{layer.layer}: {layer.unaccounted} messages that it read are in none of the ledger's "
                "counts: neither applied nor duplicates nor quarantined nor held back",
                why="The ledger must account for every message, so messages may be missing in the tables",
                fix=f"Look for the batches of layer {layer.layer} in ops.ledger with `sessionlake query`, "
                "and report this as a bug of sessionlake",
            )
    return "messages in = applied + duplicates + quarantined + held, in every batch of every layer"


def _check_ledger_sums(reader: TableReader) -> CheckDetail:
    used = verify_ledger_sums(reader)
    return f"{POSITIONS} agrees with the ledger" if used else "not used: the ledger is read completely"


def _check_offsets_are_contiguous(reader: TableReader, *, allow_gaps: bool) -> CheckDetail:
    missing_by_span = missing_offsets(reader)
    for span, missing in missing_by_span.items():
        if missing < 0 or (missing and not allow_gaps):
            what = f"{missing} offsets are missing" if missing > 0 else f"{-missing} messages occur twice"
            raise LakeError(
                f"{span.layer}: topic {span.topic}, partition {span.partition}, offsets {span.first} to "
                f"{span.last}: {what}",
                fix=_describe_remedy_for_offset_gaps(span.layer),
            )
    return f"contiguous in {len({(span.topic, span.partition) for span in missing_by_span})} topic-partitions"


def _check_table_row_counts(spark: SparkSession | None, lake: Lake) -> CheckDetail:
    gone = refuse_lost_rows(spark, lake, _APPENDED)
    return f"hold what the ledger says was written{describe_removed_rows(sum(gone[table] for table in _APPENDED))}"


def _check_no_table_was_restored(spark: SparkSession | None, lake: Lake) -> CheckDetail:
    refuse_restored_tables_of_layers(spark, lake.settings, list_layers_and_processors(lake.settings))
    return "are the newest: no table was restored to an older version"


def _describe_remedy_for_offset_gaps(layer: str) -> str:
    """Returns what the operator should do about a layer in which offsets are missing or repeated."""
    if layer == SILVER:
        return (
            "Run `sessionlake rebuild silver`, which builds it again from bronze, or restore its tables and its "
            "checkpoint from the same backup"
        )
    if layer == GOLD:
        return build_checkpoint_recovery_hint(GOLD)
    return f"Restore its tables and its checkpoint from the same backup. {LAST_RESORT}"


def _read_query_id_of_checkpoint(settings: Settings, layer: str) -> str | None:
    return CheckpointGenerations(settings.checkpoint_path(layer), layer).current_generation.app_id


def _check_checkpoints_exist(reader: TableReader, settings: Settings) -> CheckDetail:
    ran = {
        row["layer"]
        for row in iterate_rows_as_dicts(LedgerReader(reader).read_entries_since_rebuild())
        if not row["app_id"].startswith(REBUILD)
    }
    lost = [
        layer
        for layer in list_layers_and_processors(settings)
        if layer in ran and _read_query_id_of_checkpoint(settings, layer) is None
    ]
    if lost:
        places = ", ".join(map(settings.checkpoint_path, lost))
        raise LakeError(
            f"the checkpoint {places} is gone, though the tables hold data of the layer",
            fix=_build_recovery_hints_of_layers(lost),
        )
    return "every layer that has run has its checkpoint"


def _build_recovery_hints_of_layers(layers: Sequence[str]) -> str:
    return " ".join(f"{layer}: {build_checkpoint_recovery_hint(layer)}." for layer in layers)


def _check_topic_states(spark: SparkSession | None, lake: Lake) -> CheckResult:
    settings = lake.settings
    if settings.bronze.source is MessageSourceKind.KAFKA and has_committed_batch(settings, BRONZE):
        try:
            require_recorded_topics(spark, lake)
        except DataLossError as loss:
            return CheckResult(CheckSeverity.FAIL, "topics", str(loss))
    rows = read_topics(spark, lake)
    now = select_latest_generations(rows).values()
    known = ", ".join(
        f"{len(names)} {state}" + ("" if state is TopicState.ACTIVE else f" ({_shorten_list_of_names(names)})")
        for state in TopicState
        if (names := sorted(row.topic for row in now if row.state is state))
    )
    lost = sorted({row.topic for row in rows if row.lost})
    if not lost and all(row.state in READ_STATES for row in now):
        return CheckResult(CheckSeverity.OK, "topics", known or "none yet")
    gone = f"; messages of {_shorten_list_of_names(lost)} were lost before bronze read them" if lost else ""
    return CheckResult(CheckSeverity.WARN, "topics", f"{known}{gone}: see ops.topics, and kafka.on_topic_change")


def _check_session_ids_in_one_partition(reader: TableReader) -> CheckResult:
    """Returns a warning if session ids occur in several partitions of a topic."""
    recorded: Condition = ("event", eq, str(IntegrityEventKind.SPLIT_SESSION))
    split = {(row["topic"], row["session_id"]) for row in reader.read_rows(EVENTS, recorded, columns=[*ID, "event"])}
    if not split:
        return CheckResult(CheckSeverity.OK, "session ids", "each in one partition of its topic")
    topics = sorted({topic for topic, _ in split})
    return CheckResult(
        CheckSeverity.WARN,
        "session ids",
        f"{len(split)} of {_shorten_list_of_names(topics)} occur in several partitions. Each partition's messages are "
        "judged as a separate session. Were partitions added, or do producers choose them differently? "
        f"{EVENTS} lists the ids as event {IntegrityEventKind.SPLIT_SESSION}",
    )


def _shorten_list_of_names(names: list[str]) -> str:
    """Returns the first names of a list, separated by commas, and `…` if there are more."""
    return ", ".join(names[:_SHOWN_NAMES]) + (", …" if len(names) > _SHOWN_NAMES else "")
