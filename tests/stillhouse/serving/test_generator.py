import dataclasses
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import PreTrainedModel, Qwen3Config, Qwen3ForCausalLM

from stillhouse.serving.generation import Generation, GenerationRequest
from stillhouse.serving.generator import Generator

Forced = Callable[..., None]
Prompts = list[list[int]]


def alone(model: PreTrainedModel, prompt: list[int], max_tokens: int, stop_ids: frozenset[int]) -> list[int]:
    """Return the greedy completion by transformers' own `generate`."""
    ids = model.generate(
        torch.tensor([prompt]), attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
        max_new_tokens=max_tokens, do_sample=False, eos_token_id=sorted(stop_ids) or None, pad_token_id=0,
    )  # fmt: skip
    return ids[0, len(prompt) :].tolist()


@contextmanager
def fed_tokens(model: PreTrainedModel) -> Iterator[list[int]]:
    """Yield the number of tokens of each forward pass inside the block."""
    fed: list[int] = []
    hook = model.base_model.register_forward_pre_hook(
        lambda _, args, kwargs: fed.append(kwargs["input_ids"].numel()), with_kwargs=True
    )
    try:
        yield fed
    finally:
        hook.remove()


class CountedBuffers(TorchDispatchMode):
    """Counts the buffers that are made."""

    num_new = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.num_new += function is torch.ops.aten.new_zeros.default
        return function(*args, **(kwargs or {}))


def drain(generator: Generator) -> dict[int, Generation]:
    done: dict[int, Generation] = {}
    while generator.num_active:
        done.update(generator.step())
    return done


@pytest.mark.parametrize("max_batch", [1, 4, 64])
def test_greedy_tokens_are_those_of_generate_for_each_prompt_alone(
    model: PreTrainedModel, prompts: Prompts, max_batch: int
) -> None:
    stop = frozenset({2, 17})
    requests = [
        GenerationRequest(prompt, 5 + 2 * i, temperature=0.0, stop_ids=stop) for i, prompt in enumerate(prompts)
    ]
    generations = Generator(model, max_batch=max_batch).run(requests)
    for request, generation in zip(requests, generations, strict=True):
        assert generation.completion_ids == alone(model, list(request.prompt_ids), request.max_tokens, stop)


@pytest.mark.parametrize(("temperature", "scored_at"), [(1.0, 1.0), (0.7, 0.7), (0.0, 1.0)])
def test_logprobs_are_teacher_forced_logprobs_of_the_tempered_distribution_or_untempered_if_greedy(
    model: PreTrainedModel, prompts: Prompts, assert_forced: Forced, temperature: float, scored_at: float
) -> None:
    requests = [GenerationRequest(prompt, 20, temperature=temperature, seed=i) for i, prompt in enumerate(prompts)]
    assert_forced(model, prompts, Generator(model, max_batch=3).run(requests), scored_at)


def test_a_request_admitted_mid_flight_changes_no_other(model: PreTrainedModel, prompts: Prompts) -> None:
    requests = [GenerationRequest(prompt, 15, seed=i) for i, prompt in enumerate(prompts[:6])]
    expected = [Generator(model).run([request])[0].completion_ids for request in requests]
    generator = Generator(model, max_batch=4)
    handles, done = [], {}
    for request in requests:
        handles.append(generator.submit(request))
        for _ in range(3):
            done.update(generator.step())
    done.update(drain(generator))
    assert [done[handle].completion_ids for handle in handles] == expected


def test_equal_calls_give_equal_bits_and_the_seed_decides_the_sample(model: PreTrainedModel, prompts: Prompts) -> None:
    requests = [GenerationRequest(prompt, 15, seed=i, top_p=0.9) for i, prompt in enumerate(prompts)]
    assert Generator(model, max_batch=4).run(requests) == Generator(model, max_batch=4).run(requests)
    requests = [GenerationRequest(prompts[4], 20, temperature=3.0, seed=seed) for seed in (1, 1, 2)]
    first, same, other = (generation.completion_ids for generation in Generator(model).run(requests))
    assert first == same != other


