"""Describes a proposed feed to the user: why its settings were chosen, and what the sample does not show."""

from __future__ import annotations

from sessionlake.feeds.inference.order import ProposedSetting
from sessionlake.feeds.inference.sample import SampledMessages


def describe_proposed_settings(
    session: ProposedSetting, time: ProposedSetting, order: ProposedSetting
) -> dict[str, str]:
    """Returns why each setting was chosen, and what else is possible, by the setting's name."""
    found = {}
    for name, choice in (("session", session), ("time", time), ("order", order)):
        also = f"also possible: {', '.join(choice.others)}" if choice.others else ""
        text = "; ".join(part for part in (choice.why, also) if part)
        if text and choice.setting is not None:
            found[name] = text
    return found


def list_notes_for_user(sample: SampledMessages, *, has_snapshot: bool, is_ordered: bool) -> list[str]:
    """Returns notes about what is missing in the sample, and about messages that the feed does not read."""
    notes = []
    if not has_snapshot:
        notes.append("no kind of message is a snapshot, so tables start with any message")
    if not is_ordered:
        notes.append("no number gives the order, so messages apply as they arrive, and a missing one is not noticed")
    if sample.others:
        notes.append(f"messages that are neither JSON objects nor arrays, and go to quarantine: {len(sample.others):,}")
    if sample.tombstones:
        notes.append(f"tombstones, which are ignored: {len(sample.tombstones):,}")
    return notes
