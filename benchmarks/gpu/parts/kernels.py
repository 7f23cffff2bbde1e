"""What the device's kernels decide, probed in seconds before anything long begins: are they there, right, and fast?"""

from typing import Any, Final

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from benchmarks.gpu.bench import Bench, Unavailable
from benchmarks.gpu.plan import Row
from benchmarks.gpu.timing import median_seconds
from stillhouse.attention.function import attention
from stillhouse.attention.segments import Segments
from stillhouse.training.monitoring.flops import measure_peak_flops

_HEADS: Final = 16
_KV_HEADS: Final = 8
_WIDTH: Final = 128
_LENGTHS: Final = (1500, 37, 700, 1, 1024, 834)
"""Of the segments of a packed row: 4,096 tokens in all."""


def measure(row: Row, bench: Bench) -> None:
    """Tries one kind of kernel."""
    probes = {
        "peaks": _peaks,
        "flash": _packed_attention,
        "decoding": _decoding_attention,
        "compile": _compile,
        "quantised": _quantised,
    }
    bench.record(probes[row.options["kernel"]](bench))


def _peaks(bench: Bench) -> dict[str, float]:
    """Speed of large matrix products, and of a copy, which reads and writes each byte once."""
    numbers = torch.ones(1 << (20 if bench.tiny else 30), device=bench.device)
    copy = torch.empty_like(numbers)
    seconds = median_seconds(lambda: copy.copy_(numbers), bench)
    return {
        "bf16_tflops": measure_peak_flops(bench.device, torch.bfloat16) / 1e12,
        "float32_tflops": measure_peak_flops(bench.device, torch.float32) / 1e12,
        "copy_tb_per_s": 2 * numbers.nbytes / seconds / 1e12,
    }


def _packed_attention(bench: Bench) -> dict[str, float]:
    """Attention of a packed row with grouped heads, forward and backward, against float32 segment by segment."""
    segments = _segments(bench)
    inputs = _attention_inputs(segments, bench)
    module = torch.nn.Module()
    module.num_key_value_groups = _HEADS // _KV_HEADS  # type: ignore[assignment]
    module.is_causal = True  # type: ignore[assignment]
    module.eval()

    def attend(dtype: torch.dtype) -> list[Tensor]:
        leaves = [x.to(dtype, copy=True).requires_grad_() for x in inputs]
        query, key, value = leaves
        output, _ = attention(module, query, key, value, None, segments=segments, scaling=_WIDTH**-0.5)
        output.float().square().sum().backward()
        return [output.detach(), *(leaf.grad for leaf in leaves if leaf.grad is not None)]

    exact = attend(torch.float32)
    differences = [float((a.float() - b).norm() / b.norm()) for a, b in zip(attend(torch.bfloat16), exact, strict=True)]
    flops = 12.0 * _HEADS * _WIDTH * sum(length * (length + 1) // 2 for length in segments.lengths)
    seconds = median_seconds(lambda: attend(torch.bfloat16), bench)
    return {
        "output_difference": differences[0],
        "gradient_difference": max(differences[1:]),
        "tflops": flops / seconds / 1e12,
    }


def _decoding_attention(bench: Bench) -> dict[str, float]:
    """One token of each row against its keys and values: a mask, and two query heads for each key head."""
    rows, columns = (4, 64) if bench.tiny else (256, 640)
    query = torch.randn(rows, _KV_HEADS, _HEADS // _KV_HEADS, _WIDTH, device=bench.device, dtype=torch.bfloat16)
    keys, values = (
        torch.randn(rows, _KV_HEADS, columns, _WIDTH, device=bench.device, dtype=torch.bfloat16) for _ in range(2)
    )
    mask = torch.ones(rows, 1, 1, columns, dtype=torch.bool, device=bench.device)
    mask[:, :, :, columns - columns // 4 :] = False
    seconds = median_seconds(lambda: scaled_dot_product_attention(query, keys, values, attn_mask=mask), bench)
    return {"us": 1e6 * seconds, "tb_per_s": (keys.nbytes + values.nbytes) / seconds / 1e12}


def _compile(bench: Bench) -> dict[str, float]:
    """A compiled function with its gradient, and the seconds until it is there."""
    x = torch.randn(64, 256, device=bench.device, requires_grad=True)

    def work(x: Tensor) -> Tensor:
        return (torch.nn.functional.silu(x) * x.tanh()).sum()

    compiled: Any = torch.compile(work, dynamic=True)
    (gradient,) = torch.autograd.grad(compiled(x), x)
    (expected,) = torch.autograd.grad(work(x), x)
    return {"largest_difference": float((gradient - expected).abs().max())}


def _quantised(bench: Bench) -> dict[str, float]:
    """Weights in NF4 against their own bfloat16, and a step of AdamW with 8-bit states."""
    if not bench.on_gpu:
        raise Unavailable("bitsandbytes is used on CUDA alone")
    from bitsandbytes.functional import dequantize_4bit, quantize_4bit
    from bitsandbytes.optim import AdamW8bit

    weight = torch.randn(4096, 4096, device=bench.device, dtype=torch.bfloat16)
    packed, state = quantize_4bit(weight, quant_type="nf4", compress_statistics=True)
    restored = dequantize_4bit(packed, state)
    parameter = torch.nn.Parameter(weight.float())
    parameter.grad = torch.randn_like(parameter)
    AdamW8bit([parameter], lr=1e-3).step()
    return {
        "nf4_difference": float((restored - weight).float().norm() / weight.float().norm()),
        "adamw_step": float((parameter.detach() - weight.float()).abs().mean()),
    }


def _segments(bench: Bench) -> Segments:
    lengths = (9, 1, 6) if bench.tiny else _LENGTHS
    starts = torch.tensor([0, *torch.tensor(lengths).cumsum(0).tolist()], dtype=torch.int32, device=bench.device)
    return Segments(starts, lengths, max(lengths))


def _attention_inputs(segments: Segments, bench: Bench) -> list[Tensor]:
    generator = torch.Generator(bench.device).manual_seed(0)
    return [
        torch.randn(1, heads, sum(segments.lengths), _WIDTH, device=bench.device, generator=generator)
        for heads in (_HEADS, _KV_HEADS, _KV_HEADS)
    ]
