from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from transformers import PreTrainedModel, Qwen3Config, Qwen3ForCausalLM

from stillhouse.serving.generation import GenerationRequest
from stillhouse.serving.generator import Generator
from stillhouse.serving.graphs import Pass

Forced = Callable[..., list[float]]


class Recordings:
    """Records a pass as itself, which is what a graph computes."""

    def __init__(self) -> None:
        self.shapes: list[int] = []

    def __call__(self, run: Pass) -> Pass:
        self.shapes.append(run().shape[0])
        return run


def test_recorded_passes_decode_what_plain_ones_do_and_leave_parked_turns_alone(
    model: PreTrainedModel, prompts: list[list[int]], teacher_forced: Forced
) -> None:
    recordings = Recordings()
    generator = Generator(model, max_batch=5, recorder=recordings)
    history = [list(prompt) for prompt in prompts]
    for turn in range(2):
        requests = [GenerationRequest(prompt, 4 + 2 * i, seed=turn) for i, prompt in enumerate(history)]
        for i, (request, generation) in enumerate(zip(requests, generator.run(requests), strict=True)):
            expected = teacher_forced(model, request.prompt_ids, generation.completion_ids)
            assert generation.logprobs == pytest.approx(expected, abs=1e-4)
            history[i] = [*request.prompt_ids, *generation.completion_ids, 11]
    assert set(recordings.shapes) == {1, 2, 4, 8}
    assert len(recordings.shapes) <= 8, "a shape is recorded once, and again where the buffers have grown"


def test_growing_buffers_are_recorded_anew(model: PreTrainedModel, teacher_forced: Forced) -> None:
    recordings = Recordings()
    [generation] = Generator(model, recorder=recordings).run([GenerationRequest([7] * 250, 20)])
    assert generation.logprobs == pytest.approx(teacher_forced(model, [7] * 250, generation.completion_ids), abs=1e-4)
    assert recordings.shapes == [1, 1], "up to 256 columns, and more"


def test_model_whose_passes_cannot_be_recorded_decodes_without(
    model: PreTrainedModel, prompts: list[list[int]], caplog: pytest.LogCaptureFixture
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
