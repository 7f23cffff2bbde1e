from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from transformers import (
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    MistralConfig,
    MistralForCausalLM,
    PreTrainedModel,
    Qwen3Config,
    Qwen3ForCausalLM,
)
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from stillhouse.attention import use_attention
from stillhouse.attention.function import attention
from stillhouse.attention.segments import Segments, _flash, segment_arguments
from stillhouse.errors import TrainingError
from stillhouse.training.model.microbatches import Microbatch, collate
from stillhouse.types import Sample

CPU = torch.device("cpu")
LENGTHS = (12, 3, 9, 1, 7)
WINDOW = 4
WINDOWED = {"use_sliding_window": True, "sliding_window": WINDOW, "max_window_layers": 1}
FAMILIES: dict[str, tuple[type, type, dict[str, Any]]] = {
    "qwen3, some layers with a window": (Qwen3ForCausalLM, Qwen3Config, WINDOWED),
    "mistral, all layers with a window": (MistralForCausalLM, MistralConfig, {"sliding_window": WINDOW}),
    "gemma3, one layer in two with a window": (
        Gemma3ForCausalLM,
        Gemma3TextConfig,
        {"sliding_window": WINDOW, "layer_types": ["sliding_attention", "full_attention"]},
    ),
}


def new_model(family: str) -> PreTrainedModel:
    model_class, config_class, extra = FAMILIES[family]
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "head_dim": 8}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2}
    # Large weights: attention then depends much on what it sees.
    config = config_class(vocab_size=50, pad_token_id=0, initializer_range=0.3, **sizes, **heads, **extra)
    return use_attention(model_class(config))


@pytest.fixture(params=list(FAMILIES))
def model(request: pytest.FixtureRequest) -> PreTrainedModel:
    return new_model(request.param).eval()


def new_samples() -> list[Sample]:
    generator = torch.Generator().manual_seed(1)
    samples = []
    for number, length in enumerate(LENGTHS):
        token_ids = torch.randint(1, 50, (length + 1,), generator=generator).tolist()
        samples.append(Sample(token_ids, [False] + [index % 3 != 1 for index in range(length)], str(number)))
    return samples


def hidden_states(model: PreTrainedModel, batch: Microbatch) -> Tensor:
    return model.base_model(
        input_ids=batch.inputs_BT,
        position_ids=batch.position_ids_BT,
        use_cache=False,
        **segment_arguments(batch.segments),
    ).last_hidden_state


def gradients(model: PreTrainedModel) -> list[Tensor]:
    model.zero_grad()
    batch = collate(new_samples(), lambda sample: {}, CPU, packing=True)
    logits_NV = model.lm_head(hidden_states(model, batch).flatten(0, 1)[batch.target_places_N])
    torch.nn.functional.cross_entropy(logits_NV, batch.targets_N).backward()
    return [p.grad.clone() for p in model.parameters() if p.grad is not None]


@torch.no_grad()
def test_other_tokens_in_a_sample_leave_the_other_samples_states_the_same_bits(model: PreTrainedModel):
    samples = new_samples()
    before = hidden_states(model, collate(samples, lambda sample: {}, CPU, packing=True))[0]
    changed = samples[2]
    samples[2] = Sample([1 + token % 49 for token in changed.token_ids], changed.loss_mask, "changed")
    batch = collate(samples, lambda sample: {}, CPU, packing=True)
    after = hidden_states(model, batch)[0]
    assert batch.segments is not None
    start, end = batch.segments.starts[2:4].tolist()
    assert not torch.equal(after[start:end], before[start:end])
    assert torch.equal(after[:start], before[:start])
    assert torch.equal(after[end:], before[end:])


@pytest.mark.parametrize("use_reentrant", [False, True])
def test_layers_computed_again_in_the_backward_pass_see_the_segments(use_reentrant: bool):
    model = new_model("qwen3, some layers with a window").train()
    expected = gradients(model)
    model.gradient_checkpointing_enable({"use_reentrant": use_reentrant})
    for one, other in zip(gradients(model), expected, strict=True):
        assert torch.equal(one, other)


def layer() -> Any:
    return SimpleNamespace(num_key_value_groups=2, is_causal=True)


def new_segments(device: torch.device = CPU) -> Segments:
    starts = torch.tensor([0, *LENGTHS], device=device).cumsum(0, dtype=torch.int32)
    return Segments(starts, LENGTHS, max(LENGTHS))


def new_parts(dtype: torch.dtype, device: torch.device = CPU) -> list[Tensor]:
    """Query, key and value of a row, laid out as layers do."""
    generator = torch.Generator().manual_seed(2)
    shapes = [(1, sum(LENGTHS), heads, 8) for heads in (4, 2, 2)]
    return [
        torch.randn(shape, generator=generator, dtype=torch.float64).to(device, dtype).requires_grad_()
        for shape in shapes
    ]


