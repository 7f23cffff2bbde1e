"""A small model in the form of a student's step, trained by two ranks and by one."""

import copy
import random
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from stillhouse.training.ranks import Ranks
from stillhouse.training.sharding import full_tensors, gathered, load_full_optimizer_state, load_full_tensors, shard
from stillhouse.types import Sample

VOCABULARY = 51
"""No multiple of the number of ranks."""
NUM_STEPS = 12
ALONE = Ranks.single(torch.device("cpu"))


class Block(nn.Module):
    def __init__(self, has_adapter: bool, dtype: torch.dtype) -> None:
        super().__init__()
        self.norm = nn.RMSNorm(16, dtype=dtype)
        self.up = nn.Linear(16, 32, bias=False, dtype=dtype)
        self.down = nn.Linear(32, 16, dtype=dtype)
        self.rare = nn.Parameter(torch.zeros(16, dtype=dtype))
        self.adapter: nn.Module | None = None
        if has_adapter:
            self.requires_grad_(False)
            self.adapter = nn.Sequential(nn.Linear(16, 3, bias=False), nn.Linear(3, 32, bias=False))

    def forward(self, x_BTH: Tensor) -> Tensor:
        y_BTH = self.norm(x_BTH)
        h_BTH = self.up(y_BTH)
        if self.adapter is not None:
            h_BTH = h_BTH + self.adapter(y_BTH)
        out_BTH = x_BTH + self.down(functional.silu(h_BTH))
        # Left aside by ranks whose samples are all short.
        return out_BTH + self.rare if x_BTH.shape[1] > 6 else out_BTH


class Step(nn.Module):
    """Token ids to summed losses; the output layer is tied to the embedding."""

    def __init__(self, has_adapter: bool = False, base_dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed = nn.Embedding(VOCABULARY, 16, dtype=base_dtype).requires_grad_(not has_adapter)
        self.blocks = nn.ModuleList(Block(has_adapter, base_dtype) for _ in range(2))
        self.norm = nn.RMSNorm(16, dtype=base_dtype).requires_grad_(not has_adapter)

    def forward(self, samples: Sequence[Sample], scale: float) -> Tensor:
        # Without samples one token runs, so that the rank takes part in what the ranks do together.
        rows = [torch.tensor(sample.token_ids) for sample in samples] or [torch.tensor([0])]
        tokens_BT = nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=-100)
        logits_BTV = self.hidden(tokens_BT.clamp(min=0)) @ self.embed.weight.t()
        predicted, targets = logits_BTV[:, :-1].flatten(0, 1).float(), tokens_BT[:, 1:].flatten()
        return functional.cross_entropy(predicted, targets, reduction="sum") * scale

    def hidden(self, tokens_BT: Tensor) -> Tensor:
        hidden_BTH = self.embed(tokens_BT)
        for block in self.blocks:
            hidden_BTH = block(hidden_BTH)
        return self.norm(hidden_BTH)


def batch(number: int) -> list[list[Sample]]:
    """Microbatches of samples of different lengths, in the last batch less than there are ranks."""
    draw = random.Random(number)
    lengths = [[9]] if number == NUM_STEPS - 1 else [[draw.randint(2, 12) for _ in range(3)] for _ in range(3)]
    return [
        [Sample([draw.randrange(VOCABULARY) for _ in range(length)], [], "") for length in group] for group in lengths
    ]


