from collections.abc import Callable, Iterator
from typing import Any

from stillhouse.config import RuntimeConfig
from stillhouse.inference import Controller
from stillhouse.inference.rate_limit import Caps, RateControl, RequestSize, Ticket
from stillhouse.types import Prompt
from tests.provider import ReceivedRequest, Reply, SimulatedProvider, completion

Collect = Callable[..., Any]
MakePrompts = Callable[..., list[Prompt]]
Script = Callable[[ReceivedRequest], Reply]


def test_prompts_are_drawn_as_room_appears(collect: Collect, make_prompts: MakePrompts) -> None:
    drawn = 0
    ahead: list[int] = []

    def prompts() -> Iterator[Prompt]:
        nonlocal drawn
        for prompt in make_prompts(300):
            drawn += 1
            yield prompt

    def script(request: ReceivedRequest) -> Reply:
        ahead.append(drawn - provider.num_billed)
        return Reply(completion("hello"), delay_s=0.002)

    provider = SimulatedProvider(script)
    with provider:
        got = collect(provider.url, prompts(), runtime=RuntimeConfig(concurrency=8, max_concurrency=8))
    assert len(got.trajectories) == 300
    assert max(ahead) < 100
    assert got.updates[-1].total is None


def test_a_slow_rollout_holds_up_no_other(collect: Collect) -> None:
    def script(request: ReceivedRequest) -> Reply:
        slow = "question 0" in str(request.body["messages"])
        return Reply(completion("hello"), delay_s=1.0 if slow else 0.01)

    with SimulatedProvider(script) as provider:
        got = collect(provider.url, 12, runtime=RuntimeConfig(concurrency=4, max_concurrency=4))
    assert got.trajectories[-1].messages[0]["content"] == "question 0"


class Watching(Controller):
    """A controller that writes down who asked as what."""

    def __init__(self) -> None:
        super().__init__(RateControl(2, Caps(2)))
        self.asked: list[bool] = []

    async def acquire(self, size: RequestSize, *, continuing: bool) -> Ticket:
        self.asked.append(continuing)
        return await super().acquire(size, continuing=continuing)


def test_rollouts_under_way_go_before_new_ones(collect: Collect, two_sums_then_answer: Script) -> None:
    controller = Watching()
    with SimulatedProvider(two_sums_then_answer) as provider:
        collect(provider.url, 30, controller=controller)
    firsts = [
        index
        for index, body in enumerate(provider.requests)
        if not any(message["role"] == "assistant" for message in body["messages"])
    ]
    assert controller.asked.count(True) == 60
    assert controller.asked.count(False) == 30
    # Were all first turns sent at once, they would be the first 30 of the 90 requests.
    assert firsts[15] > 30
