"""What a store does otherwise whose queues are split, and whose order is therefore approximate (`traits.order`): by
test, and why.
"""

from __future__ import annotations

_REASONS: dict[str, tuple[str, ...]] = {
    "a claim takes from one part of a queue, and the parts come in turn": (
        "test_a_chunk_is_added_once",
        "test_a_claim_with_an_id_is_repeated_whatever_the_limit",
        "test_a_paused_queue_gives_nothing",
        "test_after_a_step_back_and_reopening_no_lease_revives_and_nothing_is_early",
        "test_an_earlier_job_added_while_waiting_for_a_later_one_is_served_when_due",
        "test_ids_are_uuids_of_version_7_that_grow",
        "test_jitter_stays_within_its_bounds",
        "test_jobs_without_a_key_are_never_duplicates",
        "test_replay_by_when_they_died",
        "test_replay_of_some_takes_the_oldest",
        "test_restored_jobs_are_the_jobs_they_were",
        "test_restored_jobs_go_on_living",
    ),
    "each part of a queue has its share of a limit": (
        "test_a_batch_that_does_not_fit_is_refused_whole",
        "test_a_chunk_that_is_refused_writes_nothing",
        "test_a_full_queue_refuses_and_writes_nothing",
        "test_a_job_comes_back_to_a_full_queue",
        "test_a_lower_limit_takes_nothing_away_from_holders",
        "test_a_new_rate_starts_full",
        "test_a_queues_limit_holds_against_racing_producers",
        "test_a_rate_hands_out_its_burst_and_then_by_time",
        "test_a_rate_of_one_at_a_time_spaces_jobs",
        "test_a_refusal_is_an_answer_that_stays",
        "test_a_repeated_claim_takes_nothing_of_the_rate",
        "test_a_slow_rate_is_counted_over_hours",
        "test_an_expired_lease_makes_room_before_it_is_swept",
        "test_both_limits_hold_together",
        "test_everyone_who_can_be_served_is_when_several_are_let_go",
        "test_no_more_jobs_are_held_than_max_leased",
        "test_over_any_time_no_more_than_rate_and_burst",
        "test_the_limit_is_each_queues_own",
        "test_the_rate_survives_a_restart",
        "test_whatever_ends_a_delivery_makes_room",
        "test_who_waits_for_room_is_served_when_the_limit_is_raised",
    ),
    "each part of a queue has a journal of its own": (
        "test_a_policy_given_to_a_queue_that_is_not_there_makes_it",
        "test_a_reader_may_wait_for_the_next_event",
        "test_events_are_numbered_without_a_gap_and_in_order",
        "test_no_id_repeats_and_no_time_goes_back",
        "test_nothing_a_registered_reader_has_yet_to_read_is_trimmed",
        "test_pausing_is_told_once",
        "test_readers_see_racing_writers_in_one_order",
        "test_what_is_asked_for_below_is_an_error_not_a_gap",
    ),
    "a batch whose jobs have keys is a step for each part of a queue": (
        "test_the_same_key_with_another_payload_is_a_conflict",
    ),
}
WHY = {test: reason for reason, tests in _REASONS.items() for test in tests}