def test_a_stop_token_is_kept_and_is_the_reason(model: PreTrainedModel, prompts: Prompts) -> None:
    [cut] = Generator(model).run([GenerationRequest(prompts[1], 12, temperature=0.0)])
    assert (len(cut.completion_ids), cut.finish_reason) == (12, "length")
    stop = cut.completion_ids[5]
    request = GenerationRequest(prompts[1], 12, temperature=0.0, stop_ids=frozenset({stop}))
    [stopped] = Generator(model).run([request])
    assert stopped.completion_ids == cut.completion_ids[: cut.completion_ids.index(stop) + 1]
    assert stopped.finish_reason == "stop"


def test_a_completion_ends_where_the_context_ends_and_a_prompt_without_room_is_refused(model: PreTrainedModel) -> None:
    generator = Generator(model)
    [generation] = generator.run([GenerationRequest([5] * (generator.context_length - 3), 100)])
    assert (len(generation.completion_ids), generation.finish_reason) == (3, "length")
    for prompt in ([], [5] * 1024):
        with pytest.raises(ValueError, match=f"{len(prompt)} tokens"):
            generator.submit(GenerationRequest(prompt, 5))


def test_the_next_turn_reuses_what_the_last_one_computed(
    model: PreTrainedModel, prompts: Prompts, assert_forced: Forced
) -> None:
    generator = Generator(model, max_batch=4)
    chosen = [prompts[i] for i in (1, 3, 4, 6)]
    first = generator.run([GenerationRequest(prompt, 10 + i, seed=i) for i, prompt in enumerate(chosen)])
    longer = [[*prompt, *turn.completion_ids, 7, 8, 9] for prompt, turn in zip(chosen, first, strict=True)][::-1]
    with fed_tokens(model) as fed:
        second = generator.run([GenerationRequest(prompt, 10, seed=9) for prompt in longer])
    assert fed[0] == 4 * 4, "three new tokens and the last sampled one, for each of four rows"
    assert_forced(model, longer, second)


def test_parked_turns_survive_strangers_and_are_dropped_oldest_first(
    model: PreTrainedModel, prompts: Prompts, assert_forced: Forced
) -> None:
    generator = Generator(model, max_batch=3)
    history = [list(prompt) for prompt in prompts]
    for turn in range(3):
        order = [(3 * turn + 2 * i) % len(history) for i in range(6)]
        requests = [GenerationRequest(history[i], 4 + i, seed=turn) for i in order]
        generations = generator.run(requests)
        assert_forced(model, [request.prompt_ids for request in requests], generations)
        for i, request, generation in zip(order, requests, generations, strict=True):
            history[i] = [*request.prompt_ids, *generation.completion_ids, 11 + turn]


def test_requests_of_one_prompt_share_its_prefill_also_when_they_come_later(
    model: PreTrainedModel, prompts: Prompts, assert_forced: Forced
) -> None:
    chosen = [prompts[i] for i in (1, 1, 1, 6, 6, 1, 6, 1)]
    requests = [GenerationRequest(prompt, 8 + i, seed=i) for i, prompt in enumerate(chosen)]
    with fed_tokens(model) as fed:
        generations = Generator(model, max_batch=5).run(requests)
    assert fed[0] == 2 * 120, "two prompts for five rows, padded to the longer one"
    # Later steps feed one token for each row that runs, and one for each prompt that joins them.
    assert max(fed[1:]) <= 5
    assert_forced(model, chosen, generations)
    assert len({tuple(generation.completion_ids[:8]) for generation in generations[:3]}) > 1, "each has its own seed"


def test_requests_that_come_together_have_the_cache_grow_once(model: PreTrainedModel, prompts: Prompts) -> None:
    generator = Generator(model)
    generator.submit(GenerationRequest(prompts[0], 8))
    generator.step()
    for first_id in range(3, 9):
        generator.submit(GenerationRequest([first_id, *prompts[0][1:]], 8))
    with CountedBuffers() as counted:
        generator.step()
    assert counted.num_new == 2 * model.config.num_hidden_layers


