"""The life of topics over a real broker, with what bronze knows of it in a catalog."""

from __future__ import annotations

import pytest

from integration.test_topics import (  # noqa: F401 - pytest runs what is imported again here
    test_a_batch_in_the_table_that_goes_over_what_the_ledger_has_is_refused_at_every_start,
    test_a_batch_in_the_tables_is_not_read_again_when_kafka_has_deleted_it_since,
    test_a_batch_that_died_before_another_topic_came_is_read_with_it,
    test_a_normal_restart_and_a_new_topic_stay_in_their_generation,
    test_a_process_killed_between_the_note_of_a_generation_and_its_start_goes_on_in_it,
    test_a_topic_created_between_looking_and_starting_is_read_and_stops_nothing,
    test_a_topic_made_again_with_more_messages_than_the_old_is_refused_forgotten_or_read_on_behind_it,
    test_a_topic_that_goes_while_kafka_is_asked_about_it_stops_no_start,
    test_an_error_behind_a_batch_that_is_in_the_tables_is_reported,
    test_generations_that_die_half_done_one_after_the_other_leave_every_message_once,
    test_live_a_deleted_topic_is_forgotten_a_partition_is_added_and_a_quiet_topic_speaks_again,
    test_messages_planned_but_not_captured_when_their_topic_was_made_again_are_recorded_as_lost,
    test_starting_offsets_that_spark_refuses_are_tried_again_and_in_the_end_reported,
    world,
)

pytestmark = [pytest.mark.broker, pytest.mark.soak, pytest.mark.timeout(600)]
