import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

from stillhouse.attention.products import segment_products

LENGTHS = (1, 130, 5, 300, 128, 5, 20, 20, 5)
"""Around the number of queries that are multiplied at once; short ones of one length, which are multiplied together."""


def inputs(dtype: torch.dtype) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    shapes = [(heads, sum(LENGTHS), 8) for heads in (4, 2, 2)]
    return [torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype).requires_grad_() for shape in shapes]


def by_sdpa(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    parts = zip(*(x[None].split(LENGTHS, dim=2) for x in (query, key, value)), strict=True)
    outputs = [scaled_dot_product_attention(q, k, v, is_causal=True, scale=0.3, enable_gqa=True) for q, k, v in parts]
    return torch.cat(outputs, dim=2)[0].transpose(0, 1)


@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 1e-5), (torch.bfloat16, 3e-2)]
)
def test_products_give_what_attention_of_each_segment_alone_gives(dtype: torch.dtype, tolerance: float):
    ours, theirs = inputs(dtype), inputs(torch.float64)
    output, expected = segment_products(*ours, LENGTHS, 0.3), by_sdpa(*theirs)
    outer = torch.randn(expected.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    seen = (output, *torch.autograd.grad(output, ours, outer.to(dtype)))
    wanted = (expected, *torch.autograd.grad(expected, theirs, outer))
    for ours_, theirs_ in zip(seen, wanted, strict=True):
        assert (ours_.double() - theirs_).norm() <= tolerance * theirs_.norm()


def test_nothing_passes_from_one_segment_to_another():
    query, key, value = inputs(torch.float32)
    output = segment_products(query, key, value, LENGTHS, 0.3)
    (d_key,) = torch.autograd.grad(output[:131].sum(), [key])
    assert d_key[:, :131].any()
    assert not d_key[:, 131:].any()
