"""The output layer in training: gradients computed with the loss, in chunks, against all logits at once.

Dimensions: N loss positions, H hidden, V vocabulary.

Claim
    At V = 151,936, N = 2,048 and H = 1,024 the head with its loss takes at most a quarter of the naive memory, in
    float32 trained or frozen and in bfloat16 frozen (0.3 % more where it is trained), with the accuracy of each token
    measured besides.

Measured
    Ours over naive, both with float32 products by oneDNN, on two quiet cores: memory, CPU time over two rounds:
        float32   trained  0.20   0.95 (0.94..0.95)      frozen  0.03   0.80 (0.80..0.81)
        bfloat16  trained  0.253  0.99 (0.93..1.05)      frozen  0.02   0.67 (0.65..0.69)
    Losses differ by 2e-7 and gradients by 4e-7 in float32; in bfloat16 gradients by 6e-4.

    Exact divergences from a teacher of the same width (`--losses reverse_kl jsd --tokens 512 --dtypes float32 --weights
    trained --threads 1`, two rounds, other work running), where the weight's gradient is a third of the naive memory:
        reverse_kl  0.43   0.89 (0.87..0.91)      jsd  0.24   0.52 (0.46..0.58)
    Losses differ by 1e-7 and 6e-6, gradients by 1e-6 and 2e-6.
"""

import math
import multiprocessing
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final, Literal, NamedTuple, get_args

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy as naive_cross_entropy
from torch.nn.functional import kl_div, linear

from benchmarks.frame.memory import status_bytes
from benchmarks.frame.rounds import Spread, alternate, argument_parser, publish, ratio, spread
from stillhouse.config import Divergence
from stillhouse.training.head.fused import CPU_CHUNK_ELEMENTS, fused_loss
from stillhouse.training.head.scores import Reference, TokenLosses, TokenScores
from stillhouse.training.losses import cross_entropy
from stillhouse.training.repeatability import use_fast_float32_products

Side = Literal["ours", "naive"]
Loss = Literal["cross_entropy", "reverse_kl", "forward_kl", "jsd", "top_k"]

_TOP_K: Final = 32
_DIVERGENCES: Final[dict[Loss, tuple[Divergence, ...]]] = {
    "cross_entropy": (),
    "reverse_kl": (Divergence(kind="reverse_kl"),),
    "forward_kl": (Divergence(kind="forward_kl"),),
    "jsd": (Divergence(kind="jsd", beta=0.5),),
    "top_k": (Divergence(kind="forward_kl", top_k=_TOP_K),),
}


class Setting(NamedTuple):
    """What is computed, and how."""

    loss: Loss
    """Of the targets, or an exact divergence from a teacher of the same width: `jsd` at beta = 0.5, `top_k` the forward
    KL over the teacher's 32 most probable tokens and the mass of the others."""
    num_tokens: int
    vocabulary: int
    hidden: int
    dtype: str
    """Type of the matrix products: float32, or bfloat16 under autocast."""
    is_trained: bool
    """Whether the weight is trained, and then float32, or frozen in the type of the products."""
    chunk_elements: int
    num_threads: int
    onednn: bool
    """Whether float32 products may go through oneDNN, as a training lets them."""
    device: str = "cpu"
    compiled: bool = False
    """Whether ours makes the passes over the logits by compiled kernels."""


@dataclass(frozen=True, slots=True)
class Report:
    """Figures of one setting; ratios are ours over naive."""

    setting: Setting
    memory: float
    """Ratio of peak memory."""
    naive_bytes: int
    our_bytes: int
    wall: Spread
    cpu: Spread
    naive_cpu_s: Spread
    loss_difference: float
    """Relative."""
    gradient_difference: float
    """Norm of the difference of a gradient over the norm of the gradient."""

    def line(self) -> str:
        """The figures as printed."""
        setting, mib = self.setting, self.naive_bytes / 2**20
        weight = "trained" if setting.is_trained else "frozen"
        differences = f"{self.loss_difference:.0e} (loss), {self.gradient_difference:.0e} (gradients)"
        return (
            f"  {setting.loss:<13} N {setting.num_tokens:,} V {setting.vocabulary:,} H {setting.hidden:,}"
            f" {setting.dtype:>8} {weight:>7}"
            f"   memory {self.memory:.3f} of {mib:,.0f} MiB   CPU {self.cpu} of {self.naive_cpu_s.median:.3g} s"
            f"   wall {self.wall}   differs by {differences}"
        )


