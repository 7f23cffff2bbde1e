from collections import deque

import pytest

from stillhouse.rollouts.failures import FailureKind
from stillhouse.rollouts.limits import Caps, Outcome, RateControl, RequestSize, Ticket

OK = Outcome(None)
LIMITED = Outcome(FailureKind.RATE, 0.5)

SIZE = RequestSize(100, 100)


def fill(control: RateControl, now: float) -> list[Ticket]:
    tickets = []
    while (ticket := control.admit(SIZE, now)) is not None:
        tickets.append(ticket)
    return tickets


def settle_all(control: RateControl, tickets: list[Ticket], outcome: Outcome | None, now: float) -> None:
    for ticket in tickets:
        control.settle(ticket, outcome, now)


def test_the_window_bounds_what_is_in_flight() -> None:
    control = RateControl(4, Caps(100))
    tickets = fill(control, 0.0)
    assert len(tickets) == control.in_flight == 4
    control.settle(tickets[0], None, 0.0)
    assert len(fill(control, 0.0)) == 1


def test_slow_start_doubles_a_round_trip_while_saturated() -> None:
    control = RateControl(10, Caps(1000))
    waiting = deque(fill(control, 0.0))
    for expected in (20, 40, 80):
        for _ in range(expected // 2):
            control.settle(waiting.popleft(), OK, 0.0)
            waiting.extend(fill(control, 0.0))
        assert control.limit == len(waiting) == expected


def test_an_unused_window_does_not_grow() -> None:
    control = RateControl(10, Caps(1000))
    for step in range(100):
        ticket = control.admit(SIZE, step)
        assert ticket is not None
        control.settle(ticket, OK, step)
    assert control.limit == 10


def test_it_never_grows_beyond_the_users_maximum() -> None:
    control = RateControl(4, Caps(6))
    for step in range(50):
        settle_all(control, fill(control, step), OK, step)
    assert control.limit == 6
    assert "max_concurrency is 6" in control.reason


def test_a_429_halves_once_for_all_requests_sent_before_it() -> None:
    control = RateControl(16, Caps(1000))
    settle_all(control, fill(control, 0.0), LIMITED, 0.0)
    assert control.limit == 8
    assert control.num_cuts == 1
    assert control.num_rate_limited == 16
    assert control.reason == "cut from 16: 429, retry after 0.5 s"


def test_a_429_of_a_later_epoch_halves_again_down_to_one() -> None:
    control = RateControl(16, Caps(1000))
    limits = []
    for now in range(6):
        settle_all(control, fill(control, now), LIMITED, now)
        limits.append(control.limit)
    assert limits == [8, 4, 2, 1, 1, 1]


def test_a_cut_starts_from_what_was_in_flight_not_from_an_unused_window() -> None:
    control = RateControl(1000, Caps(1000))
    tickets = [control.admit(SIZE, 0.0) for _ in range(20)]
    control.settle(tickets[5], LIMITED, 0.0)  # type: ignore[arg-type]
    assert control.limit == 10


def test_after_a_cut_it_recovers_by_one_a_round_trip() -> None:
    control = RateControl(16, Caps(1000))
    settle_all(control, fill(control, 0.0), LIMITED, 0.0)
    waiting = fill(control, 10.0)
    for step in range(200):
        waiting += fill(control, 10.0 + step)
        control.settle(waiting.pop(0), OK, 10.0 + step)
    # 200 successes at 8, 9, 10, ...: n rounds take 8 + 9 + ... = 200 at a limit of about 21.
    assert 19 <= control.limit <= 22


def test_the_gate_is_shut_for_as_long_as_the_endpoint_asks() -> None:
    control = RateControl(4, Caps(100))
    ticket = control.admit(SIZE, 0.0)
    assert ticket is not None
    control.settle(ticket, Outcome(FailureKind.RATE, 5.0), 1.0)
    assert control.admit(SIZE, 5.9) is None
    assert control.wait_s(5.0) == pytest.approx(1.0)
    assert control.admit(SIZE, 6.0) is not None
    assert control.wait_s(6.0) is None


def test_an_answer_to_an_older_request_cannot_prolong_the_gate() -> None:
    control = RateControl(4, Caps(100))
    first, *others = fill(control, 0.0)
    control.settle(first, Outcome(FailureKind.RATE, 2.0), 0.0)
    settle_all(control, others, Outcome(FailureKind.RATE, 50.0), 1.0)
    assert control.admit(SIZE, 2.0) is not None


def test_no_hint_shuts_the_gate_for_a_second() -> None:
    control = RateControl(4, Caps(100))
    ticket = control.admit(SIZE, 0.0)
    assert ticket is not None
    control.settle(ticket, Outcome(FailureKind.RATE), 0.0)
    assert control.wait_s(0.0) == pytest.approx(1.0)


def test_a_very_long_retry_after_is_probed_after_a_minute_by_one_request() -> None:
    control = RateControl(8, Caps(100))
    settle_all(control, fill(control, 0.0), Outcome(FailureKind.RATE, 3600.0), 0.0)
    assert control.admit(SIZE, 59.0) is None
    probe = control.admit(SIZE, 60.0)
    assert probe is not None
    assert probe.probe
    assert control.admit(SIZE, 61.0) is None
    control.settle(probe, Outcome(FailureKind.RATE, 3600.0), 62.0)
    assert control.admit(SIZE, 121.0) is None
    probe = control.admit(SIZE, 122.0)
    assert probe is not None
    control.settle(probe, OK, 123.0)
    assert len(fill(control, 123.0)) == control.limit


def test_a_probe_that_is_given_up_leaves_room_for_another() -> None:
    control = RateControl(8, Caps(100))
    settle_all(control, fill(control, 0.0), Outcome(FailureKind.RATE, 3600.0), 0.0)
    probe = control.admit(SIZE, 60.0)
    assert probe is not None
    control.settle(probe, None, 61.0)
    again = control.admit(SIZE, 61.0)
    assert again is not None
    assert again.probe


def test_one_failed_answer_pauses_growth_without_a_cut() -> None:
    control = RateControl(4, Caps(1000))
    tickets = fill(control, 0.0)
    control.settle(tickets[0], Outcome(FailureKind.TRANSIENT), 0.0)
    settle_all(control, tickets[1:], OK, 0.0)
    assert control.limit == 4
    for step in range(10):
        settle_all(control, fill(control, step), OK, step)
    assert control.limit > 4
    assert control.num_cuts == 0


def test_three_failed_answers_of_ten_are_overload() -> None:
    control = RateControl(8, Caps(1000))
    settle_all(control, fill(control, 0.0), Outcome(FailureKind.TRANSIENT), 0.0)
    assert control.limit == 4
    assert control.num_cuts == 1
    assert "3 of the last 3 answers failed" in control.reason


def test_permanent_failures_of_single_requests_change_nothing() -> None:
    control = RateControl(8, Caps(1000))
    for step in range(20):
        settle_all(control, fill(control, step), Outcome(FailureKind.PERMANENT), step)
    assert (control.limit, control.num_cuts) == (8, 0)


def test_a_snapshot_tells_limit_and_reason() -> None:
    control = RateControl(8, Caps(1000))
    settle_all(control, fill(control, 0.0), LIMITED, 0.0)
    snapshot = control.snapshot(0.1, waiting=3)
    assert (snapshot.limit, snapshot.in_flight, snapshot.waiting) == (4, 0, 3)
    assert snapshot.gate_s == pytest.approx(0.4)
    assert snapshot.num_rate_limited == 8
