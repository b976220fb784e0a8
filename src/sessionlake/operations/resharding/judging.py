"""How the states of silver and of processors come into other shards. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sessionlake.integrity.resharding import group_by_shard, join_states, select_sessions, session_keys_of
from sessionlake.integrity.rules import RuleBook
from sessionlake.integrity.state import ShardState
from sessionlake.processors.memory import ProcessorMemory, SessionState, next_due, stored_processor_name
from sessionlake.protocol.arrow import parts_of_key
from sessionlake.silver.fold.process import join, split


@dataclass(frozen=True)
class JudgingResharder:
    """What judging keeps of sessions, and what a processor does; see `streaming.resharded.Resharder`.

    Attributes:
        rules: of the topics.
        shards: how many there will be.
    """

    rules: RuleBook
    shards: int

    def names(self, shard: int, state: bytes | None) -> list[tuple[str, bytes | None]]:
        """The sessions: topic and key."""
        del shard
        parts = (parts_of_key(key) for key in self._keys(*self._decoded(state)))
        return [(topic, session.encode()) for topic, _, session in parts]

    def split(self, shard: int, state: bytes | None, targets: Sequence[int]) -> dict[int, bytes]:
        """See `Resharder`."""
        del shard
        judging, memory = self._decoded(state)
        keys, stored = self._keys(judging, memory), split(state)[1]
        parts = {}
        for target, mine in group_by_shard(keys, dict(zip(keys, targets, strict=True))).items():
            kept = {key: memory.sessions[key] for key in mine if key in memory.sessions}
            own = select_sessions(judging, mine, next_due(kept, self._timeout_of)).encode(self.rules.capture.declared)
            remembered = None if stored is None else self._encoded(kept, stored_processor_name(stored))
            parts[target] = join(own, remembered)
        return parts

    def join(self, parts: Sequence[bytes]) -> bytes:
        """See `Resharder`."""
        found = [split(part) for part in parts]
        joined = join_states(ShardState.decode(judging, self.rules.capture.declared) for judging, _ in found)
        memories = [memory for _, memory in found if memory is not None]
        sessions = {k: v for memory in memories for k, v in ProcessorMemory.decode(memory).sessions.items()}
        remembered = self._encoded(sessions, stored_processor_name(memories[0])) if memories else None
        return join(joined.encode(self.rules.capture.declared), remembered)

    def _encoded(self, sessions: dict[str, SessionState], processor: str) -> bytes:
        return ProcessorMemory(next_due(sessions, self._timeout_of), sessions).encode(processor, self.shards)

    def _decoded(self, state: bytes | None) -> tuple[ShardState, ProcessorMemory]:
        judging, memory = split(state)
        return ShardState.decode(judging, self.rules.capture.declared), ProcessorMemory.decode(memory)

    def _keys(self, judging: ShardState, memory: ProcessorMemory) -> list[str]:
        return list(dict.fromkeys([*session_keys_of(judging), *memory.sessions]))

    def _timeout_of(self, topic: str) -> int:
        return self.rules.of(topic).session_timeout
