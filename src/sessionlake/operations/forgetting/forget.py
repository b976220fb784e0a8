"""`sessionlake forget`: erases a session from the lake. Only the offsets and Kafka timestamps of its messages stay.

The session's messages are erased in bronze, which keeps their offsets and timestamps; of messages that have other
sessions, too, only its parts are erased. Its rows are removed from silver's tables, and its state from the states of
layers. Gold's figures are made of many sessions, so gold is emptied and computed again. Then the history of all these
tables is removed. At the end, a search through everything that is left proves that the session is gone.
"""

from __future__ import annotations

import shutil
import threading
import uuid
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from sessionlake.delta.lake import Lake
from sessionlake.delta.schemas.names import DECISIONS, LEDGER, MESSAGES, SILVER
from sessionlake.errors import LakeError, UsageError
from sessionlake.gold.changes import refuse_rebuild_from_fewer_changes
from sessionlake.gold.declared.tables import build_declared_gold_schemas
from sessionlake.gold.rebuilding import states
from sessionlake.ledger.entries import find_earliest_commit_time_after_rebuild
from sessionlake.ledger.erasures import (
    ErasureReceipt,
    choose_erasure_salt,
    delete_erasure_receipt,
    hash_forgotten_session,
    read_erasure_receipts,
    store_erasure_receipt,
)
from sessionlake.operations.forgetting import publications, quarantine, rows
from sessionlake.operations.forgetting import states as layer_states
from sessionlake.operations.forgetting.messages import refuse_inseparable_messages
from sessionlake.operations.forgetting.receipt import list_copies_outside_lake, search_lake_for_session
from sessionlake.operations.forgetting.rows import TopicSession
from sessionlake.operations.pipeline import run_layer_until_caught_up
from sessionlake.operations.rebuild.endings import empty_gold_to_recompute, list_gold_tables
from sessionlake.operations.rebuild.preflight import require_silver_read_all_bronze
from sessionlake.operations.rebuild.processors import list_staging_tables_of_processor
from sessionlake.operations.rebuild.replay import REPLAYED, remove_staging_tables
from sessionlake.operations.retention.removal import RetentionRunner
from sessionlake.settings.model import Settings
from sessionlake.silver.states import has_state
from sessionlake.streaming.journal import OperationJournal, Step, refuse_interrupted_operations
from sessionlake.streaming.operation import FORGET

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_PUBLISHED, _GOLD, _HISTORY = "published", "gold", "history of "


class _ForgetJournalInputs(msgspec.Struct):
    """The input of a forgetting, as the journal stores it. With it any process can finish an interrupted forgetting.

    Attributes:
        receipt: The name of the receipt in `bronze.erasures`.
        topic: The session's topic.
        session: The session's id.
    """

    receipt: str
    topic: str
    session: str


_Journal = OperationJournal[_ForgetJournalInputs]
_Steps = Iterator[tuple[str, Step]]


