"""The checkpoints of one query, one after the other: a new one where its source must go on elsewhere.

Spark fixes where a source starts when a checkpoint is new, and offers no way to change it later. So a query whose
source must go on elsewhere begins another checkpoint, with starting offsets of its own: a generation. Its batches stay
those of one query: their transactions bear the id of generation 0, and their numbers go on rising.

    <checkpoint>/                      generation 0: Spark's metadata, offsets, commits and sources
    <checkpoint>/generations/3.json    the note of generation 3
    <checkpoint>/generations/3/        generation 3: Spark's, as above

A generation is the present one as soon as its note is there, which is before Spark sees its folder. Whatever is in the
folder is written by Spark alone. Generation 0 stays for good: its folder holds the others, and its id names them all. A
note repeats that id: so another generation can be begun though what Spark wrote before it is damaged, or gone.
"""

from __future__ import annotations

import json
import re
import shutil
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import msgspec

from sessionlake.delta.storage.txn import Txn
from sessionlake.errors import LakeError, LossError
from sessionlake.streaming.checkpoint import last_committed, last_planned, require_readable, way_on, write_whole

_FOLDER = "generations"
_OF_ONE = re.compile(r"(\d+)(\.json)?")


class _Note(msgspec.Struct, frozen=True):
    """What a generation goes by.

    Attributes:
        first_batch: the number of its first batch, which Spark counts as 0.
        app_id: the id of generation 0.
    """

    first_batch: int
    app_id: str
    format: int = 2


@dataclass(frozen=True)
class Generation:
    """One checkpoint of a query, and how its batches are numbered.

    Attributes:
        number: 0 for the first.
        folder: Spark's checkpoint.
        first_batch: the number of its first batch, which Spark counts as 0.
        app_id: the id of generation 0, which names the transactions of all; None before it has one.
    """

    number: int
    folder: Path
    first_batch: int = 0
    app_id: str | None = None

    def txn(self, query_id: str, batch_id: int) -> Txn:
        """The transaction of a batch, given the id of Spark's query and Spark's own number of the batch."""
        return Txn(self.app_id or query_id, self.first_batch + batch_id)

    def batch_id(self, batch: int) -> int:
        """Spark's own number of a batch."""
        return batch - self.first_batch

    @property
    def newest(self) -> int | None:
        """The number of the batch that was planned last; None before the first."""
        planned = last_planned(self.folder)
        return None if planned is None else self.first_batch + planned

    @property
    def next_batch(self) -> int:
        """A number that none of its batches has, nor had: what was planned keeps its number though it is given up."""
        return self.first_batch if self.newest is None else self.newest + 1


class Generations:
    """All generations of a query's checkpoint.

    Args:
        checkpoint: the place of generation 0.
        layer: whose it is, for what to do about damage.
    """

    def __init__(self, checkpoint: str, layer: str) -> None:
        self._first = Path(checkpoint)
        self._folder = self._first / _FOLDER
        self._layer = layer

    @property
    def present(self) -> Generation:
        """The one that the query goes on in.

        Raises:
            LossError: its note, or of generation 0 its id, cannot be read.
        """
        number = max((number for number in self._numbers() if self._note(number).is_file()), default=0)
        if not number:
            return Generation(0, self._first, app_id=self._app_id())
        try:
            note = msgspec.json.decode(self._note(number).read_bytes(), type=_Note)
        except (OSError, msgspec.MsgspecError) as error:
            raise self._damaged(self._note(number), str(error)) from None
        return Generation(number, self._folder / str(number), note.first_batch, note.app_id)

    def survey(self) -> tuple[str | None, int]:
        """The query's id and the last number of a batch, by whatever can be read; None and -1 where nothing says it."""
        notes = [(number, note) for number in sorted(self._numbers()) if (note := self._readable(number)) is not None]
        numbers = [_latest(self._first)]
        for number, note in notes:
            numbers.append(note.first_batch + _latest(self._folder / str(number)))
        if notes:
            return notes[-1][1].app_id, max(numbers)
        with suppress(LossError):
            return self._app_id(), max(numbers)
        return None, max(numbers)

    def begin(self, first_batch: int, app_id: str | None) -> Generation:
        """Makes another generation the present one; Spark begins it with the starting offsets that it is then given.

        Nothing of those before it is read.

        Args:
            app_id: the id of generation 0.

        Raises:
            LossError: there is no id: under another one, everything that is in the tables would be written once more.
        """
        if app_id is None:
            raise self._damaged(self._first / "metadata", "it is missing")
        number = max(self._numbers(), default=0) + 1
        self._folder.mkdir(parents=True, exist_ok=True)
        write_whole(self._note(number), msgspec.json.encode(_Note(first_batch, app_id)))
        return self.present

    def remove_superseded(self) -> None:
        """Removes what nobody goes back to: those between generation 0 and one that has committed a batch."""
        present = self.present
        if last_committed(present.folder) is None:
            return
        for number in self._numbers():
            if number < present.number:
                shutil.rmtree(self._folder / str(number), ignore_errors=True)
                self._note(number).unlink(missing_ok=True)

    def _readable(self, number: int) -> _Note | None:
        try:
            return msgspec.json.decode(self._note(number).read_bytes(), type=_Note)
        except (OSError, msgspec.MsgspecError):
            return None

    def _note(self, number: int) -> Path:
        return self._folder / f"{number}.json"

    def _numbers(self) -> set[int]:
        """Of all that have left anything, whole or not."""
        found = (_OF_ONE.fullmatch(entry.name) for entry in self._folder.glob("*"))
        return {int(one[1]) for one in found if one}

    def _app_id(self) -> str | None:
        file = self._first / "metadata"
        try:
            return str(json.loads(file.read_text(encoding="utf-8"))["id"])
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError) as error:
            raise self._damaged(file, str(error)) from None

    def _damaged(self, file: Path, why: str) -> LakeError:
        place = file.relative_to(self._first)
        return LossError(
            f"{self._layer}: the checkpoint {self._first} is damaged: {place} cannot be read ({why})",
            fix=f"No table was changed. {way_on(self._layer)}",
        )


def _latest(folder: Path) -> int:
    """Spark's own number of the last batch in a checkpoint; -1 before the first."""
    return max((number for number in (last_planned(folder), last_committed(folder)) if number is not None), default=-1)


def require_whole(checkpoint: str, layer: str) -> None:
    """Returns if the layer's checkpoint is new, or whole in all that the query goes on from.

    Raises:
        LakeError: naming the file that is not, and what to do.
    """
    require_readable(str(Generations(checkpoint, layer).present.folder), layer)
