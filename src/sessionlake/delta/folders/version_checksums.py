"""Writes a checksum file beside each commit of a table in a folder (Delta's protocol, "Version Checksum").

Spark writes these, delta-rs does not. Without one, Spark runs a job for each version that it reads, to find the table's
columns and properties in the log.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import reduce
from pathlib import Path

from msgspec.json import decode

from sessionlake.delta.folders.file_statistics import encode
from sessionlake.delta.folders.table_files import Action, read_add_actions

_LOG = logging.getLogger(__name__)
_FARTHEST = 100
"""An earlier checksum is searched within this many versions; each commit after it is read."""
_KEPT = 10
# Who lists another feature may want more noted, or other things.
_KNOWN = frozenset(
    {
        *("appendOnly", "changeDataFeed", "checkConstraints", "deletionVectors", "generatedColumns", "invariants"),
        *("timestampNtz", "variantType"),
    }
)


@dataclass(frozen=True)
class _VersionSummary:
    metadata: Action | None = None
    protocol: Action | None = None
    files: int = 0
    size: int = 0

    def behind(self, action: Action) -> _VersionSummary:
        """As the action leaves it."""
        if file := action.get("add"):
            return replace(self, files=self.files + 1, size=self.size + file["size"])
        if file := action.get("remove"):
            return replace(self, files=self.files - 1, size=self.size - file["size"])
        return replace(
            self, metadata=action.get("metaData", self.metadata), protocol=action.get("protocol", self.protocol)
        )


def write_checksum(folder: Path, version: int) -> None:
    """Writes the checksum of a committed version, if everything that it needs is available. It is optional for readers.

    Args:
        folder: the table's.
    """
    log = folder / "_delta_log"
    try:
        before, at = _nearest(log, version)
        if before is None:
            return
        for number in range(at + 1, version + 1):
            actions = [decode(line) for line in (log / f"{number:020}.json").read_bytes().splitlines()]
            before = reduce(_VersionSummary.behind, actions, before)
            if _adds_again(actions):
                sizes = [add["size"] for add in read_add_actions(folder, number)]
                before = replace(before, files=len(sizes), size=sum(sizes))
        if before.metadata is not None and before.protocol is not None and _is_known(before.protocol):
            _write(log, version, before)
    except (OSError, ValueError, KeyError, TypeError) as error:  # as of a file whose size a commit does not tell
        _LOG.debug("%s: version %s is left without a checksum: %s", folder, version, error)


def _adds_again(actions: Iterable[Action]) -> bool:
    """True if a commit may name files that are there already, as one that corrects their statistics does."""
    own = [*actions]
    named = any("add" in action and not action["add"]["dataChange"] for action in own)
    return named and not any("remove" in action for action in own)


def _nearest(log: Path, version: int) -> tuple[_VersionSummary | None, int]:
    """The nearest version before with a whole checksum, or none at all, before the first; None if that is far."""
    for number in range(version - 1, max(-1, version - _FARTHEST), -1):
        with suppress(OSError, ValueError, KeyError):  # there is none, or a power cut has left it empty
            content = decode((log / f"{number:020}.crc").read_bytes())
            return _VersionSummary(
                content["metadata"], content["protocol"], content["numFiles"], content["tableSizeBytes"]
            ), number
    return (_VersionSummary(), -1) if version < _FARTHEST else (None, -1)


def _is_known(protocol: Action) -> bool:
    return _KNOWN.issuperset(protocol.get("writerFeatures") or ())


def _write(log: Path, version: int, found: _VersionSummary) -> None:
    content = {
        "tableSizeBytes": found.size,
        "numFiles": found.files,
        "numMetadata": 1,
        "numProtocol": 1,
        "metadata": found.metadata,
        "protocol": found.protocol,
    }
    written = log / f".{uuid.uuid4()}.crc"
    written.write_bytes(encode(content) + b"\n")
    written.replace(log / f"{version:020}.crc")
    # Readers list all checksums to find the newest, and never use old ones.
    (log / f"{version - _KEPT:020}.crc").unlink(missing_ok=True)
