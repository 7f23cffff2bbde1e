from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from transformers import PreTrainedModel, Qwen3Config, Qwen3ForCausalLM

from stillhouse.serving.attention import Kernel
from stillhouse.serving.generation import GenerationRequest
from stillhouse.serving.generator import Generator
from stillhouse.serving.graphs import Pass, RecordedPasses, Shape
from stillhouse.serving.sampling import PickSteps

Forced = Callable[..., None]
Prompts = list[list[int]]


class Recordings:
    """Records a pass as itself, which is what a graph computes."""

    def __init__(self) -> None:
        self.shapes: list[int] = []

    def __call__(self, run: Pass) -> Pass:
        self.shapes.append(run().shape[1])
        return run


@pytest.mark.parametrize("is_packed", [False, True])
def test_recorded_passes_decode_what_plain_ones_do_and_leave_parked_turns_alone(
    is_packed: bool, model: PreTrainedModel, prompts: Prompts, assert_forced: Forced, plain_kernel: Kernel
) -> None:
    recordings = Recordings()
    generator = Generator(model, max_batch=5, recorder=recordings, kernel=plain_kernel if is_packed else None)
    history = [list(prompt) for prompt in prompts]
    for turn in range(2):
        requests = [GenerationRequest(prompt, 4 + 2 * i, seed=turn) for i, prompt in enumerate(history)]
        generations = generator.run(requests)
        assert [len(made.completion_ids) for made in generations] == [request.max_tokens for request in requests]
        assert_forced(model, history, generations)
        history = [[*p, *g.completion_ids, 11] for p, g in zip(history, generations, strict=True)]
    assert set(recordings.shapes) == {8, 1}, "for all five rows at once, and for the last one"
    assert len(recordings.shapes) <= 4, "a shape is recorded once, and again where the buffers have grown"


@pytest.mark.parametrize("is_packed", [False, True])
def test_reading_a_step_late_changes_no_completion(
    is_packed: bool, model: PreTrainedModel, prompts: Prompts, plain_kernel: Kernel
) -> None:
    stop_ids = frozenset(range(40))  # so many that rows end all the time, and slots are filled anew
    requests = [
        GenerationRequest(prompt, 5 + i, seed=10 * i + sample, stop_ids=stop_ids)
        for i, prompt in enumerate(prompts)
        for sample in range(3)
    ]
    expected = Generator(model, max_batch=4).run(requests)
    kernel = plain_kernel if is_packed else None
    seen = Generator(model, max_batch=4, recorder=Recordings(), kernel=kernel).run(requests)
    assert {generation.finish_reason for generation in expected} == {"stop", "length"}
    for late, plain in zip(seen, expected, strict=True):
        assert (late.completion_ids, late.finish_reason) == (plain.completion_ids, plain.finish_reason)
        assert late.logprobs == pytest.approx(plain.logprobs, abs=1e-4)


def test_no_pass_is_launched_for_rows_that_are_known_to_end(model: PreTrainedModel, prompts: Prompts) -> None:
    generator = Generator(model, recorder=Recordings())
    passes: list[int] = []
    hook = model.base_model.register_forward_pre_hook(lambda *_: passes.append(1))
    try:
        generator.run([GenerationRequest(prompt, 7) for prompt in prompts[:3]])
    finally:
        hook.remove()
    # One that fills the slots, six that decode, and one more by which the recorder looks at the shape.
    assert len(passes) == 1 + 6 + 1


def test_a_cancelled_row_is_not_read_from_the_pass_under_way(model: PreTrainedModel, prompts: Prompts) -> None:
    requests = [GenerationRequest(prompt, 12, seed=i) for i, prompt in enumerate(prompts[:4])]
    expected = Generator(model).run(requests)
    generator = Generator(model, max_batch=3, recorder=Recordings())
    handles = [generator.submit(request) for request in requests]
    generator.step()
    generator.step()
    generator.cancel(handles[0])
    done = {}
    while generator.num_active:
        done.update(generator.step())
    assert handles[0] not in done
    assert [done[handle].completion_ids for handle in handles[1:]] == [other.completion_ids for other in expected[1:]]


def test_a_recorded_pass_serves_fewer_rows_unless_far_fewer() -> None:
    passes = RecordedPasses(lambda run: run)
    assert passes.rows_for(100) == 128
    passes.get(Shape(128, 256, PickSteps(False, False, False, False)), lambda: torch.zeros(2, 128))
    assert [passes.rows_for(count) for count in (128, 64, 33, 32, 17, 16, 1)] == [128, 128, 128, 128, 128, 16, 1]
    assert passes.rows_for(129) == 256


def test_growing_buffers_are_recorded_anew(model: PreTrainedModel, assert_forced: Forced) -> None:
    recordings = Recordings()
    generations = Generator(model, recorder=recordings).run([GenerationRequest([7] * 250, 20)])
    assert_forced(model, [[7] * 250], generations)
    assert recordings.shapes == [1, 1], "up to 256 columns, and more"


def test_model_whose_passes_cannot_be_recorded_decodes_without(
    model: PreTrainedModel, prompts: Prompts, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(run: Pass) -> Pass:
        raise RuntimeError("operation not permitted when stream is capturing")

    requests = [GenerationRequest(prompt, 12, seed=i) for i, prompt in enumerate(prompts[:3])]
    seen = Generator(model, recorder=refuse).run(requests)
    assert [one.completion_ids for one in seen] == [one.completion_ids for one in Generator(model).run(requests)]
    assert caplog.text.count("cannot be recorded") == 1


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_cuda_graphs_decode_what_one_forward_pass_gives(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=500, hidden_size=64, intermediate_size=128, num_hidden_layers=3, num_attention_heads=4,
        num_key_value_heads=2, head_dim=16, max_position_embeddings=1024,
    )  # fmt: skip
    model = Qwen3ForCausalLM(config).to("cuda", dtype).eval().requires_grad_(False)
    requests = [GenerationRequest([3 + i] * (5 * i + 1), 40 + 30 * i, seed=i) for i in range(9)]
    requests += [replace(requests[4], seed=seed) for seed in (20, 21)]
    tolerance = 1e-4 if dtype is torch.float32 else 0.1
    for request, generation in zip(requests, Generator(model, max_batch=6).run(requests), strict=True):
        ids = torch.tensor([[*request.prompt_ids, *generation.completion_ids]], device="cuda")
        with torch.no_grad():
            logits = model(ids).logits[0, len(request.prompt_ids) - 1 : -1].float()
        expected = logits.log_softmax(-1).gather(-1, ids[0, len(request.prompt_ids) :, None])[:, 0]
        assert generation.logprobs == pytest.approx(expected.tolist(), abs=tolerance)
