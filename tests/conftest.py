"""Fixtures for every kind of test: settings over a home of their own, one Spark session, one real broker."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import hypothesis
import pytest

from sessionlake.settings.model import KafkaSettings, Settings
from support import class_archive, limits
from support.seeds import leave_out_long_tests
from support.sessions import hive, without_generated_code

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from sessionlake.local.broker import BrokerStatus

# Processes that tests start import what tests do.
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(Path(__file__).parent), os.environ.get("PYTHONPATH")]))
os.environ.setdefault(class_archive.JAVA_OPTIONS, class_archive.BRIEF)

# A shell starts background jobs with SIGINT ignored, and children inherit that: tests of Ctrl-C need the default.
signal.signal(signal.SIGINT, signal.default_int_handler)

# How long a case takes says more of the machine than of the code. `make soak` takes the second profile.
hypothesis.settings.register_profile("usual", deadline=None, max_examples=40)
hypothesis.settings.register_profile("thorough", deadline=None, max_examples=500)
hypothesis.settings.load_profile("usual")

_LONGEST = {
    "test_law.py",
    "test_demo.py",
    "test_bundle.py",
    "test_crash.py",
    "test_rebuild.py",
    "test_gold.py",
    "test_silver_law.py",
}
_PASSED_ON = {"SESSIONLAKE_CACHE", "SESSIONLAKE_DEBUG"}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What starts a JVM or a broker says so by the fixtures it takes. The longest files come first."""
    items.sort(key=lambda item: item.path.name not in _LONGEST)
    for item in items:
        taken = getattr(item, "fixturenames", ())
        for name in ("spark", "broker"):
            if name in taken:
                item.add_marker(name)


def pytest_configure(config: pytest.Config) -> None:
    """Long cases need not be collected in a run without long tests."""
    if config.option.markexpr == "not soak":
        leave_out_long_tests()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--limits", type=int, help="force every limit on a size to so much above the least it can be")


@pytest.fixture(autouse=True)
def _forced_limits(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """With `--limits`, every test takes the way of what is large."""
    above = request.config.getoption("--limits")
    if above is not None:
        limits.force(monkeypatch, above)


@pytest.fixture(autouse=True, scope="session")
def _no_settings_from_outside() -> Iterator[None]:
    """A developer's own SESSIONLAKE_ variables must not change what the tests see; the jar cache is shared."""
    found = {name: os.environ[name] for name in os.environ if name.startswith("SESSIONLAKE_")}
    for name in found.keys() - _PASSED_ON:
        del os.environ[name]
    yield
    os.environ.update(found)


@pytest.fixture
def location(tmp_path: Path) -> dict[str, Any]:
    """The settings that say where the tables are: here a fresh home; in `tests/catalog` a catalog."""
    return {"home": tmp_path / "home"}


@pytest.fixture(scope="module")
def module_location(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Like `location`, for the tests of a module together."""
    return {"home": tmp_path_factory.mktemp("module") / "home"}


@pytest.fixture
def settings(location: dict[str, Any]) -> Settings:
    """The defaults, in a fresh place."""
    return Settings(**location)


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """The session that the package itself builds, over a home that no test writes tables into.

    It has Hive's catalog, on a database in memory, and so serves both kinds of storage; a laptop's own costs as much.
    """
    from sessionlake.spark.session import stop_spark

    home = Settings(home=tmp_path_factory.mktemp("spark-home"))
    yield without_generated_code(home, "tests", hive("memory:metastore"))
    stop_spark()  # also if a command that a test ran in this process has stopped it already


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerStatus]:
    """A running broker on a free port; tests keep apart by topic names."""
    from sessionlake.local.broker import start_broker, stop_broker
    from sessionlake.local.broker_config import find_free_port as unused

    kafka = KafkaSettings(bootstrap_servers=f"127.0.0.1:{unused()}")
    own = Settings(home=tmp_path_factory.mktemp("broker-home"), kafka=kafka)
    try:
        yield start_broker(own)
    finally:
        stop_broker(own)


@pytest.fixture
def broker_settings(broker: BrokerStatus, location: dict[str, Any]) -> Settings:
    """Settings with a fresh place that read from the running broker."""
    return Settings(**location, kafka=KafkaSettings(bootstrap_servers=broker.bootstrap_servers))


@pytest.fixture
def free_port() -> int:
    """A port that nothing listens on."""
    from sessionlake.local.broker_config import find_free_port as unused

    return unused()
