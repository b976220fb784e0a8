"""What a start asks of a catalog's tables is asked once, and is what they have."""

from __future__ import annotations

from typing import Any

from sessionlake.delta.lake import Lake
from sessionlake.delta.schemas.names import RULES
from sessionlake.settings.model import Settings


def test_what_is_remembered_of_a_table_is_what_it_has_until_the_block_is_left(spark: Any, location: dict[str, Any]):
    lake, other = Lake(Settings(**location)), Lake(Settings(**location))
    with lake.storage.remembering():
        lake.ensure(spark, [RULES])
        lake.set_property(spark, RULES, "sessionlake.one", "1")
        with lake.storage.remembering():
            remembered = lake.storage.properties(spark, RULES)
        assert remembered.items() <= other.storage.properties(spark, RULES).items()
        assert remembered["sessionlake.one"] == "1"
        other.set_property(spark, RULES, "sessionlake.two", "2")
        assert lake.storage.properties(spark, RULES) == remembered
    assert lake.storage.properties(spark, RULES)["sessionlake.two"] == "2"
    with lake.storage.remembering():
        assert lake.exists(spark, RULES)
        lake.drop(spark, RULES)
        assert not lake.exists(spark, RULES)
