from stillhouse.inference.failures import FailureKind
from stillhouse.inference.rate_limit import Caps, Outcome, RateControl, RequestSize, Ticket
from stillhouse.inference.rate_limit.headers import LimitScope

SIZE = RequestSize(400, 100)
OK = Outcome(None)
BUSY = Outcome(FailureKind.RATE, scope=LimitScope.CONCURRENCY)
TOO_FAST = Outcome(FailureKind.RATE, scope=LimitScope.REQUESTS)


def crowded() -> tuple[RateControl, list[Ticket]]:
    """A control whose first window of 20 is full, at one second."""
    control = RateControl(20, Caps(1000))
    return control, [control.admit(SIZE, index / 20) for index in range(20)]  # type: ignore[misc]


def test_a_refusal_for_concurrency_leaves_as_many_as_were_ahead() -> None:
    control, tickets = crowded()
    control.settle(tickets[12], BUSY, 1.1)
    assert control.limit == 12
    assert control.snapshot(1.1, 0).reason == "12 in flight learnt from 1 refusal"


def test_a_refusal_for_requests_sets_a_pace_below_what_was_accepted() -> None:
    control, tickets = crowded()
    for accepted in tickets[:10]:
        control.settle(accepted, OK, 2.0)
    limit = control.limit
    control.settle(tickets[10], TOO_FAST, 2.0)
    assert control.limit == limit
    pace = control.snapshot(2.0, 0).requests_per_minute
    assert pace is not None
    assert 500 < pace < 1300


def test_a_refusal_without_a_reason_and_few_in_flight_is_about_a_rate() -> None:
    control, tickets = crowded()
    for accepted in tickets:
        control.settle(accepted, OK, 2.0)
    ticket = control.admit(SIZE, 2.0)
    assert ticket is not None
    control.settle(ticket, Outcome(FailureKind.RATE), 2.1)
    assert control.limit >= 20
    assert control.snapshot(2.1, 0).requests_per_minute is not None


def test_a_refusal_without_a_reason_at_the_highest_number_so_far_is_about_concurrency() -> None:
    control, tickets = crowded()
    control.settle(tickets[15], Outcome(FailureKind.RATE), 1.1)
    assert control.limit == 15
    assert control.snapshot(1.1, 0).requests_per_minute is None