class Training:
    def __init__(self, ranks: Ranks, step: Step, dtype: torch.dtype) -> None:
        self.ranks, self.step, self.dtype = ranks, step, dtype
        shard(step, step.blocks, ranks, dtype)
        self.trained = {name: p for name, p in step.named_parameters() if p.requires_grad}
        self.optimizer = torch.optim.AdamW(self.trained.values(), lr=1e-2, weight_decay=0.1, fused=True)

    def measure(self, groups: list[list[Sample]], backward: bool) -> float:
        count = sum(len(sample.token_ids) - 1 for group in groups for sample in group)
        total = 0.0
        for group in self.ranks.local_microbatches(groups):
            with torch.autocast("cpu", self.dtype, enabled=self.dtype is not torch.float32):
                loss = self.step(group, 1.0 / count)
            if backward:
                loss.backward()
            total += loss.item()
        return self.ranks.sum_and_max({"loss": total}, {})[0]["loss"]

    def run(self, first: int, last: int) -> list[tuple[float, ...]]:
        """Loss and gradient norm of each step, and what is measured after it."""
        facts = []
        for number in range(first, last):
            loss = self.measure(batch(number), backward=True)
            norm = nn.utils.clip_grad_norm_(self.trained.values(), 0.5).item()
            self.optimizer.step()
            self.optimizer.zero_grad()
            facts.append((loss, norm, self.measure_half()))
        return facts

    @torch.no_grad()
    def measure_half(self) -> float:
        """The loss of other weights, which stand in for a moment where those under training stand."""
        torch._foreach_mul_(list(self.trained.values()), 0.5)
        loss = self.measure(batch(100), backward=False)
        torch._foreach_mul_(list(self.trained.values()), 2.0)
        return loss

    def state(self) -> Any:
        return full_tensors((self.trained, self.optimizer.state_dict()), self.ranks)

    def load(self, state: Any) -> None:
        load_full_tensors(self.trained, state[0])
        load_full_optimizer_state(self.optimizer, state[1])


