"""Whether what is fast is right, on this device: each check holds two ways of computing the same against each other.

`packing`   loss and gradients of packed rows against padded ones, and in bfloat16 both against float32.
`sampler`   log-probabilities of sampled tokens against one forward pass over the whole sequence.
`adapter`   logits with an adapter next to the weights against logits with the adapter merged.
`head`      the fused head's loss and gradients against all logits at once with autograd.

Differences of gradients and logits are ||a - b|| / ||b||, those of log-probabilities absolute, in nats.
"""

from dataclasses import replace
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor, nn

from benchmarks.gpu.bench import Bench
from benchmarks.gpu.heads import Head, Setting
from benchmarks.gpu.models import VOCABULARY, build, shape_of
from benchmarks.gpu.parts.sft import workload
from benchmarks.gpu.plan import Row
from benchmarks.sft.workload import Shape, word_tokenizer
from stillhouse.config import SftConfig, TrainerConfig
from stillhouse.config.training import SftSource
from stillhouse.serving.generation import GenerationRequest
from stillhouse.serving.generator import Generator
from stillhouse.training.loop.passes import Passes
from stillhouse.training.loop.row_order import Mixture
from stillhouse.training.model.student import Student
from stillhouse.training.on_policy.sampling.transformers import sampling_weights
from stillhouse.training.ranks import Ranks
from stillhouse.training.sft.method import Sft

_NUM_LAYERS: Final = 4
_NUM_ROWS: Final = 12
_NUM_SAMPLED: Final = 48
_NUM_HEAD_TOKENS: Final = 2_048


def measure(row: Row, bench: Bench) -> None:
    """Takes one check."""
    checks = {"packing": _packing, "sampler": _sampler, "adapter": _adapter}
    if row.options["check"] == "head":
        bench.record(_head(bench, **{name: value for name, value in row.options.items() if name != "check"}))
    else:
        bench.record(checks[row.options["check"]](getattr(torch, row.options["dtype"]), bench))


def _packing(dtype: torch.dtype, bench: Bench) -> dict[str, float]:
    packed = _loss_and_gradients(dtype, bench, packing=True)
    padded = _loss_and_gradients(dtype, bench, packing=False)
    figures = {
        "loss": packed[0],
        "loss_difference": abs(packed[0] - padded[0]),
        "gradient_difference": _relative(packed[1], padded[1]),
    }
    if dtype is not torch.float32:
        exact = _loss_and_gradients(torch.float32, bench, packing=False)
        figures |= {
            "packed_from_float32": _relative(packed[1], exact[1]),
            "padded_from_float32": _relative(padded[1], exact[1]),
        }
    return figures


def _loss_and_gradients(dtype: torch.dtype, bench: Bench, *, packing: bool) -> tuple[float, Tensor]:
    """Of one batch of SFT with all weights trained; the gradients as one vector."""
    built = build(_few_layers(bench), bench, parameters="full")
    vocabulary = built.causal_lm.config.vocab_size
    student = Student(built.model.eval(), built.causal_lm, word_tokenizer(vocabulary), "random", dtype)
    config = SftConfig(
        sources=(SftSource(path="none"),), trainer=TrainerConfig(microbatch_tokens=4_096, packing=packing)
    )
    passes = Passes(student, Ranks.single(bench.device), config.trainer)
    if passes.packing != packing:
        raise RuntimeError(f"rows are {'padded' if packing else 'packed'} although packing is {packing}")
    method = Sft([], [], Mixture((1,), (1.0,), 1, 1, 0), [1] * vocabulary, config, {})
    result = passes.backward(workload(bench, vocabulary)[0][:_NUM_ROWS], method)
    gradients = torch.cat([p.grad.flatten() for _, p in student.trained_parameters() if p.grad is not None])
    return result.loss, gradients


def _sampler(dtype: torch.dtype, bench: Bench) -> dict[str, float]:
    model: Any = build(_few_layers(bench), bench, parameters="frozen").causal_lm.to(dtype)
    vocabulary = model.config.vocab_size
    generator = np.random.default_rng(0)
    requests = [
        GenerationRequest(generator.integers(vocabulary, size=length).tolist(), _NUM_SAMPLED, seed=length)
        for length in range(3, 35)
    ]
    from_whole = []
    for request, generation in zip(requests, Generator(model).run(requests), strict=True):
        ids = torch.tensor([[*request.prompt_ids, *generation.completion_ids]], device=bench.device)
        with torch.no_grad():
            logits = model(ids).logits[0, len(request.prompt_ids) - 1 : -1].float()
        expected = logits.log_softmax(-1).gather(-1, ids[0, len(request.prompt_ids) :, None])[:, 0]
        from_whole += (torch.tensor(generation.logprobs) - expected.cpu()).abs().tolist()
    return {
        "mean_logprob_difference": sum(from_whole) / len(from_whole),
        "largest_logprob_difference": max(from_whole),
    }


def _adapter(dtype: torch.dtype, bench: Bench) -> dict[str, float]:
    built = build(_few_layers(bench), bench, parameters="lora")
    model = built.model.to(dtype)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_B" in name:
                # Zero at the start, with which merging would change nothing.
                nn.init.normal_(parameter, std=0.02)
    student = Student(model.eval(), built.causal_lm, word_tokenizer(VOCABULARY), "random", dtype)
    ids = torch.arange(256, device=bench.device)[None] % built.causal_lm.config.vocab_size
    with torch.no_grad(), student.precision():
        separate = model(ids).logits.float()
        with model.disable_adapter():
            without = model(ids).logits.float()
        with sampling_weights(student):
            sampled = model(ids).logits.float()
        merged = model.merge_and_unload()(ids).logits.float()
    return {
        "merged_difference": _relative(merged, separate),
        "sampling_difference": _relative(sampled, separate),
        "effect": _relative(without, separate),
    }


def _head(bench: Bench, *, loss: Any, dtype: str, compiled: bool = False) -> dict[str, float]:
    setting = Setting(
        loss=loss,
        num_tokens=64 if bench.tiny else _NUM_HEAD_TOKENS,
        vocabulary=512 if bench.tiny else VOCABULARY,
        hidden=32 if bench.tiny else 1_024,
        dtype=dtype,
        is_trained=True,
        # Several chunks, the last of them shorter.
        chunk_elements=(512 if bench.tiny else VOCABULARY) * 27,
        num_threads=torch.get_num_threads(),
        onednn=True,
        device=bench.device.type,
        compiled=compiled,
    )
    head = Head(setting)
    pairs = zip(head.run("ours"), head.run("naive"), strict=True)
    differences = [_relative(ours.double(), naive.double()) for ours, naive in pairs]
    return {"loss_difference": differences[0], "gradient_difference": max(differences[1:])}


def _few_layers(bench: Bench) -> Shape:
    shape = shape_of("0.6B", bench)
    return replace(shape, layers=min(shape.layers, _NUM_LAYERS))


def _relative(value: Tensor, reference: Tensor) -> float:
    return float((value - reference).norm() / reference.norm())
