from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stillhouse.inference.failures import FailureKind
from stillhouse.inference.rate_limit import Caps, Outcome, RateControl, RequestSize, Ticket
from stillhouse.inference.rate_limit.headers import Allowance, LimitScope, RateLimits
from stillhouse.inference.rate_limit.values import LearntLimits

SIZE = RequestSize(400, 100)
OK = Outcome(None)
BUSY = Outcome(FailureKind.RATE, scope=LimitScope.CONCURRENCY)
TOO_FAST = Outcome(FailureKind.RATE, scope=LimitScope.REQUESTS)


def fill(control: RateControl, now: float) -> list[Ticket]:
    tickets = []
    while (ticket := control.admit(SIZE, now)) is not None:
        tickets.append(ticket)
    return tickets


def settle_all(control: RateControl, tickets: list[Ticket], outcome: Outcome | None, now: float) -> None:
    for ticket in tickets:
        control.settle(ticket, outcome, now)


def started(initial: int, caps: int = 1000) -> tuple[RateControl, list[Ticket]]:
    """Return a control whose first window is full, at one second."""
    control = RateControl(initial, Caps(caps))
    return control, [control.admit(SIZE, index / initial) for index in range(initial)]  # type: ignore[misc]


def test_the_first_window_is_spread_over_a_moment() -> None:
    control = RateControl(10, Caps(100))
    assert len(fill(control, 0.0)) == 1
    assert control.wait_s(0.0) == pytest.approx(0.01)
    assert len(fill(control, 0.05)) == 5
    assert len(fill(control, 0.1)) == 4


def test_a_saturated_window_grows_fourfold_a_round_trip_and_twofold_once_it_is_large() -> None:
    control, tickets = started(20)
    for round_trip, expected in enumerate((80, 278, 556), start=1):
        settle_all(control, tickets, OK, 1.0 + round_trip)
        assert control.limit == expected
        tickets = fill(control, 1.0 + round_trip)
    assert control.reason == "growing: nothing refused yet"


def test_an_unused_window_does_not_grow() -> None:
    control = RateControl(10, Caps(100))
    for step in range(50):
        ticket = control.admit(SIZE, float(step))
        assert ticket is not None
        control.settle(ticket, OK, step + 0.5)
    assert control.limit == 10


def test_growth_stops_at_the_users_cap() -> None:
    control, tickets = started(4, caps=6)
    for now in (2.0, 3.0, 4.0):
        settle_all(control, tickets, OK, now)
        tickets = fill(control, now)
    assert control.limit == len(tickets) == 6
    assert control.reason == "runtime.max_concurrency is 6"


@pytest.mark.parametrize("refused", [BUSY, Outcome(FailureKind.RATE)], ids=["told", "at the highest number so far"])
def test_a_refusal_for_concurrency_leaves_as_many_as_were_ahead_and_cuts_once(refused: Outcome) -> None:
    control, tickets = started(20)
    control.settle(tickets[12], refused, 1.1)
    assert control.snapshot(0).reason == "12 in flight learnt from 1 refusal"
    assert control.snapshot(0).requests_per_minute is None
    settle_all(control, tickets[13:], BUSY, 1.2)
    assert (control.limit, control.num_cuts) == (12, 1)


def test_a_refusal_for_requests_sets_a_pace_below_what_was_accepted() -> None:
    control, tickets = started(20)
    for accepted in tickets[:10]:
        control.settle(accepted, OK, 2.0)
    limit = control.limit
    control.settle(tickets[10], TOO_FAST, 2.0)
    assert control.limit == limit
    pace = control.snapshot(0).requests_per_minute
    assert pace is not None
    assert 500 < pace < 1300


def test_a_refusal_without_a_reason_and_few_in_flight_is_about_a_rate() -> None:
    control, tickets = started(20)
    for accepted in tickets:
        control.settle(accepted, OK, 2.0)
    ticket = control.admit(SIZE, 2.0)
    assert ticket is not None
    control.settle(ticket, Outcome(FailureKind.RATE), 2.1)
    assert control.limit >= 20
    assert control.snapshot(0).requests_per_minute is not None


def test_a_retry_after_holds_back_everything() -> None:
    control, tickets = started(4)
    settle_all(control, tickets[:3], OK, 1.0)
    control.settle(tickets[3], Outcome(FailureKind.RATE, 5.0), 1.0)
    assert control.admit(SIZE, 5.9) is None
    assert control.wait_s(2.0) == pytest.approx(4.0)
    control.admit(SIZE, 6.0)
    assert control.wait_s(6.0) is None or control.wait_s(6.0) < 4.0


def test_a_refusal_of_an_older_epoch_never_prolongs_the_gate() -> None:
    control, tickets = started(4)
    control.settle(tickets[3], Outcome(FailureKind.RATE, 5.0), 1.0)
    for index, ticket in enumerate(tickets[:3]):
        control.settle(ticket, Outcome(FailureKind.RATE, 89.0), 1.5 + index)
    assert control.wait_s(4.0) == pytest.approx(2.0)


def test_a_very_long_retry_after_is_probed_after_a_minute_by_one_request() -> None:
    control, tickets = started(4)
    settle_all(control, tickets[1:], OK, 1.0)
    control.settle(tickets[0], Outcome(FailureKind.RATE, 3600.0), 1.0)
    assert control.admit(SIZE, 60.9) is None
    given_up = control.admit(SIZE, 61.1)
    assert given_up is not None
    control.settle(given_up, None, 62.0)
    probe = control.admit(SIZE, 70.0)
    assert probe is not None
    assert control.admit(SIZE, 100.0) is None
    control.settle(probe, OK, 101.0)
    assert control.admit(SIZE, 102.0) is not None
    assert control.admit(SIZE, 120.0) is not None