def train(ranks: Ranks, has_adapter: bool, base_dtype: torch.dtype, dtype: torch.dtype) -> tuple[Any, Any, Any]:
    """The facts of every step, the state half-way and that at the end."""
    training = Training(ranks, Step(has_adapter, base_dtype), dtype)
    facts = training.run(0, NUM_STEPS // 2)
    half = copy.deepcopy(training.state())
    facts += training.run(NUM_STEPS // 2, NUM_STEPS)
    return facts, half, training.state()


def continue_from(ranks: Ranks, half: Any) -> tuple[Any, Any]:
    training = Training(ranks, Step(), torch.float32)
    # What comes through a pipe is memory that the ranks and the test share.
    training.load(copy.deepcopy(half))
    return training.run(NUM_STEPS // 2, NUM_STEPS), training.state()


def largest_difference(one: Any, other: Any) -> float:
    return max((one[name] - other[name]).abs().max().item() for name in one)


def assert_same_training(seen: Any, expected: Any) -> None:
    """Facts of the steps and weights at the end agree up to rounding."""
    torch.testing.assert_close(torch.tensor(seen[0]), torch.tensor(expected[0]), rtol=2e-6, atol=0)
    assert largest_difference(seen[1][0], expected[1][0]) < 2e-6


@pytest.fixture(scope="module")
def alone() -> Any:
    """A full training by one process."""
    return train(ALONE, False, torch.float32, torch.float32)


@pytest.fixture(scope="module")
def by_two(pair) -> Any:
    """The same training by two ranks, as each of them sees it."""
    return pair.run(train, False, torch.float32, torch.float32)


def test_two_ranks_train_all_weights_as_one_does(alone, by_two):
    facts, _, end = alone
    assert_same_training((by_two[0][0], by_two[0][2]), (facts, end))
    assert by_two[0][0] == by_two[1][0]
    assert largest_difference(end[0], Step().state_dict()) > 0.01


def test_two_ranks_train_an_adapter_as_one_does(pair):
    adapter = (True, torch.float32, torch.float32)
    facts, _, end = train(ALONE, *adapter)
    first, second = pair.run(train, *adapter)
    assert_same_training((first[0], first[2]), (facts, end))
    assert first[0] == second[0]
    assert largest_difference(end[0], Step(has_adapter=True).state_dict()) > 0.01


def test_ranks_continue_bit_for_bit_what_as_many_ranks_began(pair, by_two):
    facts, half, end = by_two[0]
    seen_facts, seen_end = pair.run(continue_from, half)[0]
    assert seen_facts == facts[NUM_STEPS // 2 :]
    torch.testing.assert_close(seen_end, end, rtol=0, atol=0)


def test_one_process_continues_what_two_ranks_began_and_they_what_it_began(pair, alone, by_two):
    expected = (alone[0][NUM_STEPS // 2 :], alone[2])
    assert_same_training(continue_from(ALONE, by_two[0][1]), expected)
    assert_same_training(pair.run(continue_from, alone[1])[0], expected)


def test_only_the_first_rank_gets_whole_tensors(by_two):
    first, second = (tensors for _, _, (tensors, _) in by_two)
    assert first["embed.weight"].shape == (VOCABULARY, 16)
    assert first.keys() == second.keys()
    assert {value.numel() for value in second.values()} == {0}


def train_in_half_precision(ranks: Ranks) -> tuple[Any, ...]:
    """Types and sizes while an adapter over bfloat16 is trained, and the losses."""
    step = Step(has_adapter=True, base_dtype=torch.bfloat16)
    training = Training(ranks, step, torch.bfloat16)
    seen = []
    step.blocks[0].adapter[0].register_forward_hook(lambda module, args, out: seen.append(module.weight.dtype))
    facts = training.run(0, 4)
    slices = {p.to_local().numel() < p.numel() for p in step.parameters()} if ranks.size > 1 else {True}
    return [fact[0] for fact in facts], set(seen), {p.dtype for p in training.trained.values()}, slices


def test_an_adapter_over_half_precision_computes_in_it_and_is_summed_and_kept_in_float32(pair):
    expected, *_ = train_in_half_precision(ALONE)
    for losses, computed, kept, is_slice in pair.run(train_in_half_precision):
        assert losses == pytest.approx(expected, rel=5e-3)
        assert (computed, kept, is_slice) == ({torch.bfloat16}, {torch.float32}, {True})


def sample_then_train(ranks: Ranks) -> tuple[Tensor, Any]:
    """Hidden states that this rank alone asks for between two steps, and the training's trainings."""
    training = Training(ranks, Step(), torch.float32)
    with gathered(training.step), torch.no_grad():
        training.step.hidden(torch.tensor([[1, 2]]))
    facts = training.run(0, 3)
    with gathered(training.step), torch.no_grad():
        # More passes in one rank than in the other: nothing they do in here is done together.
        seen = [training.step.hidden(torch.tensor([[3, 4, 5 + ranks.rank]])) for _ in range(1 + 2 * ranks.rank)]
    facts += training.run(3, NUM_STEPS)
    return seen[-1], (facts, training.state())


def test_each_rank_may_run_a_gathered_model_by_itself_and_train_on(pair):
    seen, trainings = zip(*pair.run(sample_then_train), strict=True)
    (expected, training_alone) = sample_then_train(ALONE)
    assert_same_training(trainings[0], training_alone)
    torch.testing.assert_close(seen[0], expected, rtol=2e-6, atol=1e-6)
    assert not torch.equal(seen[0][0, 2], seen[1][0, 2])
    torch.testing.assert_close(seen[0][0, :2], seen[1][0, :2], rtol=0, atol=0)


def shard_quantised(ranks: Ranks) -> tuple[Any, ...]:
    step = Step(has_adapter=True)
    step.blocks[0].codes = nn.Parameter(torch.arange(8, dtype=torch.uint8), requires_grad=False)
    training = Training(ranks, step, torch.float32)
    facts = training.run(0, 3)
    return facts, type(step.blocks[0].codes) is nn.Parameter, step.blocks[0].codes.tolist()


def test_weights_in_4_bits_stay_whole_in_every_rank(pair):
    expected = shard_quantised(ALONE)
    for facts, is_plain, codes in pair.run(shard_quantised):
        torch.testing.assert_close(torch.tensor(facts), torch.tensor(expected[0]), rtol=2e-6, atol=0)
        assert (is_plain, codes) == (True, list(range(8)))
