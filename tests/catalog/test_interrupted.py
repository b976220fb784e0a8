"""Operations that replace a catalog's tables or states, interrupted at each step: the error names what ends them."""

from __future__ import annotations

from typing import Any

import pytest

from sessionlake.settings.model import Settings
from spark.test_interrupted import (  # noqa: F401 - pytest runs what is imported again here
    fill,
    test_a_forgetting_is_given_up_until_something_is_erased_and_then_finished_by_who_does_not_know_the_session,
    test_a_rebuild_of_a_processor_is_given_up_before_it_has_replaced_its_table_and_finished_or_begun_again_after_that,
    test_a_rebuild_of_silver_is_given_up_before_it_has_replaced_a_table_and_finished_or_begun_again_after_that,
    test_a_resharding_is_finished_though_what_it_prepared_is_lost_or_ended_with_the_layers_that_it_has_moved,
)

pytestmark = [pytest.mark.soak, pytest.mark.timeout(900)]


@pytest.fixture
def settings(spark: Any, location: dict[str, Any]) -> Settings:
    """A catalog in which every layer has read one batch."""
    return fill(spark, location)