def test_three_failed_answers_of_ten_are_overload() -> None:
    control, tickets = started(20)
    settle_all(control, tickets[:2], Outcome(FailureKind.TRANSIENT), 1.1)
    assert control.limit == 20
    control.settle(tickets[2], Outcome(FailureKind.STALL), 1.2)
    assert control.limit == 11


def test_a_failed_answer_pauses_growth() -> None:
    control, tickets = started(10)
    control.settle(tickets[0], Outcome(FailureKind.TRANSIENT), 1.1)
    settle_all(control, tickets[1:], OK, 1.2)
    assert control.limit == 10
    settle_all(control, fill(control, 1.3), OK, 1.4)
    assert control.limit > 10


def test_headers_set_the_pace_without_a_refusal() -> None:
    control, tickets = started(4)
    limits = RateLimits(Allowance(600.0, 5.0), Allowance(600_000.0, 1e4))
    settle_all(control, tickets, Outcome(None, limits=limits, prompt_tokens=100, completion_tokens=50), 1.1)
    snapshot = control.snapshot(0)
    assert snapshot.requests_per_minute == pytest.approx(594.0)
    assert snapshot.tokens_per_minute == pytest.approx(594_000.0)
    num_sent = 0
    for step in range(1000):
        for ticket in fill(control, 2.0 + step / 100):
            num_sent += 1
            control.settle(ticket, OK, 2.0 + step / 100)
    assert 90 <= num_sent <= 110
    assert control.reason == "600 requests/min from headers"


def test_nothing_left_by_the_headers_holds_the_next_request_back() -> None:
    control, tickets = started(4)
    settle_all(control, tickets, Outcome(None, limits=RateLimits(Allowance(60.0, 0.0))), 1.0)
    assert control.admit(SIZE, 1.05) is None
    assert 0.0 < (control.wait_s(1.05) or 0.0) < 5.0


@pytest.mark.parametrize(
    ("caps", "expected"), [(Caps(1000, requests_per_minute=600.0), 100), (Caps(1000, tokens_per_minute=60_000.0), 50)]
)
def test_the_users_rates_are_obeyed(caps: Caps, expected: int) -> None:
    control = RateControl(50, caps)
    num_sent = 0
    for step in range(1000):
        now = step / 100
        for ticket in fill(control, now):
            num_sent += 1
            # 100 tokens of prompt and 100 of completion, as many as are set aside before the first answer.
            control.settle(ticket, Outcome(None, prompt_tokens=100, completion_tokens=100), now)
    assert expected * 0.95 <= num_sent <= expected * 1.05 + 1


def test_the_reason_names_the_users_rate() -> None:
    control = RateControl(5, Caps(10, requests_per_minute=60.0))
    assert control.admit(SIZE, 0.0) is not None
    assert control.admit(SIZE, 0.5) is None
    assert control.reason == "runtime.max_requests_per_minute is 60"


def test_a_ticket_settles_once() -> None:
    control, tickets = started(2)
    control.settle(tickets[0], OK, 1.0)
    with pytest.raises(ValueError, match="twice"):
        control.settle(tickets[0], OK, 1.0)


def test_what_was_learnt_is_where_the_next_control_starts() -> None:
    control = RateControl(20, Caps(1000), LearntLimits(in_flight=7, requests_per_second=10.0))
    assert control.limit == 7
    assert control.snapshot(0).requests_per_minute == pytest.approx(588.0)
    assert control.brakes.learnt() == LearntLimits(7, 10.0, None)


OUTCOMES: list[Any] = [
    None,
    OK,
    OK,
    BUSY,
    TOO_FAST,
    Outcome(FailureKind.RATE),
    Outcome(FailureKind.RATE, 3.0),
    Outcome(FailureKind.RATE, 89.0, scope=LimitScope.TOKENS),
    Outcome(FailureKind.TRANSIENT),
    Outcome(FailureKind.STALL),
    Outcome(FailureKind.PERMANENT),
    Outcome(None, limits=RateLimits(Allowance(600.0, 0.0), Allowance(6000.0, 10.0))),
    Outcome(None, prompt_tokens=90, completion_tokens=2000),
]


@settings(max_examples=200)
@given(
    steps=st.lists(
        st.tuples(st.floats(0.0, 20.0), st.integers(0, 5), st.sampled_from(OUTCOMES)), min_size=1, max_size=60
    ),
    initial=st.integers(1, 30),
    cap=st.integers(1, 40),
)
def test_it_keeps_its_window_and_always_goes_on(steps: list[tuple[float, int, Any]], initial: int, cap: int) -> None:
    control = RateControl(initial, Caps(cap))
    tickets: list[Ticket] = []
    now = 0.0
    for later, num_settled, outcome in steps:
        now += later
        tickets += fill(control, now)
        assert control.brakes.window.in_flight == len(tickets) <= cap
        wait_s = control.wait_s(now)
        assert tickets or (wait_s is not None and wait_s < 1800.0)
        for _ in range(min(num_settled, len(tickets))):
            control.settle(tickets.pop(0), outcome, now)
        assert 1 <= control.limit <= cap
    settle_all(control, tickets, OK, now)
    assert control.brakes.window.in_flight == 0
    for _ in range(5):
        if control.admit(SIZE, now) is not None:
            return
        wait_s = control.wait_s(now)
        assert wait_s is not None
        now += wait_s + 1e-9
    pytest.fail(f"nothing admitted after waiting as told: {control.reason}")
