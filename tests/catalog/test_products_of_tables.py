"""Products of a processor's table in a catalog: kept up, replayed, and made anew by another declaration."""

from __future__ import annotations

from spark.test_products_of_tables import (  # noqa: F401 - pytest runs what is imported again here
    fills,
    test_a_replay_changes_nothing_and_another_declaration_is_refused_until_it_is_made_again,
)
