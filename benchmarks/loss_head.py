"""The language-model head in training: chunks that are computed twice against all logits at once.

Dimensions: N loss positions, H hidden, V vocabulary.

Claim
    Memory of loss and backward pass is bounded by the chunk, 2^24 logits, however many positions a microbatch has, for
    the price of scoring every chunk twice; values and gradients are those of the naive way. Within one chunk there is
    nothing to gain, and training's entropy and accuracy of each token cost what they cost.

Measured
    Naive is what a trainer writes first: `cross_entropy(linear(hidden, weight), targets)`, forward and backward, and no
    metric of its tokens. Peak memory is what a child process of each side and size grows by at most (Linux's VmHWM
    over VmRSS, reset after a small warm-up run, inputs and gradients included). Time is that of alternating rounds in
    one process, on one thread. Ratios are ours over naive: below 1 is less memory, or faster.

Learnt (the table with chunks of 2^25)
    float32, H = 256, one thread of two cores that others used as well. Memory, then CPU time:
        N   512  V  32,000   1 chunk    1.27           1.49 (1.47..1.51)
        N 2,048  V  32,000   2 chunks   0.70           2.06 (2.01..2.09)
        N   512  V 151,936   3 chunks   0.65           2.19 (2.18..2.20)
    and 0.41 at N 4,096, V 32,000 (taken before the warm-up used chunks, so some 100 MB too much for ours). Losses agree
    to 2e-7, gradients to 9e-7. A chunk's peak is about four times its logits: the logits, their log-softmax,
    probabilities and the entropy's product live at once. With H this small the softmax outweighs the matrix product,
    which is why twice the forward pass shows so much; entropy and accuracy are computed twice as well.
    Chunks of 2^24 logits take 0.38 of the memory and 1.95 of the CPU (1.87..2.09) at N 2,048, V 32,000. Below 32 MiB a
    block glibc keeps freed chunks in its heap: 2^22 logits took from 0.30 to 1.13 of the naive memory in repeated runs,
    though only 0.16 with MALLOC_MMAP_THRESHOLD_=65536, and 1.42 of the CPU (1.40..1.44), as fewer pages are cleared.
"""

import multiprocessing
import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final, Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy as naive_cross_entropy
from torch.nn.functional import linear

from benchmarks.rounds import Spread, alternate, argument_parser, publish, ratio
from stillhouse.training.head.predictions import MAX_CHUNK_ELEMENTS, Predictions
from stillhouse.training.losses import cross_entropy

Side = Literal["ours", "naive"]
_WARM_UP: Final = (8, 64)
"""Loss positions and vocabulary of the run that brings libraries into memory, in eight chunks: torch imports some
100 MB on the first use of checkpointing."""


@dataclass(frozen=True, slots=True)
class SizeReport:
    """Figures at one size; ratios are ours over naive."""

    num_tokens: int
    vocabulary: int
    num_chunks: int
    memory: float
    """Ratio of peak memory."""
    naive_bytes: int
    our_bytes: int
    wall: Spread
    cpu: Spread
    loss_difference: float
    """Relative."""
    gradient_difference: float
    """Largest difference of a gradient's entry over the gradient's largest entry."""

    def line(self) -> str:
        """The figures as printed."""
        return (
            f"  N {self.num_tokens:>6} V {self.vocabulary:>7}  {self.num_chunks:>2} chunks  memory {self.memory:.2f}"
            f"   CPU {self.cpu}   wall {self.wall}   differs by {self.loss_difference:.0e} (loss), "
            f"{self.gradient_difference:.0e} (gradients)"
        )


class Head:
    """Inputs of one size, and the two ways from them to a loss with gradients."""

    def __init__(self, num_tokens: int, vocabulary: int, hidden: int) -> None:
        generator = torch.Generator().manual_seed(0)
        self.hidden_NH = torch.randn(num_tokens, hidden, generator=generator).requires_grad_()
        self.layer = nn.Linear(hidden, vocabulary, bias=False)
        nn.init.normal_(self.layer.weight, std=hidden**-0.5, generator=generator)
        self.targets_N = torch.randint(vocabulary, (num_tokens,), generator=generator)

    def run(self, side: Side, max_chunk_elements: int) -> tuple[Tensor, Tensor, Tensor]:
        """Loss, gradient of the hidden states [N, H], gradient of the weight [V, H]."""
        self.hidden_NH.grad = self.layer.weight.grad = None
        if side == "ours":
            scores = Predictions(self.hidden_NH, self.layer, max_chunk_elements).score(self.targets_N)
            loss = cross_entropy(scores.logprobs_N).mean()
        else:
            loss = naive_cross_entropy(linear(self.hidden_NH, self.layer.weight), self.targets_N)
        loss.backward()
        assert self.hidden_NH.grad is not None
        assert self.layer.weight.grad is not None
        return loss.detach(), self.hidden_NH.grad, self.layer.weight.grad


