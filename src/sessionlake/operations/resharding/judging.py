"""Moves the states of silver and of processors into other shards. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sessionlake.integrity.resharding import group_by_shard, join_states, select_sessions, session_keys_of
from sessionlake.integrity.rules import RuleLookup
from sessionlake.integrity.state import ShardState
from sessionlake.processors.memory import ProcessorMemory, SessionState, next_due, stored_processor_name
from sessionlake.protocol.arrow import split_session_key
from sessionlake.silver.fold.process import join_state_parts, split_state_parts


@dataclass(frozen=True)
class JudgingResharder:
    """Implements `streaming.resharded.Resharder` for the states of judging and of processors.

    Attributes:
        rules: The integrity rules of the topics.
        shards: The new number of shards.
    """

    rules: RuleLookup
    shards: int

    def names(self, shard: int, state: bytes | None) -> list[tuple[str, bytes | None]]:
        """Returns topic and key of each session in a state."""
        del shard
        parts = (split_session_key(key) for key in self._keys(*self._decoded(state)))
        return [(topic, session.encode()) for topic, _, session in parts]

    def split(self, shard: int, state: bytes | None, targets: Sequence[int]) -> dict[int, bytes]:
        """Splits a shard's state by session. Returns the part of each target shard."""
        del shard
        judging, memory = self._decoded(state)
        keys, stored = self._keys(judging, memory), split_state_parts(state)[1]
        parts = {}
        for target, mine in group_by_shard(keys, dict(zip(keys, targets, strict=True))).items():
            sessions = {key: memory.sessions[key] for key in mine if key in memory.sessions}
            part = select_sessions(judging, mine, next_due(sessions, self._timeout_of)).encode(
                self.rules.capture.declared
            )
            own_memory = None if stored is None else self._encoded(sessions, stored_processor_name(stored))
            parts[target] = join_state_parts(part, own_memory)
        return parts

    def join(self, parts: Sequence[bytes]) -> bytes:
        """Joins the parts of a new shard into one state."""
        states = [split_state_parts(part) for part in parts]
        state = join_states(ShardState.decode(judging, self.rules.capture.declared) for judging, _ in states)
        memories = [memory for _, memory in states if memory is not None]
        sessions = {k: v for memory in memories for k, v in ProcessorMemory.decode(memory).sessions.items()}
        joined_memory = self._encoded(sessions, stored_processor_name(memories[0])) if memories else None
        return join_state_parts(state.encode(self.rules.capture.declared), joined_memory)

    def _encoded(self, sessions: dict[str, SessionState], processor: str) -> bytes:
        return ProcessorMemory(next_due(sessions, self._timeout_of), sessions).encode(processor, self.shards)

    def _decoded(self, state: bytes | None) -> tuple[ShardState, ProcessorMemory]:
        judging, memory = split_state_parts(state)
        return ShardState.decode(judging, self.rules.capture.declared), ProcessorMemory.decode(memory)

    def _keys(self, judging: ShardState, memory: ProcessorMemory) -> list[str]:
        return list(dict.fromkeys([*session_keys_of(judging), *memory.sessions]))

    def _timeout_of(self, topic: str) -> int:
        return self.rules.find_rules(topic).session_timeout