class SessionForgetter:
    """Forgets one session. This process must have claimed all layers and retention.

    Args:
        patience: The longest time in seconds to wait until publications have sent the removals to Kafka.
        shorten: True to compute gold again even if retention has removed old changes, so that gold begins later.
        say: Receives texts about the progress, for the operator.
    """

    def __init__(
        self,
        spark: SparkSession,
        settings: Settings,
        *,
        patience: float = 0.0,
        shorten: bool = False,
        say: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._spark, self._settings = spark, settings
        self._patience, self._shorten, self._say = patience, shorten, say
        self._lake = Lake(settings, build_declared_gold_schemas(settings))

    def forget_session(self, session_id: str, topic: str | None = None) -> ErasureReceipt:
        """Forgets the session, or finishes the forgetting of this session that was interrupted.

        Raises:
            UsageError: The session does not exist, several topics have its id, or the forgetting of another session was
                interrupted.
            LakeError: A layer cannot process all of bronze, its states cannot be read, a publication lags, or gold
                cannot be computed again.
        """
        if not self._lake.exists(self._spark, MESSAGES):
            raise UsageError(
                f"forget: {self._settings.lake_location} has no messages, because bronze has not run there",
                fix="Set SESSIONLAKE_HOME to the home that has the session",
            )
        journal = OperationJournal.read_journal(self._settings, FORGET, _ForgetJournalInputs)
        if journal is None:
            journal = self._check_and_start_journal(session_id, topic)
        elif journal.inputs.session != session_id or topic not in (None, journal.inputs.topic):
            raise UsageError(
                f"forget: another session is not forgotten completely yet (receipt {journal.inputs.receipt} in "
                "bronze.erasures)",
                why="Only one session can be forgotten at a time",
                fix="Run `sessionlake forget --resume`, or `sessionlake forget --cancel` if nothing was erased yet",
            )
        return self._finish_forgetting(journal)

    def resume_forgetting(self) -> ErasureReceipt:
        """Finishes a forgetting that was interrupted.

        Raises:
            UsageError: No forgetting was interrupted.
            LakeError: A layer's states cannot be read, a publication lags, or gold cannot be computed again.
        """
        return self._finish_forgetting(self._require_interrupted_forgetting("--resume", "finish"))

    def cancel_forgetting(self) -> str:
        """Cancels a forgetting that was interrupted before any message was erased. Returns the receipt's name.

        Raises:
            UsageError: No forgetting was interrupted.
            LakeError: Messages were erased already.
        """
        journal = self._require_interrupted_forgetting("--cancel", "cancel")
        inputs = journal.inputs
        stored = next((erasure for erasure in self._read_erasure_receipts() if erasure.receipt == inputs.receipt), None)
        remaining = rows.find_offset_ranges_of_session(self._spark, self._lake, (inputs.topic, inputs.session))
        erased = stored is not None and sum(item.messages for item in remaining) < stored.messages
        if journal.done or erased:
            raise LakeError(
                f"forget --cancel: messages of the session are already erased (receipt {inputs.receipt} "
                "in bronze.erasures), which cannot be undone",
                fix="Run `sessionlake forget --resume`, which erases the rest",
            )
        delete_erasure_receipt(self._spark, self._lake, inputs.receipt)
        journal.remove_journal()
        return inputs.receipt

    def _require_interrupted_forgetting(self, option: str, purpose: str) -> _Journal:
        """Returns the journal of the interrupted forgetting.

        If there is none, raises a `UsageError` that names the option.
        """
        journal = OperationJournal.read_journal(self._settings, FORGET, _ForgetJournalInputs)
        if journal is None:
            raise UsageError(
                f"forget {option}: no forgetting is unfinished, so there is nothing to {purpose}",
                fix="Run `sessionlake forget --session ID` to forget a session",
            )
        return journal

    def _finish_forgetting(self, journal: _Journal) -> ErasureReceipt:
        """Runs the steps that the journal does not record as done. Stores and returns the finished receipt."""
        session = journal.inputs.topic, journal.inputs.session
        receipt = self._find_or_create_receipt(journal.inputs)
        self._say(f"receipt {receipt.receipt}: {len(journal.done)} steps are done")
        for name, work in self._list_steps(session, receipt, journal):
            journal.run_step_if_unfinished(name, work)
        erasure = self._complete_receipt(receipt, journal, journal.inputs.session)
        store_erasure_receipt(self._spark, self._lake, erasure)
        journal.remove_journal()
        return erasure

    def _read_erasure_receipts(self) -> list[ErasureReceipt]:
        return read_erasure_receipts(self._lake.reader(self._spark))

    def _check_and_start_journal(self, session_id: str, topic: str | None) -> _Journal:
        """Checks everything that can be checked before anything changes, then writes the journal.

        From then on, no layer starts.
        """
        refuse_interrupted_operations(self._settings)
        topic = self._find_session_topic(session_id, topic)
        self._refuse_processors_with_key_columns()
        if self._settings.capture.feeds:
            refuse_inseparable_messages(self._spark, self._lake, topic, session_id)
        if self._list_gold_tables() and not self._shorten:  # gold will have to be computed again from all changes
            refuse_rebuild_from_fewer_changes(self._lake, self._spark)
        tables = dict.fromkeys([*rows.list_tables_with_sessions(self._spark, self._lake), *self._list_gold_tables()])
        publications.require_publications_can_send(self._spark, self._lake, tables)
        self._run_layers_until_caught_up()
        require = partial(layer_states.require_states_rewritable_without_session, self._spark, self._settings)
        for layer in layer_states.list_layers_with_state(self._settings):
            require(layer, (topic, session_id))  # unreadable states would stop the forgetting half-way
        # So that rows that an interrupted retention was removing are not counted again.
        RetentionRunner(self._spark, self._settings).finish_interrupted_removals()
        mine = (
            erasure.receipt
            for erasure in self._read_erasure_receipts()
            if erasure.done_at is None and erasure.is_for_session(topic, session_id)
        )
        return OperationJournal.create_journal(
            self._settings, FORGET, _ForgetJournalInputs(next(mine, uuid.uuid4().hex[:12]), topic, session_id)
        )

    def _find_or_create_receipt(self, inputs: _ForgetJournalInputs) -> ErasureReceipt:
        """Returns the stored receipt, or stores a new one.

        From then on, bronze erases new messages of the session on arrival.
        """
        known, session = self._read_erasure_receipts(), (inputs.topic, inputs.session)
        stored = next((erasure for erasure in known if erasure.receipt == inputs.receipt), None)
        if stored is not None:
            return stored
        salt = choose_erasure_salt(known)
        offsets = rows.find_offset_ranges_of_session(self._spark, self._lake, session)
        counts = rows.count_session_rows(self._spark, self._lake, session)
        erasure = ErasureReceipt(
            receipt=inputs.receipt,
            topic=inputs.topic,
            session_hash=hash_forgotten_session(salt, *session),
            salt=salt,
            begun_at=max(
                datetime.now(UTC), find_earliest_commit_time_after_rebuild(self._lake.reader(self._spark), SILVER)
            ),
            messages=sum(item.messages for item in offsets),
            report={
                "offsets": [asdict(item) for item in offsets],
                "tables": {table: {"rows": count} for table, count in counts.items()},
            },
        )
        store_erasure_receipt(self._spark, self._lake, erasure)
        return erasure

    def _refuse_processors_with_key_columns(self) -> None:
        """Refuses processors with a key column, because their rows can be made of several sessions."""
        keyed = [processor for processor in self._settings.processors if processor.key]
        if keyed:
            first = keyed[0]
            raise UsageError(
                f"forget: rows of {first.output_table}, grouped by {', '.join(first.key)}, may mix several sessions",
                fix=f"Remove {first.config_key} from the configuration, drop the table, forget the session, then add "
                f"the processor again and run `sessionlake rebuild {first.rebuild_argument}`",
            )

    def _find_session_topic(self, session_id: str, topic: str | None) -> str:
        """Returns the only topic that has the session, or the one that the operator chose.

        Raises a `UsageError` if there is none.
        """
        topics = rows.find_topics_of_session(
            self._lake.reader(self._spark), session_id, by_key=not self._settings.capture.feeds
        )
        if topic is None and len(topics) > 1:
            raise UsageError(
                f"forget: session {session_id!r} is in several topics ({', '.join(topics)})",
                fix="Choose one with --topic NAME",
            )
        if topic not in (None, *topics) or not topics:
            where = "" if topic is None else f" of topic {topic}"
            raise UsageError(
                f"forget: {MESSAGES} has no message of session {session_id!r}{where}",
                why="The session does not exist, or is forgotten already",
                fix='Look for its id with `sessionlake query "SELECT topic, session_id FROM silver.sessions"`',
            )
        return topic or topics[0]

    def _run_layers_until_caught_up(self) -> None:
        """Lets layers with states process all of bronze, so that they can later resume from bronze's latest version."""
        for layer in layer_states.list_layers_with_state(self._settings):
            self._say(f"{layer}: processes what is available")
            run_layer_until_caught_up(self._spark, self._settings, layer, threading.Event())
        if has_state(self._settings, SILVER):
            require_silver_read_all_bronze(self._spark, self._lake, self._lake.latest_version(self._spark, MESSAGES))

    # -- the steps

    def _list_steps(self, session: TopicSession, erasure: ErasureReceipt, journal: _Journal) -> _Steps:
        """Yields the journal's name of each step and the function that runs it. Each is safe to repeat."""
        spark, settings, lake = self._spark, self._settings, self._lake
        layers, counted = layer_states.list_layers_with_state(settings), erasure.report["tables"]
        yield "bronze", partial(rows.erase_session_messages_in_bronze, spark, lake, session)
        yield "quarantined", partial(quarantine.erase_session_in_quarantine, spark, lake, session)
        for table in rows.list_tables_with_sessions(spark, lake):
            if table in rows.MERGED or counted.get(table, {}).get("rows"):
                yield table, partial(self._remove_session_rows, table, session)
        yield "books", partial(rows.remove_session_from_operations_tables, spark, lake, session)
        yield "notes", partial(rows.remove_stopping_messages_of_session, settings, layers, session)
        yield _PUBLISHED, self._find_published_gold_tables
        yield _GOLD, partial(self._empty_gold_tables, erasure)
        yield "publications", partial(self._wait_until_publications_sent_removals, journal)
        for table in self._list_tables_with_history_to_purge():
            yield _HISTORY + table, partial(self._purge_table_history, table, erasure.receipt, journal)
        for layer in layers:  # after bronze's history is removed, because a stream starts at the latest version
            hand_over = partial(layer_states.hand_over_states_without_session, spark, settings, layer, session)
            yield f"states of {layer}", partial(hand_over, erasure.receipt)
        yield "aside", self._remove_archived_checkpoints

    def _list_gold_tables(self) -> list[str]:
        """Returns the names of gold's tables that exist. They can exist although gold has no checkpoint."""
        return [table for table in list_gold_tables(self._settings) if self._lake.exists(self._spark, table)]

    def _find_published_gold_tables(self) -> dict[str, int]:
        """Returns the tables of gold that have rows and a publication, as keys.

        The journal needs numbers as values: always 1.
        """
        published = [
            table for table in self._list_gold_tables() if publications.list_started_publications(self._settings, table)
        ]
        return {table: 1 for table in published if not self._lake.read(self._spark, table).isEmpty()}

    def _empty_gold_tables(self, erasure: ErasureReceipt) -> dict[str, int]:
        """Empties gold's tables. Returns the version of each table after that, by table name."""
        tables = self._list_gold_tables()
        if tables:
            self._say("gold: emptied, and computed again at its next run")
            empty_gold_to_recompute(self._spark, self._settings, self._lake, erasure.receipt, 0, erasure.begun_at)
        return {table: self._lake.latest_version(self._spark, table) for table in tables}

    def _remove_session_rows(self, table: str, session: TopicSession) -> dict[str, int]:
        """Removes the session's rows from a table. Returns the table's version after that, as `{"version": n}`."""
        rows.remove_session_rows(self._spark, self._lake, table, session)
        return {"version": self._lake.latest_version(self._spark, table)}

    def _wait_until_publications_sent_removals(self, journal: _Journal) -> None:
        """Waits until publications have sent the removals of rows to Kafka.

        Removing a table's history, which follows, also removes the versions that publications have not read yet.
        """
        emptied, published = journal.done.get(_GOLD, {}), journal.done.get(_PUBLISHED, {})
        removals = {
            table: version
            for table, version in _list_table_versions_after_removal(journal).items()
            if table in published or table not in emptied
        }
        if any(publications.list_started_publications(self._settings, table) for table in removals):
            self._say("waiting for publications")
            publications.wait_until_removals_sent(self._settings, removals, self._patience)

    def _list_tables_with_history_to_purge(self) -> list[str]:
        """Returns the tables whose history may contain the session."""
        processor_tables = [processor.output_table for processor in self._settings.processors]
        known = [MESSAGES, *REPLAYED, *rows.list_tables_with_sessions(self._spark, self._lake), DECISIONS, LEDGER]
        known += [*list_gold_tables(self._settings), *processor_tables, *rows.BOOKKEEPING]
        return [table for table in dict.fromkeys(known) if self._lake.exists(self._spark, table)]

    def _purge_table_history(self, table: str, receipt: str, journal: _Journal) -> dict[str, int] | None:
        """Removes the history of a table, except versions that its publications still read; None if it has no history.

        Returns the numbers of removed `files` and `bytes`, and the table's version after the removal as `from_version`.
        """
        version = self._lake.latest_version(self._spark, table)
        if not version:
            return None  # the table was only created, and has no history
        removal = _list_table_versions_after_removal(journal).get(table, version)
        since = publications.find_oldest_version_needed_by_publications(self._settings, table, removal)
        done = self._lake.storage.purge_history(self._spark, table, receipt, since)
        self._say(f"{table}: {done.files} files of its history removed")
        return {"files": done.files, "bytes": done.freed, "from_version": version + 1}

    def _remove_archived_checkpoints(self) -> None:
        """Removes checkpoints archived by this forgetting or earlier rebuilds, and files of processes that died."""
        checkpoints = Path(self._settings.checkpoint_path(""))
        for old in (*checkpoints.glob("*.before-*"), *checkpoints.glob("*.handover.next")):
            shutil.rmtree(old)
        shutil.rmtree(states.get_owners_at_rebuild_folder(self._settings), ignore_errors=True)  # gold's states
        if self._lake.storage.scratch is not None:  # files of a batch that died
            shutil.rmtree(self._lake.storage.scratch, ignore_errors=True)
        remove_staging_tables(self._spark, self._settings)
        for processor in self._settings.processors:
            for table in list_staging_tables_of_processor(processor.name):
                self._lake.build_staging_lake().drop_table(self._spark, table)

    def _complete_receipt(self, erasure: ErasureReceipt, journal: _Journal, session_id: str) -> ErasureReceipt:
        """Searches the lake for the session's id. Returns the receipt with the search's result and the present time."""
        self._say("searching what is left")
        tables: dict[str, dict[str, int]] = erasure.report["tables"]
        purged = {name.removeprefix(_HISTORY): done for name, done in journal.done.items() if name.startswith(_HISTORY)}
        report = erasure.report | {
            "tables": {name: tables.get(name, {"rows": 0}) | done for name, done in (tables | purged).items()},
            "gold": sorted(self._list_gold_tables()),
            "search": search_lake_for_session(self._spark, self._lake, session_id),
            "left": list_copies_outside_lake(self._spark, self._lake, erasure.topic),
        }
        return replace(erasure, done_at=datetime.now(UTC), report=report)


def _list_table_versions_after_removal(journal: _Journal) -> dict[str, int]:
    """Returns, by table name, the table's first version without the session's rows, as recorded in the journal."""
    removed = {table: done["version"] for table, done in journal.done.items() if "version" in done}
    return removed | journal.done.get(_GOLD, {})
