"""The errors that an operator reads. `docs/reference/errors.md` lists all their texts."""

from __future__ import annotations

LAST_RESORT = (
    "As a last resort, an empty home (make clean-home) starts over from what Kafka still holds: whatever it no longer "
    "holds is lost then"
)
"""Text of the only remedy that deletes data. Errors end with it if no other remedy exists."""

PLACE = "where: "
"""Start of the exception note that says where the exception was raised."""


class SessionlakeError(Exception):
    """Root of every error that an operator reads. The command line prints its text without a traceback.

    The text has up to three parts: what happened, why that is a problem, and what to do. Each part is a sentence or two
    without the last period. Write the parts as literals or f-strings in the `raise` statement, because
    `docs/reference/errors.md` is generated from them.

    Args:
        what: What happened, with the values.
        why: Why that is a problem. Empty if `what` already says it.
        fix: What to do next: the command to run, or the setting to correct.

    Attributes:
        exit_code: Exit code of the command line.
    """

    exit_code = 1

    def __init__(self, what: str, *, why: str = "", fix: str = "") -> None:
        super().__init__(". ".join(part for part in (what, why, fix) if part))
        self.what, self.why, self.fix = what, why, fix


def add_failure_location_note(error: BaseException, location: str) -> None:
    """Adds the note `where: <location>` to an exception that is raised in Spark, which passes on no traceback."""
    error.add_note(f"{PLACE}{location}")


class ConfigError(SessionlakeError):
    """The configuration is invalid: correct the named key and start again. Nothing was changed."""

    exit_code = 2


class UsageError(SessionlakeError):
    """The arguments of a command are invalid: the text says what the command accepts. Nothing was changed."""

    exit_code = 2


class MachineSetupError(SessionlakeError):
    """This machine lacks something, such as Java, jars or a writable home: install or correct what the text names."""


class ClaimedByOtherProcessError(SessionlakeError):
    """Another process is doing this work: wait for the process, or stop it. The text names it. Nothing was changed."""


class BrokerError(SessionlakeError):
    """Kafka cannot be reached or started, or no longer has a topic: check the broker that the text names."""


class UnknownTopicError(BrokerError):
    """Kafka does not have the topic: it was deleted, or not created yet."""


class KafkaAccessError(SessionlakeError):
    """Kafka refuses this client: correct `kafka.security`, or the client's rights in Kafka."""


class SchemaRegistryError(SessionlakeError):
    """The schema registry gives no answer: start it or correct its address, then run again. Nothing was committed."""


class DatabricksWorkspaceError(SessionlakeError):
    """A Databricks workspace gives no answer, refuses the request, lacks what the text names, or a run in it failed."""


class LakeError(SessionlakeError):
    """A table or checkpoint is not in the state that a job needs: do what the text says. No table was changed."""


class InterruptedOperationError(LakeError):
    """An operation that replaces tables or states was interrupted: run the command that the text names."""


class DataLossError(LakeError):
    """Stored data is missing or damaged: follow the remedy at the end of the text. No table was changed."""


class NotFoundError(SessionlakeError):
    """The lake does not contain what you asked for, or not yet: the text says what it does contain."""


class OffsetHoleError(LakeError):
    """Offsets are missing or occur twice: messages are lost, the topic was recreated, or an archive was read twice."""


class UnreadableMessageError(LakeError):
    """Spark cannot read a message: skip it with the command in the text, or correct the topic."""


class TopicChangedError(OffsetHoleError):
    """A topic was deleted, recreated or truncated: set `kafka.on_topic_change` to say what bronze does about it."""


class ProcessorError(SessionlakeError):
    """A user-defined processor failed, and `on_error` is `fail`: correct it, run it again. Nothing was committed."""


class IntegrityViolationError(SessionlakeError):
    """A session broke its integrity class, and `on_violation` is `fail`. Nothing of the batch was committed."""

    exit_code = 3
