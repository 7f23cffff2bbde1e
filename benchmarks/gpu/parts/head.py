"""The output layer with its loss alone: time, memory, and the time that its matrix products need at the measured peak.

V = 151,936 and 16,384 positions in bfloat16. `naive` makes all logits at once and lets autograd differentiate; `liger`
is Liger's fused linear cross-entropy. Products count 2NVH each: three where the weight is trained, two where it is
frozen, and one more for the teacher's logits.
"""

from collections.abc import Callable
from functools import partial
from typing import Final

import torch

from benchmarks.gpu.bench import Bench
from benchmarks.gpu.heads import Head, Setting, Side
from benchmarks.gpu.models import VOCABULARY
from benchmarks.gpu.plan import Row
from benchmarks.gpu.timing import median_seconds, peak_gib
from stillhouse.training.head.fused import GPU_CHUNK_ELEMENTS
from stillhouse.training.monitoring.flops import measure_peak_flops

_NUM_TOKENS: Final = 16_384


def measure(row: Row, bench: Bench) -> None:
    """Times one side."""
    options = row.options
    setting = Setting(
        loss=options["loss"],
        num_tokens=64 if bench.tiny else _NUM_TOKENS,
        vocabulary=512 if bench.tiny else VOCABULARY,
        hidden=32 if bench.tiny else options["hidden"],
        dtype="bfloat16",
        is_trained=options["trained"],
        chunk_elements=GPU_CHUNK_ELEMENTS,
        num_threads=torch.get_num_threads(),
        onednn=True,
        device=bench.device.type,
        compiled=options["side"] == "ours, compiled",
    )
    head = Head(setting)
    work: Callable[[], object]
    if options["side"] == "liger":
        work = _liger(head)
    else:
        side: Side = "naive" if options["side"] == "naive" else "ours"
        work = partial(head.run, side)
    seconds = median_seconds(work, bench)
    num_products = 2 + setting.is_trained + (setting.loss != "cross_entropy")
    flops = 2.0 * num_products * setting.num_tokens * setting.vocabulary * setting.hidden
    bench.record(
        {
            "ms": 1e3 * seconds,
            "floor_ms": 1e3 * flops / measure_peak_flops(bench.device, torch.bfloat16),
            "peak_memory_gib": peak_gib(work, bench),
        }
    )


def _liger(head: Head) -> Callable[[], object]:
    """Forward and backward pass by Liger on the same inputs."""
    from liger_kernel.transformers import LigerFusedLinearCrossEntropyLoss

    loss = LigerFusedLinearCrossEntropyLoss()

    def work() -> None:
        head.clear_gradients()
        with head.autocast:
            loss(head.layer.weight, head.hidden_NH, head.targets_N).backward()

    return work
