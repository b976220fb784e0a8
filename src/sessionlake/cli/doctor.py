"""Is everything here that is needed, and do the books balance? One line a check, each with its remedy."""

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
    MESSAGES,
    POSITIONS,
    QUARANTINE,
    SILVER,
)
from sessionlake.delta.schemas.tables import TABLES
from sessionlake.delta.storage.txn import REBUILD
from sessionlake.errors import LAST_RESORT, BrokerError, ConfigError, LakeError, LossError, SessionlakeError
from sessionlake.history.missing import missing_offsets
from sessionlake.integrity.outcome import EventKind
from sessionlake.ledger.books import LedgerReader, to_dicts
from sessionlake.ledger.positions import verify_sums
from sessionlake.ledger.topics import READ_STATES, TopicState, latest_generations, read_topics
from sessionlake.operations.preflight import Subject, layers_of, require_in_all, require_newest
from sessionlake.settings.kafka import SourceKind
from sessionlake.settings.model import Settings, load_settings
from sessionlake.silver.tables.splits import ID
from sessionlake.spark.session import on_databricks
from sessionlake.streaming.checkpoint import way_on
from sessionlake.streaming.errors import readable
from sessionlake.streaming.generations import Generations
from sessionlake.streaming.losses import (
    has_committed,
    less,
    refuse_lost_files,
    refuse_lost_rows,
    refuse_lost_topics,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from sessionlake.delta.storage.reading import Condition, TableReader

PROGRAM = "sessionlake"
# Tables that only grow, and which column of the ledger says by how much; where none does, its outputs do.
_GROWING = (MESSAGES, CHANGES, QUARANTINE, EVENTS)
# Of the topics that are not active, as many are named.
_NAMED = 10


class Level(StrEnum):
    """How a check came out."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


@dataclass(frozen=True)
class Finding:
    """The outcome of one check; `detail` holds the remedy where there is something to do."""

    level: Level
    what: str
    detail: str


def examine(file: Path | None = None) -> list[Finding]:
    """Runs every check that the ones before it leave possible.

    Args:
        file: the configuration, as `load_settings` takes it.
    """
    try:
        settings = load_settings(file)
    except ConfigError as error:
        return [Finding(Level.FAIL, "config", str(error))]
    capture = settings.capture
    said = f"topics {settings.kafka.topic_pattern}, integrity {capture.integrity}, on violation {capture.on_violation}"
    machine = [] if on_databricks() else [_finding("java", _java), _finding("jars", _jars), _home_of(settings)]
    findings = [Finding(Level.OK, "config", said), *machine, _finding("broker", lambda: _broker(settings))]
    findings.append(_finding("operations", lambda: _operations(settings)))
    findings.append(_finding("checkpoints", lambda: _checkpoints(settings)))
    if any(item.level is Level.FAIL for item in machine):
        return findings
    return [*findings, *_books(settings)]


def examine_bundle(commands: Any, folder: Path = Path()) -> list[Finding]:
    """Checks the bundle in a folder and its settings file, for every target; a check's name is the file and line.

    Args:
        commands: of the command line, whose words jobs give.
    """
    from sessionlake.cli.job import refusal
    from sessionlake.databricks.bundle.rules import bundle_faults, models_are_installed

    prefix = "BUNDLE_VAR_"
    given = {name.removeprefix(prefix): value for name, value in os.environ.items() if name.startswith(prefix)}
    faults = bundle_faults(folder, given, partial(refusal, commands))
    found = [Finding(Level.FAIL, f"{fault.file}:{fault.line}", fault.text) for fault in faults]
    if not models_are_installed():
        text = "keys of resources are not checked: install databricks-bundles (`uv sync`)"
        found.append(Finding(Level.WARN, "models", text))
    return found or [Finding(Level.OK, "bundle", "nothing is wrong that can be told without a workspace")]


def _finding(what: str, check: Callable[[], str]) -> Finding:
    try:
        return Finding(Level.OK, what, check())
    except BrokerError as error:  # nothing but bronze needs it
        return Finding(Level.WARN, what, str(error))
    except SessionlakeError as error:
        return Finding(Level.FAIL, what, str(error))
    except Exception as error:
        if (told := readable(error)) is None:
            raise
        return Finding(Level.FAIL, what, str(told))


def _java() -> str:
    from sessionlake.local.java import require_java

    return str(require_java())


def _jars() -> str:
    from sessionlake.local.jars import broker_jars, spark_jars

    return f"{len(spark_jars())} for Spark and {len(broker_jars())} for the broker, cached"


def _home_of(settings: Settings) -> Finding:
    from sessionlake.local.home import require_home, rights_for_others

    found = _finding("home", lambda: str(require_home(settings)))
    rights = None if found.level is Level.FAIL else rights_for_others(settings)
    if rights is None:
        return found
    remedy = f"`chmod 700 {shlex.quote(str(settings.home))}`"
    text = f"{settings.home} has mode {rights}, so other users of this machine can read what is in it: {remedy}"
    return Finding(Level.WARN, "home", text)


def _broker(settings: Settings) -> str:
    from sessionlake.bronze.sources import require

    require(settings)
    source = settings.bronze.source
    return (
        f"answers at {settings.kafka.bootstrap_servers}" if source == "kafka" else f"not asked: bronze reads {source}"
    )


def _operations(settings: Settings) -> str:
    require_in_all(None, settings, Subject.OPERATIONS, layers_of(settings))
    return "no rebuild, resharding or forgetting is interrupted"


def _checkpoints(settings: Settings) -> str:
    require_in_all(None, settings, Subject.CHECKPOINTS, layers_of(settings))
    return ", ".join(layer for layer in layers_of(settings) if Path(settings.checkpoint(layer)).is_dir()) or "none yet"


def _books(settings: Settings) -> list[Finding]:
    from sessionlake.history.status import begun
    from sessionlake.spark.session import spark_session

    lake = Lake(settings)
    ran = [layer for layer in layers_of(settings) if has_committed(settings, layer)]
    if not ran and not begun(settings):
        return [Finding(Level.OK, "ledger", "no batch yet: `sessionlake demo`, or `sessionlake run all`")]
    spark = spark_session(settings, app="doctor") if lake.storage.needs_spark else None
    there = [_finding("states", lambda: _states(settings)), _finding("files", lambda: _files(spark, lake))]
    lost = _finding("ledger", lambda: _ledger_is_there(spark, settings, ran))
    if lost.level is Level.FAIL:
        return [*there, lost]
    return [
        *there,
        _finding("ledger", lambda: _balanced(lake.reader(spark), settings)),
        _finding("sums", lambda: _summed_up(lake.reader(spark))),
        _finding("offsets", lambda: _contiguous(lake.reader(spark), allow_gaps=settings.allows_offset_gaps)),
        _finding("tables", lambda: _as_booked(spark, lake)),
        _finding("versions", lambda: _in_force(spark, lake)),
        _finding("layers", lambda: _have_checkpoints(lake.reader(spark), settings)),
        _finding("messages", lambda: _readable(settings)),
        _topics(spark, lake),
        _session_ids(lake.reader(spark)),
    ]


def _readable(settings: Settings) -> str:
    from sessionlake.bronze.unreadable import stopped_at

    if stopped := stopped_at(settings):
        raise LakeError(str(stopped))
    return "bronze has not stopped at one that it cannot read"


def _states(settings: Settings) -> str:
    require_in_all(None, settings, Subject.STATES, layers_of(settings))
    return "every layer has the states of its last batch"


def _files(spark: SparkSession | None, lake: Lake) -> str:
    known = [table for table in TABLES if lake.exists(spark, table)]
    for table in known:
        refuse_lost_files(spark, lake, table)
    return f"all that {len(known)} tables name are there"


def _ledger_is_there(spark: SparkSession | None, settings: Settings, ran: Sequence[str]) -> str:
    require_in_all(spark, settings, Subject.LEDGER, ran)
    return "is there"


def _balanced(reader: TableReader, settings: Settings) -> str:
    from sessionlake.history.status import layer_statuses

    layers = layer_statuses(reader, settings)
    for layer in layers:
        if layer.unaccounted:
            raise LakeError(
                f"{layer.layer}: {layer.unaccounted} messages are neither applied nor duplicates nor quarantined nor "
                "held; look for the batches in ops.ledger (sessionlake query) and report this as a fault of sessionlake"
            )
    return "messages in = applied + duplicates + quarantined + held, in every batch of every layer"


def _summed_up(reader: TableReader) -> str:
    used = verify_sums(reader)
    return f"{POSITIONS} holds those of the ledger" if used else "none are gone by: the ledger is read whole"


def _contiguous(reader: TableReader, *, allow_gaps: bool) -> str:
    found = missing_offsets(reader)
    for span, missing in found.items():
        if missing < 0 or (missing and not allow_gaps):
            what = f"{missing} offsets are missing" if missing > 0 else f"{-missing} messages are there twice"
            raise LakeError(
                f"{span.layer}: topic {span.topic}, partition {span.partition}, offsets {span.first} to "
                f"{span.last}: {what}; {_put_right(span.layer)}"
            )
    return f"contiguous in {len({(span.topic, span.partition) for span in found})} topic-partitions"


def _as_booked(spark: SparkSession | None, lake: Lake) -> str:
    gone = refuse_lost_rows(spark, lake, _GROWING)
    return f"hold what the ledger says was written{less(sum(gone[table] for table in _GROWING))}"


def _in_force(spark: SparkSession | None, lake: Lake) -> str:
    require_newest(spark, lake.settings, layers_of(lake.settings))
    return "are the newest: none was brought back to an older one"


def _put_right(layer: str) -> str:
    """What to do about a layer whose offsets are not in order."""
    back = "restore its tables and its checkpoint from the same backup"
    if layer == SILVER:
        return f"`sessionlake rebuild silver` builds it once more from bronze; or {back}"
    return f"{back}. {LAST_RESORT}"


def _query_id(settings: Settings, layer: str) -> str | None:
    return Generations(settings.checkpoint(layer), layer).present.app_id


def _have_checkpoints(reader: TableReader, settings: Settings) -> str:
    ran = {row["layer"] for row in to_dicts(LedgerReader(reader).current()) if not row["app_id"].startswith(REBUILD)}
    lost = [layer for layer in layers_of(settings) if layer in ran and _query_id(settings, layer) is None]
    if lost:
        ways = " ".join(f"{layer}: {way_on(layer)}." for layer in lost)
        places = ", ".join(map(settings.checkpoint, lost))
        raise LakeError(f"{places}: the tables hold data and the checkpoint is gone. {ways}")
    return "every layer that has run has its checkpoint"


def _topics(spark: SparkSession | None, lake: Lake) -> Finding:
    settings = lake.settings
    if settings.bronze.source is SourceKind.KAFKA and has_committed(settings, BRONZE):
        try:
            refuse_lost_topics(spark, lake)
        except LossError as loss:
            return Finding(Level.FAIL, "topics", str(loss))
    rows = read_topics(spark, lake)
    now = latest_generations(rows).values()
    known = ", ".join(
        f"{len(names)} {state}" + ("" if state is TopicState.ACTIVE else f" ({_some(names)})")
        for state in TopicState
        if (names := sorted(row.topic for row in now if row.state is state))
    )
    lost = sorted({row.topic for row in rows if row.lost})
    if not lost and all(row.state in READ_STATES for row in now):
        return Finding(Level.OK, "topics", known or "none yet")
    gone = f"; messages were lost unread of {_some(lost)}" if lost else ""
    return Finding(Level.WARN, "topics", f"{known}{gone}: see ops.topics, and kafka.on_topic_change")


def _session_ids(reader: TableReader) -> Finding:
    """Warns of session ids that occur in several partitions of a topic."""
    recorded: Condition = ("event", eq, str(EventKind.SPLIT_SESSION))
    split = {(row["topic"], row["session_id"]) for row in reader.rows(EVENTS, recorded, columns=[*ID, "event"])}
    if not split:
        return Finding(Level.OK, "session ids", "each in one partition of its topic")
    topics = sorted({topic for topic, _ in split})
    return Finding(
        Level.WARN,
        "session ids",
        f"{len(split)} of {_some(topics)} occur in several partitions, where each is a session of its own, judged "
        "alone: were partitions added, or do producers choose them differently? "
        f"{EVENTS} names them, event {EventKind.SPLIT_SESSION}",
    )


def _some(names: list[str]) -> str:
    """The first few names, for a line of text."""
    return ", ".join(names[:_NAMED]) + (", …" if len(names) > _NAMED else "")
