"""Moves the states of silver and of processors into other shards. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sessionlake.integrity.resharding import (
    copy_state_of_sessions,
    group_session_keys_by_shard,
    join_shard_states,
    list_session_and_chain_keys,
)
from sessionlake.integrity.rules import JudgingRuleLookup
from sessionlake.integrity.state import ShardState
from sessionlake.processors.shard_state import (
    ProcessorShardState,
    SessionState,
    find_next_due_time_by_partition,
    read_stored_processor_name,
)
from sessionlake.protocol.arrow import split_session_key
from sessionlake.silver.fold.process import join_shard_state, split_shard_state


@dataclass(frozen=True)
class SessionStateResharder:
    """Moves the states of silver or of a processor into another number of shards.

    Attributes:
        rules: The integrity rules of the topics.
        shards: The new number of shards.
    """

    rules: JudgingRuleLookup
    shards: int

    def list_sessions(self, shard: int, state: bytes | None) -> list[tuple[str, bytes | None]]:
        """Returns topic and id of each session in a state. Their hash gives the session's new shard.

        The id is None if all sessions of the topic must be in one shard, because they share a counter.
        """
        del shard
        parts = (
            split_session_key(key)
            for key in self._list_session_keys_in_state(*self._decode_judging_and_processor_state(state))
        )
        rules = self.rules.find_judging_rules
        return [(topic, None if rules(topic).has_chains else session.encode()) for topic, _, session in parts]

    def split_state(self, shard: int, state: bytes | None, targets: Sequence[int]) -> dict[int, bytes]:
        """Splits a shard's state by session.

        Args:
            shard: The old shard.
            state: Its encoded state; None if it has none.
            targets: The new shard of each session that `list_sessions` returned, in the same order.

        Returns:
            The encoded part of each new shard, by its number.
        """
        del shard
        judging, memory = self._decode_judging_and_processor_state(state)
        keys, stored = self._list_session_keys_in_state(judging, memory), split_shard_state(state)[1]
        parts = {}
        for target, mine in group_session_keys_by_shard(keys, dict(zip(keys, targets, strict=True))).items():
            sessions = {key: memory.sessions[key] for key in mine if key in memory.sessions}
            part = copy_state_of_sessions(
                judging, mine, find_next_due_time_by_partition(sessions, self._find_session_timeout)
            ).encode_shard_state(self.rules.capture.declared_columns)
            own_memory = (
                None if stored is None else self._encode_processor_state(sessions, read_stored_processor_name(stored))
            )
            parts[target] = join_shard_state(part, own_memory)
        return parts

    def join_states(self, parts: Sequence[bytes]) -> bytes:
        """Returns the state of a new shard, joined from its parts that came from old shards."""
        states = [split_shard_state(part) for part in parts]
        state = join_shard_states(
            ShardState.decode_shard_state(judging, self.rules.capture.declared_columns) for judging, _ in states
        )
        memories = [memory for _, memory in states if memory is not None]
        sessions = {
            k: v for memory in memories for k, v in ProcessorShardState.decode_processor_state(memory).sessions.items()
        }
        joined_memory = (
            self._encode_processor_state(sessions, read_stored_processor_name(memories[0])) if memories else None
        )
        return join_shard_state(state.encode_shard_state(self.rules.capture.declared_columns), joined_memory)

    def _encode_processor_state(self, sessions: dict[str, SessionState], processor: str) -> bytes:
        """Returns the encoded state of a processor: its sessions by key, and when their timeouts are due."""
        return ProcessorShardState(
            find_next_due_time_by_partition(sessions, self._find_session_timeout), sessions
        ).encode_processor_state(processor, self.shards)

    def _decode_judging_and_processor_state(self, state: bytes | None) -> tuple[ShardState, ProcessorShardState]:
        """Returns the two parts of a shard's stored state: that of judging, and that of a processor.

        Both are empty for None.
        """
        judging, memory = split_shard_state(state)
        return ShardState.decode_shard_state(
            judging, self.rules.capture.declared_columns
        ), ProcessorShardState.decode_processor_state(memory)

    def _list_session_keys_in_state(self, judging: ShardState, memory: ProcessorShardState) -> list[str]:
        """Returns the keys of all sessions that are in the state of judging or of the processor."""
        return list(dict.fromkeys([*list_session_and_chain_keys(judging), *memory.sessions]))

    def _find_session_timeout(self, topic: str) -> int:
        """Returns the session timeout of a topic in milliseconds."""
        return self.rules.find_judging_rules(topic).session_timeout