class Head:
    """Inputs of one setting, and the two ways from them to a loss with gradients."""

    def __init__(self, setting: Setting) -> None:
        torch.set_num_threads(setting.num_threads)
        if setting.onednn:
            use_fast_float32_products()
        generator = torch.Generator(setting.device).manual_seed(0)
        dtype = getattr(torch, setting.dtype)
        self._setting = setting
        self.autocast = torch.autocast(setting.device, torch.bfloat16, enabled=dtype is torch.bfloat16)
        with torch.device(setting.device):
            shape = (setting.num_tokens, setting.hidden)
            self.hidden_NH = torch.randn(shape, generator=generator).to(dtype).requires_grad_()
            self.layer = nn.Linear(
                setting.hidden, setting.vocabulary, bias=False, dtype=torch.float32 if setting.is_trained else dtype
            ).requires_grad_(setting.is_trained)
            nn.init.normal_(self.layer.weight, std=setting.hidden**-0.5, generator=generator)
            self.targets_N = torch.randint(setting.vocabulary, (setting.num_tokens,), generator=generator)
            self._reference = None if setting.loss == "cross_entropy" else self._new_reference(generator, dtype)

    def _new_reference(self, generator: torch.Generator, dtype: torch.dtype) -> Reference:
        """The student's own output layer over hidden states that differ by half."""
        shape = (self._setting.num_tokens, self._setting.hidden)
        noise_NH = 0.5 * torch.randn(shape, generator=generator)
        layer = nn.Linear(self._setting.hidden, self._setting.vocabulary, bias=False, dtype=dtype).requires_grad_(False)
        layer.weight.copy_(self.layer.weight.detach())
        return Reference(self.hidden_NH.detach() + noise_NH.to(dtype), layer, self._setting.vocabulary)

    def run(self, side: Side) -> list[Tensor]:
        """Loss, gradient of the hidden states [N, H], and that of the weight [V, H] where it is trained."""
        self.clear_gradients()
        with self.autocast:
            loss = self._our_loss() if side == "ours" else self._naive_loss()
        loss.backward()
        return [x for x in (loss.detach(), self.hidden_NH.grad, self.layer.weight.grad) if x is not None]

    def clear_gradients(self) -> None:
        """Forgets those of an earlier run."""
        self.hidden_NH.grad = self.layer.weight.grad = None

    def _naive_loss(self) -> Tensor:
        logits_NV = linear(self.hidden_NH, self.layer.weight)
        if self._reference is None:
            return naive_cross_entropy(logits_NV, self.targets_N)
        student_NV = logits_NV.float().log_softmax(-1)
        with torch.no_grad():
            teacher_NV = linear(self._reference.hidden_NR, self._reference.head.weight).float().log_softmax(-1)
        if self._setting.loss == "reverse_kl":
            return _kl(student_NV, teacher_NV)
        if self._setting.loss == "forward_kl":
            return _kl(teacher_NV, student_NV)
        if self._setting.loss == "top_k":
            ids_NK = teacher_NV.topk(_TOP_K).indices
            return _kl(_with_tail(teacher_NV.gather(1, ids_NK)), _with_tail(student_NV.gather(1, ids_NK)))
        mixture_NV = torch.logsumexp(torch.stack([student_NV, teacher_NV]) + math.log(0.5), dim=0)
        return 0.5 * (_kl(student_NV, mixture_NV) + _kl(teacher_NV, mixture_NV))

    def _our_loss(self) -> Tensor:
        return fused_loss(
            self.hidden_NH,
            self.layer,
            self.targets_N,
            {},
            _method_loss,
            scale=1.0 / self._setting.num_tokens,
            divergence=_DIVERGENCES[self._setting.loss],
            reference=self._reference,
            chunk_elements=self._setting.chunk_elements,
            compiled=self._setting.compiled,
        ).loss