def test_log_probs_of_a_nucleus_are_renormalised_where_a_request_wants_it(
    model: PreTrainedModel, prompts: Prompts
) -> None:
    plain = GenerationRequest(prompts[4], 20, temperature=1.5, top_p=0.6, seed=3)
    [raw, processed] = Generator(model).run([plain, dataclasses.replace(plain, processed_logprobs=True)])
    assert processed.completion_ids == raw.completion_ids
    with torch.no_grad():
        logits = model(torch.tensor([[*prompts[4], *raw.completion_ids]])).logits[0, len(prompts[4]) - 1 : -1]
    for token, row, before, after in zip(
        raw.completion_ids, logits / 1.5, raw.logprobs, processed.logprobs, strict=True
    ):
        probs, order = row.softmax(-1).sort(descending=True)
        nucleus = order[: int((probs.cumsum(0) < 0.6).sum()) + 1]
        assert before == pytest.approx(row.log_softmax(-1)[token].item(), abs=1e-4)
        assert after == pytest.approx((row[token] - row[nucleus].logsumexp(0)).item(), abs=1e-4)


def test_changed_weights_are_not_answered_from_old_keys_and_values(assert_forced: Forced) -> None:
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=50, hidden_size=16, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=1, head_dim=8, max_position_embeddings=64,
    )  # fmt: skip
    model = Qwen3ForCausalLM(config).eval()
    generator = Generator(model)
    [first] = generator.run([GenerationRequest([3, 4, 5], 6)])
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.3, fused=True)
    for parameter in model.parameters():
        parameter.grad = torch.randn_like(parameter)
    optimizer.step()
    prompt = [3, 4, 5, *first.completion_ids, 6]
    assert_forced(model, [prompt], generator.run([GenerationRequest(prompt, 6)]))


def test_a_cancelled_request_never_finishes_and_leaves_the_others_right(
    model: PreTrainedModel, prompts: Prompts
) -> None:
    requests = [GenerationRequest(prompt, 12, seed=i) for i, prompt in enumerate(prompts[:5])]
    expected = [Generator(model).run([request])[0].completion_ids for request in requests]
    generator = Generator(model, max_batch=3)
    handles = [generator.submit(request) for request in requests]
    generator.step()
    generator.cancel(handles[0])
    generator.cancel(handles[4])
    done = drain(generator)
    assert {handle: done[handle].completion_ids for handle in done} == dict(
        list(zip(handles, expected, strict=True))[1:4]
    )


def test_a_model_in_training_mode_is_refused(prompts: list[list[int]]) -> None:
    config = Qwen3Config(vocab_size=50, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, head_dim=8)
    generator = Generator(Qwen3ForCausalLM(config).train())
    generator.submit(GenerationRequest([1], 1))
    with pytest.raises(ValueError, match="training"):
        generator.step()


def test_tokens_are_shown_as_they_are_sampled_and_may_end_their_completion(
    model: PreTrainedModel, prompts: list[list[int]]
) -> None:
    seen: list[list[int]] = [[] for _ in prompts]

    def watching(index: int) -> Callable[[int], bool]:
        def on_token(token: int) -> bool:
            seen[index].append(token)
            return len(seen[index]) == index + 1

        return on_token

    requests = [GenerationRequest(prompt, 20, seed=i) for i, prompt in enumerate(prompts)]
    expected = Generator(model, max_batch=4).run(requests)
    generator = Generator(model, max_batch=4)
    generations = generator.run(
        [dataclasses.replace(request, on_token=watching(index)) for index, request in enumerate(requests)]
    )
    for index, (alone_, generation) in enumerate(zip(expected, generations, strict=True)):
        assert generation.finish_reason == "stop"
        assert generation.completion_ids == alone_.completion_ids[: index + 1]
        assert seen[index] == generation.completion_ids


def test_the_most_probable_tokens_come_with_the_completions_that_want_them_and_change_none(
    model: PreTrainedModel, prompts: Prompts
) -> None:
    requests = [GenerationRequest(prompt, 6, seed=i, num_best=3 * (i % 2)) for i, prompt in enumerate(prompts)]
    plain = [dataclasses.replace(request, num_best=0) for request in requests]
    pairs = zip(requests, Generator(model).run(requests), Generator(model).run(plain), strict=True)
    for request, generation, without in pairs:
        assert (generation.completion_ids, generation.logprobs) == (without.completion_ids, without.logprobs)
        assert without.best_ids_NK is None
        if not request.num_best:
            assert generation.best_ids_NK is None
            continue
        tokens = [*request.prompt_ids, *generation.completion_ids]
        with torch.no_grad():
            logits = model(torch.tensor([tokens])).logits[0, len(request.prompt_ids) - 1 : -1]
        assert generation.best_ids_NK is not None
        assert generation.best_ids_NK.tolist() == logits.topk(3).indices.tolist()
