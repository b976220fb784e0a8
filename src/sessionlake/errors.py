"""The errors that an operator reads. `docs/reference/errors.md` lists their texts with cause and remedy."""

from __future__ import annotations

LAST_RESORT = (
    "As a last resort, an empty home (make clean-home) starts over from what Kafka still holds: whatever it no longer "
    "holds is lost then"
)
"""What deletes data is never the first thing to do; where nothing else is left, it is told with its price."""

PLACE = "where: "
"""How the note of an exception begins that says where it was raised."""


class SessionlakeError(Exception):
    """Root of every error that an operator reads. The command line prints its text without a traceback.

    The text has up to three parts, each of whole sentences and without its last period. `docs/reference/errors.md` is
    made from these parts, so they stand at the `raise` as literals or f-strings.

    Args:
        what: What happened, with the values.
        why: Why that is a problem. Empty where `what` says it already.
        fix: What to do next: the command, or the setting to correct.
    """

    exit_code = 1

    def __init__(self, what: str, *, why: str = "", fix: str = "") -> None:
        super().__init__(". ".join(part for part in (what, why, fix) if part))
        self.what, self.why, self.fix = what, why, fix


def note_place(error: BaseException, place: str) -> None:
    """Notes where an exception was raised, so that it is told where Spark passes on its text alone."""
    error.add_note(f"{PLACE}{place}")


class ConfigError(SessionlakeError):
    """The configuration cannot be used: mend the named key and start again. Nothing was touched."""

    exit_code = 2


class UsageError(SessionlakeError):
    """The command line cannot be used as given: the text says which words it takes. Nothing was touched."""

    exit_code = 2


class MachineError(SessionlakeError):
    """This machine lacks something (Java, jars, a writable home): install or correct what is named."""


class ClaimedError(SessionlakeError):
    """Another process does what this one was to do: the text says who; wait for it, or stop it. Nothing was harmed."""


class BrokerError(SessionlakeError):
    """Kafka cannot be reached or started, or lost a topic: check the broker named in the text."""


class UnknownTopicError(BrokerError):
    """Kafka has a topic no longer, or not yet."""


class AccessError(SessionlakeError):
    """Kafka does not let this client in, or not see what it needs: correct `kafka.security`, or its rights there."""


class RegistryError(SessionlakeError):
    """The schema registry cannot be asked: start or correct what is named and run again; nothing was committed."""


class RemoteError(SessionlakeError):
    """A Databricks workspace cannot be asked, refuses, or lacks what is named, or a run there failed: see the text."""


class LakeError(SessionlakeError):
    """A table or checkpoint does not fit what the job expects; no table was changed."""


class InterruptedOperationError(LakeError):
    """An operation that replaces tables or states was interrupted: run the command that the text names."""


class LossError(LakeError):
    """Something stored is gone or damaged: do what the text ends with. No table was changed."""


class NotThereError(SessionlakeError):
    """What was asked for is not in the lake, or not yet: the text says what is."""


class OffsetHoleError(LakeError):
    """Offsets are missing, or come twice: messages are gone, the topic was recreated, or an archive came once more."""


class UnreadableMessageError(LakeError):
    """Spark cannot deliver a message: have bronze skip it by the command in the text, or correct the topic."""


class TopicChangedError(OffsetHoleError):
    """A topic was deleted, made anew or cut, and the rule is `fail`: decide by `kafka.on_topic_change`."""


class ProcessorError(SessionlakeError):
    """A user-defined processor failed under `fail`; nothing of the batch was committed. Correct it and run it again."""


class IntegrityViolationError(SessionlakeError):
    """A session broke its integrity class under `on_violation: fail`; nothing of the batch was committed."""

    exit_code = 3
