from benchmarks.on_policy.sides.ours import AsAsked, ReplayedStep
from benchmarks.sft.workload import FIRST_WORD_ID
from stillhouse.serving.generation import Generation, GenerationRequest


class Submitted:
    """An engine that keeps what it is asked."""

    def __init__(self) -> None:
        self.requests: list[GenerationRequest] = []

    def submit(self, request: GenerationRequest) -> int:
        self.requests.append(request)
        return len(self.requests) - 1

    def step(self) -> list[tuple[int, Generation]]:
        return []


def test_a_completion_gets_as_many_tokens_as_the_first_word_of_its_prompt_says() -> None:
    engine = Submitted()
    AsAsked(engine).submit(GenerationRequest([1, 6, 4, FIRST_WORD_ID + 77, 9], max_tokens=512, seed=5))
    assert engine.requests == [GenerationRequest([1, 6, 4, FIRST_WORD_ID + 77, 9], max_tokens=77, seed=5)]


def test_a_replayed_prompt_gets_its_own_completion_once() -> None:
    engine = ReplayedStep([([1, 2], [7, 8]), ([1, 3], [9, 2])])
    first = engine.submit(GenerationRequest([1, 3], max_tokens=5, stop_ids=frozenset({2})))
    second = engine.submit(GenerationRequest([1, 2], max_tokens=5, stop_ids=frozenset({2})))
    done = dict(engine.step())
    assert done[first] == Generation([9, 2], [0.0, 0.0], "stop")
    assert done[second] == Generation([7, 8], [0.0, 0.0], "length")
    assert engine.step() == []