def _kl(one_NV: Tensor, other_NV: Tensor) -> Tensor:
    """KL(one || other), a mean over tokens, of log-probabilities."""
    return kl_div(other_NV, one_NV, reduction="batchmean", log_target=True)


def _with_tail(logprobs_NK: Tensor) -> Tensor:
    """The log-probabilities [N, K + 1] of K tokens and of all others together."""
    tail_N = torch.log1p(-logprobs_NK.exp().sum(-1).clamp(max=1.0 - 1e-7))
    return torch.cat([logprobs_NK, tail_N[:, None]], dim=1)


def _method_loss(scores: TokenScores, _: Mapping[str, Tensor]) -> TokenLosses:
    losses_N = cross_entropy(scores.logprobs_N) if scores.divergence_N is None else scores.divergence_N
    return TokenLosses(losses_N, means={"token_accuracy": scores.is_top_N.float()})


def peak_bytes(side: Side, setting: Setting) -> int:
    """Most memory of a loss and its gradients beyond what inputs and weight take, in a process of its own."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(_grown_by, (side, setting))


def _grown_by(side: Side, setting: Setting) -> int:
    # Brings libraries and compiled kernels into memory.
    Head(setting._replace(num_tokens=32, vocabulary=2048, chunk_elements=8 * 2048)).run(side)
    head = Head(setting)
    # Resets VmHWM; where it is not allowed, VmHWM is at most some MiB above what is held now.
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")
    before = status_bytes("VmRSS")
    head.run(side)
    return status_bytes("VmHWM") - before


def measure(setting: Setting, rounds: int) -> Report:
    """Memory, time and agreement of one setting."""
    naive_bytes, our_bytes = peak_bytes("naive", setting), peak_bytes("ours", setting)
    head = Head(setting)
    pairs = zip(head.run("ours"), head.run("naive"), strict=True)
    differences = [float((ours - theirs).norm() / theirs.norm()) for ours, theirs in pairs]
    costs = alternate({"naive": lambda: head.run("naive"), "ours": lambda: head.run("ours")}, rounds)
    return Report(
        setting=setting,
        memory=our_bytes / naive_bytes,
        naive_bytes=naive_bytes,
        our_bytes=our_bytes,
        wall=ratio([cost.wall_s for cost in costs["ours"]], [cost.wall_s for cost in costs["naive"]]),
        cpu=ratio([cost.cpu_s for cost in costs["ours"]], [cost.cpu_s for cost in costs["naive"]]),
        naive_cpu_s=spread([cost.cpu_s for cost in costs["naive"]]),
        loss_difference=differences[0],
        gradient_difference=max(differences[1:]),
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """Entry point."""
    parser = argument_parser(__doc__)
    parser.add_argument("--losses", nargs="+", choices=get_args(Loss), default=["cross_entropy"])
    parser.add_argument("--vocabulary", type=int, default=151936, metavar="V")
    parser.add_argument("--tokens", type=int, default=2048, metavar="N")
    parser.add_argument("--hidden", type=int, default=1024, metavar="H")
    parser.add_argument("--dtypes", nargs="+", choices=["float32", "bfloat16"], default=["float32", "bfloat16"])
    parser.add_argument("--weights", nargs="+", choices=["trained", "frozen"], default=["trained", "frozen"])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--chunk-elements", type=int, default=CPU_CHUNK_ELEMENTS)
    parser.add_argument("--mkl", action="store_true", help="leave float32 products to MKL, as torch does unasked")
    chosen = parser.parse_args(arguments)
    reports = [
        measure(
            Setting(
                loss=loss,
                num_tokens=chosen.tokens,
                vocabulary=chosen.vocabulary,
                hidden=chosen.hidden,
                dtype=dtype,
                is_trained=weight == "trained",
                chunk_elements=chosen.chunk_elements,
                num_threads=chosen.threads,
                onednn=not chosen.mkl,
            ),
            chosen.rounds,
        )
        for loss in chosen.losses
        for dtype in chosen.dtypes
        for weight in chosen.weights
    ]
    publish(
        ["loss head; training's over naive logits and autograd", *(report.line() for report in reports)],
        {"settings": [asdict(report) | {"setting": report.setting._asdict()} for report in reports]},
        chosen.json,
    )


if __name__ == "__main__":
    main()
