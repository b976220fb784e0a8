"""The generations of a query's checkpoint: a new one is started when the query must resume from other offsets.

Spark fixes the starting offsets of a source when a checkpoint is new and offers no way to change them later. So a query
that must resume elsewhere gets another checkpoint with its own starting offsets: a generation. All generations together
are one query: their transactions use the id of generation 0, and their batch numbers continue.

    <checkpoint>/                      generation 0: Spark's metadata, offsets, commits and sources
    <checkpoint>/generations/3.json    the note of generation 3
    <checkpoint>/generations/3/        generation 3: Spark's files, as above

A generation is the current one as soon as its note exists, which is before Spark uses its folder. Only Spark writes
into the folder. Generation 0 is never removed: its folder contains the others, and all use its id. Every note repeats
this id. So a new generation can be started even if Spark's files of the earlier ones are damaged or lost.
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
from sessionlake.errors import DataLossError, LakeError
from sessionlake.streaming.checkpoint import (
    build_checkpoint_recovery_hint,
    read_last_committed_batch,
    read_last_planned_batch,
    require_readable_checkpoint,
    write_atomically,
)

_FOLDER = "generations"
_OF_ONE = re.compile(r"(\d+)(\.json)?")


class _GenerationNote(msgspec.Struct, frozen=True):
    """The content of the file `generations/N.json`, which says how generation N numbers its batches.

    Attributes:
        first_batch: The layer's number of the generation's first batch, which Spark counts as 0.
        app_id: Spark's query id in generation 0.
        format: Version of the file's format.
    """

    first_batch: int
    app_id: str
    format: int = 2


@dataclass(frozen=True)
class CheckpointGeneration:
    """One checkpoint of a query, and how its batches are numbered.

    A query that must resume from other offsets gets a new checkpoint. Its batch numbers continue those of the former
    one.

    Attributes:
        number: The number of the generation; 0 is the first.
        folder: Spark's checkpoint folder.
        first_batch: The layer's number of the generation's first batch, which Spark counts as 0.
        app_id: Spark's query id in generation 0, which is in the transactions of all generations. None before Spark has
            created it.
    """

    number: int
    folder: Path
    first_batch: int = 0
    app_id: str | None = None

    def build_batch_txn(self, query_id: str, batch_id: int) -> Txn:
        """Returns the Delta transaction of a batch: the query id of generation 0, and the layer's number of the batch.

        Args:
            query_id: The id of Spark's query. It is used if generation 0 had no id yet.
            batch_id: Spark's number of the batch.
        """
        return Txn(self.app_id or query_id, self.first_batch + batch_id)

    def to_spark_batch_id(self, batch: int) -> int:
        """Converts the layer's number of a batch to Spark's number, which starts at 0 in each generation."""
        return batch - self.first_batch

    @property
    def last_planned_batch(self) -> int | None:
        """The layer's number of the last planned batch; None if none was planned."""
        planned = read_last_planned_batch(self.folder)
        return None if planned is None else self.first_batch + planned

    @property
    def next_batch(self) -> int:
        """The lowest batch number of the layer that no batch has used.

        A planned batch has used its number even if it never ran.
        """
        return self.first_batch if self.last_planned_batch is None else self.last_planned_batch + 1