def attend(parts: Sequence[Tensor], **options: Any) -> Tensor:
    query, key, value = (part.transpose(1, 2) for part in parts)
    return attention(layer(), query, key, value, None, **options)[0]


def by_mask(parts: Sequence[Tensor], window: int | None, scaling: float) -> Tensor:
    """softmax(scaling Q K^T) V over the tokens of the same segment, itself and up to `window` - 1 before it."""
    query, key, value = (part[0].transpose(0, 1) for part in parts)
    segment = torch.arange(len(LENGTHS)).repeat_interleave(torch.tensor(LENGTHS))
    place = torch.arange(sum(LENGTHS))
    distance = place[:, None] - place
    seen = (segment[:, None] == segment) & (distance >= 0) & (distance < (window or 1000))
    scores = scaling * query @ key.repeat_interleave(2, dim=0).transpose(1, 2)
    weights = scores.masked_fill(~seen, float("-inf")).softmax(-1)
    return (weights @ value.repeat_interleave(2, dim=0)).transpose(0, 1)[None]


@pytest.mark.parametrize("window", [None, 1, WINDOW, 9, 12])
def test_a_token_sees_its_segment_up_to_itself_and_no_further_than_the_window(window: int | None):
    parts, reference = new_parts(torch.float64), new_parts(torch.float64)
    seen = attend(parts, segments=new_segments(), sliding_window=window, scaling=0.3)
    expected = by_mask(reference, window, 0.3)
    torch.testing.assert_close(seen, expected, rtol=0, atol=1e-12)
    weight = torch.randn(seen.shape, generator=torch.Generator().manual_seed(3), dtype=seen.dtype)
    for one, other in zip(
        torch.autograd.grad((seen * weight).sum(), parts),
        torch.autograd.grad((expected * weight).sum(), reference),
        strict=True,
    ):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-12)


def test_without_segments_it_is_the_attention_of_transformers():
    parts = new_parts(torch.float32)
    expected = sdpa_attention_forward(layer(), *(part.transpose(1, 2) for part in parts), None, scaling=0.3)[0]
    # The last bits of a kernel depend on where its operands lie in memory.
    torch.testing.assert_close(attend(parts, scaling=0.3, sliding_window=None), expected)


def test_dropout_of_the_layer_is_applied():
    assert not attend(new_parts(torch.float32), segments=new_segments(), dropout=1.0).any()


@pytest.mark.parametrize("option", [{"softcap": 30.0}, {"s_aux": torch.zeros(4)}])
def test_attention_that_is_more_than_a_softmax_over_the_segment_is_refused(option: dict[str, Any]):
    with pytest.raises(TrainingError, match=f"asks for {next(iter(option))}"):
        attend(new_parts(torch.float32), segments=new_segments(), **option)


def test_a_mask_that_the_model_made_itself_is_refused():
    parts = [part.transpose(1, 2) for part in new_parts(torch.float32)]
    with pytest.raises(TrainingError, match="a mask of its own"):
        attention(layer(), *parts, torch.ones(1, 1, 32, 32), segments=new_segments())


@pytest.mark.parametrize("window", [None, WINDOW])
def test_the_kernel_for_cuda_is_called_as_the_installed_torch_declares_it(window: int | None):
    with FakeTensorMode():
        parts = [
            torch.empty(1, sum(LENGTHS), heads, 8, dtype=torch.bfloat16, requires_grad=True) for heads in (4, 2, 2)
        ]
        query, key, value = (part.transpose(1, 2) for part in parts)
        output = _flash(query, key, value, new_segments(), {"sliding_window": window, "scaling": 0.3})
        grads = torch.autograd.grad(output.float().sum(), parts)
    assert output.shape == parts[0].shape
    assert [grad.shape for grad in grads] == [part.shape for part in parts]


@pytest.mark.gpu
@pytest.mark.parametrize("window", [None, WINDOW])
@pytest.mark.parametrize("autocast", [False, True])
def test_the_kernel_for_cuda_gives_what_the_formula_gives(window: int | None, autocast: bool):
    device = torch.device("cuda")
    parts = new_parts(torch.float32 if autocast else torch.bfloat16, device)
    reference = new_parts(torch.float64)
    with torch.autocast("cuda", torch.bfloat16, enabled=autocast):
        seen = attend(parts, segments=new_segments(device), sliding_window=window, scaling=0.3)
    assert seen.dtype is torch.bfloat16
    expected = by_mask(reference, window, 0.3)
    grads = torch.autograd.grad(seen.float().square().sum(), parts)
    for one, other in zip(
        [seen, *grads], [expected, *torch.autograd.grad(expected.square().sum(), reference)], strict=True
    ):
        assert (one.detach().cpu().double() - other).norm() <= 5e-2 * other.norm()
