"""Writes a checksum file beside each commit of a table in a folder (Delta's protocol, "Version Checksum").

Spark writes such a file with each commit, delta-rs does not. If a version has none, Spark runs a job to find the
table's columns and properties in the log.
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

from sessionlake.delta.folders.file_statistics import encode_log_json
from sessionlake.delta.folders.table_files import Action, read_add_actions

_LOG = logging.getLogger(__name__)
_FARTHEST = 100
"""The checksum is computed from an earlier one, at most this many versions back, and from the commits since then."""
_KEPT = 10
# A table with another feature may need more content in its checksum, so it gets none.
_KNOWN = frozenset(
    {
        *("appendOnly", "changeDataFeed", "checkConstraints", "deletionVectors", "generatedColumns", "invariants"),
        *("timestampNtz", "variantType"),
    }
)


@dataclass(frozen=True)
class _VersionSummary:
    """What the checksum file of a table's version contains.

    Attributes:
        metadata: the `metaData` action that holds at this version; None if there is none.
        protocol: the `protocol` action that holds at this version; None if there is none.
        files: number of data files.
        size: size of all data files in bytes.
    """

    metadata: Action | None = None
    protocol: Action | None = None
    files: int = 0
    size: int = 0

    def add_action_to_summary(self, action: Action) -> _VersionSummary:
        """Returns what the checksum contains after one more action of a commit."""
        if file := action.get("add"):
            return replace(self, files=self.files + 1, size=self.size + file["size"])
        if file := action.get("remove"):
            return replace(self, files=self.files - 1, size=self.size - file["size"])
        return replace(
            self, metadata=action.get("metaData", self.metadata), protocol=action.get("protocol", self.protocol)
        )


def write_version_checksum_file(folder: Path, version: int) -> None:
    """Writes the checksum file of a committed version of a table.

    Writes none if an error occurs, if no earlier checksum is near, or if the table has unknown features. This is
    allowed, since checksums are optional.
    """
    log = folder / "_delta_log"
    try:
        before, at = _read_last_summary_before(log, version)
        if before is None:
            return
        for number in range(at + 1, version + 1):
            actions = [decode(line) for line in (log / f"{number:020}.json").read_bytes().splitlines()]
            before = reduce(_VersionSummary.add_action_to_summary, actions, before)
            if _may_add_existing_files_again(actions):
                sizes = [add["size"] for add in read_add_actions(folder, number)]
                before = replace(before, files=len(sizes), size=sum(sizes))
        if (
            before.metadata is not None
            and before.protocol is not None
            and _has_supported_checksum_features(before.protocol)
        ):
            _write_checksum_file(log, version, before)
    except (OSError, ValueError, KeyError, TypeError) as error:  # as if a commit does not have a file's size
        _LOG.debug("%s: version %s is left without a checksum: %s", folder, version, error)


def _may_add_existing_files_again(actions: Iterable[Action]) -> bool:
    """True if a commit may add files that the table already has, as commits with corrected statistics do.

    Args:
        actions: all actions of the commit.
    """
    own = [*actions]
    named = any("add" in action and not action["add"]["dataChange"] for action in own)
    return named and not any("remove" in action for action in own)


def _read_last_summary_before(log: Path, version: int) -> tuple[_VersionSummary | None, int]:
    """Returns the content of the nearest readable checksum file before `version`, and the version of that file.

    If there is none, and `version` is one of the first 100, the content is empty and the version is -1: the log is then
    read from its start. For later versions, the content is None.

    Args:
        log: the folder of the table's log.
        version: a version of the table.
    """
    for number in range(version - 1, max(-1, version - _FARTHEST), -1):
        with suppress(OSError, ValueError, KeyError):  # the file does not exist, or is empty after a power cut
            content = decode((log / f"{number:020}.crc").read_bytes())
            return _VersionSummary(
                content["metadata"], content["protocol"], content["numFiles"], content["tableSizeBytes"]
            ), number
    return (_VersionSummary(), -1) if version < _FARTHEST else (None, -1)


def _has_supported_checksum_features(protocol: Action) -> bool:
    return _KNOWN.issuperset(protocol.get("writerFeatures") or ())


def _write_checksum_file(log: Path, version: int, summary: _VersionSummary) -> None:
    content = {
        "tableSizeBytes": summary.size,
        "numFiles": summary.files,
        "numMetadata": 1,
        "numProtocol": 1,
        "metadata": summary.metadata,
        "protocol": summary.protocol,
    }
    written = log / f".{uuid.uuid4()}.crc"
    written.write_bytes(encode_log_json(content) + b"\n")
    written.replace(log / f"{version:020}.crc")
    # Readers list all checksums to find the newest, and never use old ones.
    (log / f"{version - _KEPT:020}.crc").unlink(missing_ok=True)