class CheckpointGenerations:
    """All generations of a query's checkpoint: Spark's checkpoint folders that follow each other.

    Args:
        checkpoint: The folder of generation 0.
        layer: The layer's name, for error texts.
    """

    def __init__(self, checkpoint: str, layer: str) -> None:
        self._first = Path(checkpoint)
        self._folder = self._first / _FOLDER
        self._layer = layer

    @property
    def current_generation(self) -> CheckpointGeneration:
        """The generation in which the query continues.

        Raises:
            DataLossError: The generation's file, or Spark's metadata of generation 0, cannot be read.
        """
        number = max(
            (
                number
                for number in self._list_generation_numbers()
                if self._build_generation_note_path(number).is_file()
            ),
            default=0,
        )
        if not number:
            return CheckpointGeneration(0, self._first, app_id=self._read_app_id_of_first_generation())
        try:
            note = msgspec.json.decode(self._build_generation_note_path(number).read_bytes(), type=_GenerationNote)
        except (OSError, msgspec.MsgspecError) as error:
            raise self._build_damaged_checkpoint_error(self._build_generation_note_path(number), str(error)) from None
        return CheckpointGeneration(number, self._folder / str(number), note.first_batch, note.app_id)

    def read_last_known_app_id_and_batch(self) -> tuple[str | None, int]:
        """Returns the query's id (None if unknown) and its highest batch number (-1 if none).

        Reads all files of the checkpoint's generations that can be read, and ignores damaged ones.
        """
        notes = [
            (number, note)
            for number in sorted(self._list_generation_numbers())
            if (note := self._read_generation_note(number)) is not None
        ]
        numbers = [_find_last_spark_batch(self._first)]
        for number, note in notes:
            numbers.append(note.first_batch + _find_last_spark_batch(self._folder / str(number)))
        if notes:
            return notes[-1][1].app_id, max(numbers)
        with suppress(DataLossError):
            return self._read_app_id_of_first_generation(), max(numbers)
        return None, max(numbers)

    def create_next_generation(self, first_batch: int, app_id: str | None) -> CheckpointGeneration:
        """Creates the next generation of the checkpoint and returns it.

        Earlier generations may be damaged: they are not read.

        When the query first runs in the new generation, the caller must give Spark the starting offsets.

        Args:
            first_batch: The layer's number of the generation's first batch.
            app_id: Spark's query id in generation 0; None if it is lost.

        Raises:
            DataLossError: The id is lost. With a new id, Delta would write rows again that the tables already have.
        """
        if app_id is None:
            raise self._build_damaged_checkpoint_error(self._first / "metadata", "it is missing")
        number = max(self._list_generation_numbers(), default=0) + 1
        self._folder.mkdir(parents=True, exist_ok=True)
        write_atomically(
            self._build_generation_note_path(number), msgspec.json.encode(_GenerationNote(first_batch, app_id))
        )
        return self.current_generation

    def remove_superseded_generations(self) -> None:
        """Deletes all former generations but the first. Does nothing until the current one has committed a batch."""
        current = self.current_generation
        if read_last_committed_batch(current.folder) is None:
            return
        for number in self._list_generation_numbers():
            if number < current.number:
                shutil.rmtree(self._folder / str(number), ignore_errors=True)
                self._build_generation_note_path(number).unlink(missing_ok=True)

    def _read_generation_note(self, number: int) -> _GenerationNote | None:
        try:
            return msgspec.json.decode(self._build_generation_note_path(number).read_bytes(), type=_GenerationNote)
        except (OSError, msgspec.MsgspecError):
            return None

    def _build_generation_note_path(self, number: int) -> Path:
        return self._folder / f"{number}.json"

    def _list_generation_numbers(self) -> set[int]:
        """Returns the numbers of all generations that have a file or folder, even a damaged one.

        Generation 0 has none.
        """
        found = (_OF_ONE.fullmatch(entry.name) for entry in self._folder.glob("*"))
        return {int(one[1]) for one in found if one}

    def _read_app_id_of_first_generation(self) -> str | None:
        file = self._first / "metadata"
        try:
            return str(json.loads(file.read_text(encoding="utf-8"))["id"])
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError) as error:
            raise self._build_damaged_checkpoint_error(file, str(error)) from None

    def _build_damaged_checkpoint_error(self, file: Path, why: str) -> LakeError:
        place = file.relative_to(self._first)
        return DataLossError(
            f"{self._layer}: the checkpoint {self._first} is damaged: {place} cannot be read ({why})",
            why="No table was changed",
            fix=build_checkpoint_recovery_hint(self._layer),
        )


def _find_last_spark_batch(folder: Path) -> int:
    """Returns Spark's number of the last planned or committed batch in a checkpoint folder; -1 if there is none."""
    return max(
        (
            number
            for number in (read_last_planned_batch(folder), read_last_committed_batch(folder))
            if number is not None
        ),
        default=-1,
    )


def require_intact_checkpoint(checkpoint: str, layer: str) -> None:
    """Checks that the layer's checkpoint is new, or that every file that the query resumes from is intact.

    Raises:
        DataLossError: A file is damaged. The error names it and says what to do.
    """
    require_readable_checkpoint(str(CheckpointGenerations(checkpoint, layer).current_generation.folder), layer)