def peak_bytes(side: Side, num_tokens: int, vocabulary: int, hidden: int, max_chunk_elements: int) -> int:
    """Most memory of the side beyond what its process held before, measured in a process of its own."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(_grown_by, (side, num_tokens, vocabulary, hidden, max_chunk_elements))


def _grown_by(side: Side, num_tokens: int, vocabulary: int, hidden: int, max_chunk_elements: int) -> int:
    torch.set_num_threads(1)
    Head(*_WARM_UP, hidden).run(side, max_chunk_elements=_WARM_UP[1])
    # Resets VmHWM; where it is not allowed, VmHWM is at most some MiB above what is held now.
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")
    before = _status_bytes("VmRSS")
    Head(num_tokens, vocabulary, hidden).run(side, max_chunk_elements)
    return _status_bytes("VmHWM") - before


def _status_bytes(name: str) -> int:
    found = re.search(rf"{name}:\s+(\d+) kB", Path("/proc/self/status").read_text())
    if found is None:
        raise RuntimeError(f"/proc/self/status has no {name}; peak memory can only be measured on Linux")
    return int(found[1]) * 1024


def measure(num_tokens: int, vocabulary: int, *, hidden: int, rounds: int, max_chunk_elements: int) -> SizeReport:
    """Memory, time and agreement at one size."""
    sizes = (num_tokens, vocabulary, hidden, max_chunk_elements)
    naive_bytes, our_bytes = peak_bytes("naive", *sizes), peak_bytes("ours", *sizes)
    head = Head(num_tokens, vocabulary, hidden)
    theirs, ours = head.run("naive", max_chunk_elements), head.run("ours", max_chunk_elements)
    differences = [float((a - b).abs().max() / b.abs().max()) for a, b in zip(ours, theirs, strict=True)]
    del ours, theirs
    costs = alternate(
        {
            "naive": lambda: head.run("naive", max_chunk_elements),
            "ours": lambda: head.run("ours", max_chunk_elements),
        },
        rounds,
    )
    return SizeReport(
        num_tokens=num_tokens,
        vocabulary=vocabulary,
        num_chunks=-(-num_tokens // max(1, max_chunk_elements // vocabulary)),
        memory=our_bytes / naive_bytes,
        naive_bytes=naive_bytes,
        our_bytes=our_bytes,
        wall=ratio([cost.wall_s for cost in costs["ours"]], [cost.wall_s for cost in costs["naive"]]),
        cpu=ratio([cost.cpu_s for cost in costs["ours"]], [cost.cpu_s for cost in costs["naive"]]),
        loss_difference=differences[0],
        gradient_difference=max(differences[1:]),
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """Entry point."""
    parser = argument_parser(__doc__)
    parser.add_argument("--vocabulary", type=int, default=32000, metavar="V")
    parser.add_argument("--tokens", type=int, nargs="+", default=[512, 2048], metavar="N")
    parser.add_argument("--hidden", type=int, default=256, metavar="H")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--max-chunk-elements", type=int, default=MAX_CHUNK_ELEMENTS)
    chosen = parser.parse_args(arguments)
    torch.set_num_threads(chosen.threads)
    reports = [
        measure(
            num_tokens,
            chosen.vocabulary,
            hidden=chosen.hidden,
            rounds=chosen.rounds,
            max_chunk_elements=chosen.max_chunk_elements,
        )
        for num_tokens in chosen.tokens
    ]
    publish(
        ["loss head; training's over naive logits and cross-entropy", *(report.line() for report in reports)],
        {"sizes": [asdict(report) for report in reports]},
        chosen.json,
    )


if __name__ == "__main__":
    main()
