"""`sessionlake forget`: a session leaves the lake. What stays of it is that messages were at its offsets.

Silver is a function of bronze, and gold of silver. So the session's messages are erased in bronze, where their offsets
and Kafka times stay; what silver made of them goes from its tables and states, which is all of silver that depends on
them; and gold, whose figures are of many sessions, is computed anew. Then goes the history of all these tables, and the
search through what is left is the proof.
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
from sessionlake.gold.changes import refuse_shorter
from sessionlake.gold.declared.tables import schemas_of
from sessionlake.gold.making import states
from sessionlake.ledger.entries import earliest_after_rebuild
from sessionlake.ledger.erasures import (
    Erasure,
    delete_receipt,
    lake_salt,
    read_receipts,
    session_hash_of,
    store_receipt,
)
from sessionlake.operations.forgetting import publications, rows
from sessionlake.operations.forgetting.receipt import proof, remains
from sessionlake.operations.forgetting.rows import Session
from sessionlake.operations.forgetting.states import hand_over, require_states, stateful
from sessionlake.operations.pipeline import to_the_end
from sessionlake.operations.rebuild.endings import gold_tables, reset_gold
from sessionlake.operations.rebuild.preflight import require_level
from sessionlake.operations.rebuild.processors import made_beside
from sessionlake.operations.rebuild.replay import REPLAYED, clear
from sessionlake.operations.retention.removal import Retention
from sessionlake.settings.model import Settings
from sessionlake.silver.states import has_state
from sessionlake.streaming.journal import Journal, Step, require_uninterrupted
from sessionlake.streaming.operation import FORGET

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Say = Callable[[str], None]
_PUBLISHED, _GOLD, _HISTORY = "published", "gold", "history of "


class _Inputs(msgspec.Struct):
    """What a forgetting was asked to do. It names the session, so that whoever finds it interrupted can finish it.

    Attributes:
        receipt: of which erasure.
        topic: of the session.
        session: its id.
    """

    receipt: str
    topic: str
    session: str


class Forgetting:
    """One session being forgotten. All layers, and retention, must be claimed.

    Args:
        patience: how many seconds to wait for publications.
        shorten: whether gold may be computed anew though retention has removed changes that it was made of.
        say: told what is done.
    """

    def __init__(
        self,
        spark: SparkSession,
        settings: Settings,
        *,
        patience: float = 0.0,
        shorten: bool = False,
        say: Say = lambda _: None,
    ) -> None:
        self._spark, self._settings = spark, settings
        self._patience, self._shorten, self._say = patience, shorten, say
        self._lake = Lake(settings, schemas_of(settings))

    def run(self, session: str, topic: str | None = None) -> Erasure:
        """Forgets the session; finishes it if that was interrupted.

        Raises:
            UsageError: there is no such session, or there are several; or the forgetting of another was interrupted.
            LakeError: a layer cannot come to the end of what bronze holds, or its states cannot be read, a publication
                lags, or gold cannot be computed anew.
        """
        if not self._lake.exists(self._spark, MESSAGES):
            raise UsageError(f"forget: there is no bronze in {self._settings.place}")
        journal = Journal.read(self._settings, FORGET, _Inputs)
        if journal is None:
            journal = self._begun(session, topic)
        elif journal.inputs.session != session or topic not in (None, journal.inputs.topic):
            raise UsageError(
                f"forget: the forgetting of another session was interrupted (receipt {journal.inputs.receipt}), "
                "and must end first: run `sessionlake forget --resume`, or `sessionlake forget --cancel` if nothing "
                "was erased yet"
            )
        return self._finished(journal)

    def resume(self) -> Erasure:
        """Finishes a forgetting that was interrupted.

        Raises:
            UsageError: none was.
            LakeError: as `run`.
        """
        return self._finished(self._interrupted("--resume", "finish"))

    def cancel(self) -> str:
        """Gives up a forgetting that was interrupted before anything was erased; returns the receipt's name.

        Raises:
            UsageError: none was interrupted.
            LakeError: something was erased.
        """
        journal = self._interrupted("--cancel", "give up")
        inputs = journal.inputs
        stored = next((one for one in self._known() if one.receipt == inputs.receipt), None)
        left = rows.offsets_of(self._lake.reader(self._spark), (inputs.topic, inputs.session))
        erased = stored is not None and sum(item.messages for item in left) < stored.messages
        if journal.done or erased:
            raise LakeError(
                f"forget --cancel: messages of the session are erased already (receipt {inputs.receipt}), which "
                "cannot be undone: run `sessionlake forget --resume`, which finishes it"
            )
        delete_receipt(self._spark, self._lake, inputs.receipt)
        journal.end()
        return inputs.receipt

    def _interrupted(self, option: str, to_do: str) -> Journal[_Inputs]:
        journal = Journal.read(self._settings, FORGET, _Inputs)
        if journal is None:
            raise UsageError(f"forget {option}: no forgetting was interrupted, so there is nothing to {to_do}")
        return journal

    def _finished(self, journal: Journal[_Inputs]) -> Erasure:
        """Takes the steps that are left."""
        session = journal.inputs.topic, journal.inputs.session
        begun = self._receipt(journal.inputs)
        self._say(f"receipt {begun.receipt}: {len(journal.done)} steps are done")
        for name, take in self._steps(session, begun, journal):
            journal.take(name, take)
        erasure = self._proved(begun, journal, journal.inputs.session)
        store_receipt(self._spark, self._lake, erasure)
        journal.end()
        return erasure

    # -- how it begins

    def _known(self) -> list[Erasure]:
        return read_receipts(self._lake.reader(self._spark))

    def _begun(self, session: str, topic: str | None) -> Journal[_Inputs]:
        """Checks all that can be checked before anything changes, and writes the journal: then no layer starts."""
        require_uninterrupted(self._settings)
        topic = self._topic(session, topic)
        self._refuse_keyed()
        if self._gold() and not self._shorten:  # figures of many sessions lose one only by being computed anew
            refuse_shorter(self._lake, self._spark)
        tables = dict.fromkeys([*rows.tables_of(self._spark, self._lake), *self._gold()])
        publications.refuse_given_up(self._spark, self._lake, tables)
        self._catch_up()
        for layer in stateful(self._settings):  # what cannot be read later would stop it half-way
            require_states(self._spark, self._settings, layer, (topic, session))
        Retention(self._spark, self._settings).finish()  # its rows are counted once
        mine = (one.receipt for one in self._known() if one.done_at is None and one.is_for(topic, session))
        return Journal.begin(self._settings, FORGET, _Inputs(next(mine, uuid.uuid4().hex[:12]), topic, session))

    def _receipt(self, inputs: _Inputs) -> Erasure:
        """The receipt; stored, if it is not yet: from then on a message of the session that comes is erased."""
        known, session = self._known(), (inputs.topic, inputs.session)
        stored = next((one for one in known if one.receipt == inputs.receipt), None)
        if stored is not None:
            return stored
        salt = lake_salt(known)
        offsets = rows.offsets_of(self._lake.reader(self._spark), session)
        counts = rows.counts_of(self._spark, self._lake, session)
        begun = Erasure(
            receipt=inputs.receipt,
            topic=inputs.topic,
            session_hash=session_hash_of(salt, *session),
            salt=salt,
            begun_at=max(datetime.now(UTC), earliest_after_rebuild(self._lake.reader(self._spark), SILVER)),
            messages=sum(item.messages for item in offsets),
            report={
                "offsets": [asdict(item) for item in offsets],
                "tables": {table: {"rows": count} for table, count in counts.items()},
            },
        )
        store_receipt(self._spark, self._lake, begun)
        return begun

    def _refuse_keyed(self) -> None:
        """Rows by a column of one's own may be of several sessions."""
        keyed = [own for own in self._settings.processors if own.key]
        if keyed:
            first = keyed[0]
            raise UsageError(
                f"forget: the rows of {first.into} are by {', '.join(first.key)}, and may be made of several sessions: "
                f"take {first.where} out of the configuration, drop the table, forget, and run "
                f"`sessionlake rebuild {first.rebuilt_as}` with it again"
            )

    def _topic(self, session: str, topic: str | None) -> str:
        found = rows.topics_of(self._lake.reader(self._spark), session)
        if topic is None and len(found) > 1:
            raise UsageError(f"session {session!r} is in several topics ({', '.join(found)}): choose one with --topic")
        if topic not in (None, *found) or not found:
            where = "" if topic is None else f" of topic {topic}"
            raise UsageError(f"there is no message of session {session!r}{where} in {MESSAGES}, or it is forgotten")
        return topic or found[0]

    def _catch_up(self) -> None:
        """Layers that keep states take in all that bronze holds: where they go on is then known of all of them."""
        for layer in stateful(self._settings):
            self._say(f"{layer}: takes in what is there")
            to_the_end(self._spark, self._settings, layer, threading.Event())
        if has_state(self._settings, SILVER):
            require_level(self._spark, self._lake, self._lake.latest_version(self._spark, MESSAGES))

    # -- what is done

    def _steps(self, session: Session, begun: Erasure, journal: Journal[_Inputs]) -> Iterator[tuple[str, Step]]:
        """What is done, in this order: each can be done twice, and needs those before it."""
        spark, settings, lake = self._spark, self._settings, self._lake
        layers, counted = stateful(settings), begun.report["tables"]
        yield "bronze", partial(rows.blank, spark, lake, session)
        for table in rows.tables_of(spark, lake):
            if table in rows.MERGED or counted.get(table, {}).get("rows"):
                yield table, partial(self._remove, table, session)
        yield "books", partial(rows.clean_books, spark, lake, session)
        yield "notes", partial(rows.clean_notes, settings, layers, session)
        yield _PUBLISHED, self._published
        yield _GOLD, partial(self._reset_gold, begun)
        yield "publications", partial(self._wait_for_publications, journal)
        for table in self._purged():
            yield _HISTORY + table, partial(self._purge, table, begun.receipt, journal)
        for layer in layers:  # behind bronze's history: a stream begins with the latest version
            yield f"states of {layer}", partial(hand_over, spark, settings, layer, session, begun.receipt)
        yield "aside", self._remove_aside

    def _gold(self) -> list[str]:
        """Gold's tables, if there are any: whether its checkpoint is there says nothing of them."""
        return [table for table in gold_tables(self._settings) if self._lake.exists(self._spark, table)]

    def _published(self) -> dict[str, int]:
        """Gold's tables that are published and have rows, whose removal is then to be sent; of no use, the number."""
        published = [table for table in self._gold() if publications.publications(self._settings, table)]
        return {table: 1 for table in published if not self._lake.read(self._spark, table).isEmpty()}

    def _reset_gold(self, begun: Erasure) -> dict[str, int]:
        """Empties gold; the versions of its tables that are empty."""
        tables = self._gold()
        if tables:
            self._say("gold: emptied, and computed anew when it runs next")
            reset_gold(self._spark, self._settings, self._lake, begun.receipt, 0, begun.begun_at)
        return {table: self._lake.latest_version(self._spark, table) for table in tables}

    def _remove(self, table: str, session: Session) -> dict[str, int]:
        rows.remove(self._spark, self._lake, table, session)
        return {"version": self._lake.latest_version(self._spark, table)}

    def _wait_for_publications(self, journal: Journal[_Inputs]) -> None:
        """What a publication has yet to read of a table goes with its history."""
        emptied, published = journal.done.get(_GOLD, {}), journal.done.get(_PUBLISHED, {})
        removals = {
            table: version
            for table, version in _removals(journal).items()
            if table in published or table not in emptied
        }
        if any(publications.publications(self._settings, table) for table in removals):
            self._say("waiting for publications")
            publications.wait(self._settings, removals, self._patience)

    def _purged(self) -> list[str]:
        """The tables whose history may have the session."""
        own = [processor.into for processor in self._settings.processors]
        known = [MESSAGES, *REPLAYED, *rows.tables_of(self._spark, self._lake), DECISIONS, LEDGER]
        known += [*gold_tables(self._settings), *own, *rows.BOOKS]
        return [table for table in dict.fromkeys(known) if self._lake.exists(self._spark, table)]

    def _purge(self, table: str, receipt: str, journal: Journal[_Inputs]) -> dict[str, int] | None:
        version = self._lake.latest_version(self._spark, table)
        if not version:
            return None  # it was only created
        since = publications.first_needed(self._settings, table, _removals(journal).get(table, version))
        done = self._lake.storage.purge_history(self._spark, table, receipt, since)
        self._say(f"{table}: {done.files} files of its history removed")
        return {"files": done.files, "bytes": done.freed, "from_version": version + 1}

    def _remove_aside(self) -> None:
        """Checkpoints that were put aside, by this or by rebuilds before, and what others have left behind."""
        beside = Path(self._settings.checkpoint(""))
        for old in (*beside.glob("*.before-*"), *beside.glob("*.handover.next")):
            shutil.rmtree(old)
        shutil.rmtree(states.folder(self._settings), ignore_errors=True)  # of what gold held
        if self._lake.storage.scratch is not None:  # of a batch that has died
            shutil.rmtree(self._lake.storage.scratch, ignore_errors=True)
        clear(self._spark, self._settings)
        for processor in self._settings.processors:
            for table in made_beside(processor.name):
                self._lake.staging().drop(self._spark, table)

    # -- how it ends

    def _proved(self, begun: Erasure, journal: Journal[_Inputs], session: str) -> Erasure:
        self._say("searching what is left")
        tables: dict[str, dict[str, int]] = begun.report["tables"]
        purged = {name.removeprefix(_HISTORY): told for name, told in journal.done.items() if name.startswith(_HISTORY)}
        report = begun.report | {
            "tables": {name: tables.get(name, {"rows": 0}) | told for name, told in (tables | purged).items()},
            "gold": sorted(self._gold()),
            "search": proof(self._spark, self._lake, session),
            "left": remains(self._spark, self._lake, begun.topic),
        }
        return replace(begun, done_at=datetime.now(UTC), report=report)


def _removals(journal: Journal[_Inputs]) -> dict[str, int]:
    """Of each table the version from which on the session's rows are gone."""
    removed = {table: told["version"] for table, told in journal.done.items() if "version" in told}
    return removed | journal.done.get(_GOLD, {})
