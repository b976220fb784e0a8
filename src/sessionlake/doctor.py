"""Is everything here that is needed, and do the books balance? One line a check, each with its remedy."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from sessionlake.config import Settings
from sessionlake.errors import SessionlakeError


@dataclass(frozen=True)
class Finding:
    """The outcome of one check: `level` is ok, warn or fail."""

    level: str
    what: str
    detail: str


def examine(settings: Settings) -> list[Finding]:
    """Runs every check; a check that fails does not keep the others from running."""
    checks: list[tuple[str, Callable[[Settings], str]]] = [
        ("java", _java),
        ("jars", _jars),
        ("home", _home),
        ("broker", _broker),
        ("ledger", _ledger),
        ("checkpoints", _checkpoints),
    ]
    findings = [Finding("ok", "config", f"topics {settings.kafka.topic_pattern}, class {settings.capture.integrity}")]
    for what, check in checks:
        try:
            findings.append(Finding("ok", what, check(settings)))
        except SessionlakeError as error:
            # A broker that is down stops nothing but bronze: worth a warning.
            findings.append(Finding("warn" if what == "broker" else "fail", what, str(error)))
    return findings


def _java(_: Settings) -> str:
    from sessionlake.runtime.java import require_java

    return str(require_java())


def _jars(_: Settings) -> str:
    from sessionlake.runtime.jars import spark_jars

    return f"{len(spark_jars())} jars for Spark cached"


def _home(settings: Settings) -> str:
    from sessionlake.runtime.home import require_home

    return str(require_home(settings))


def _broker(settings: Settings) -> str:
    from sessionlake.runtime.kafka import require_broker

    require_broker(settings)
    return f"answers at {settings.kafka.bootstrap_servers}"


def _ledger(settings: Settings) -> str:
    from sessionlake.lake.status import read_status
    from sessionlake.lake.tables import Lake
    from sessionlake.runtime.spark import spark_session

    spark, lake = spark_session(settings, app="doctor"), Lake(settings)
    layers = read_status(spark, lake, None)
    for layer in layers:
        if not layer.balanced:
            raise SessionlakeError(
                f"{layer.layer}: messages in are not applied + duplicates + quarantined + held; "
                "compare ops.ledger's rows and report this as a fault of sessionlake"
            )
        if layer.behind is not None and layer.behind < 0:
            raise SessionlakeError(f"{layer.layer}: holds {-layer.behind} messages more than its source")
    return "every layer's books balance: messages = applied + duplicates + quarantined + held"


def _checkpoints(settings: Settings) -> str:
    from sessionlake.errors import LakeError

    found = []
    for layer in ("bronze", "silver", "gold"):
        folder = Path(settings.checkpoint(layer))
        if not folder.is_dir():
            continue
        if not (folder / "metadata").is_file():
            raise LakeError(f"{folder} has no metadata file: restore the checkpoint, or start over with an empty home")
        found.append(layer)
    return f"present: {', '.join(found) or 'none yet'}"
