"""Products kept for a time in a catalog: removed, told of and counted as in folders."""

from __future__ import annotations

import pytest

from spark.test_expiry import (  # noqa: F401 - pytest runs what is imported again here
    feed,
    test_what_died_while_it_was_removed_is_removed_and_counted_once,
    test_who_asks_for_what_is_gone_is_reported_and_a_rebuild_goes_by_what_is_kept_now,
)

pytestmark = pytest.mark.soak
