"""A teacher's whole distribution from another process: what handing it over costs, and whether it is there any sooner.

    python -m benchmarks.teacher_handoff
    python -m benchmarks.teacher_handoff --hidden 576 --pairs

A teacher hands over its last hidden states, R numbers a token, and its output layer is applied where the student is:
exact over the whole vocabulary. Today teachers of kind `local` compute them in the training process.

Measured
    Handing over, by hidden size: what another process has computed, over shared memory (one copy, by the teacher; the
    student reads it in place; a file in /dev/shm is the same) or a loopback socket (two copies, into the kernel and out
    of it). CPU time of both processes, over that of the teacher's pass in this process, which computes the same in
    either. A server's 20 best tokens by HTTP: wall time over that of the same from the teacher in this process, output
    layer included in both; the client's CPU time; bytes of the answer's JSON for each scored token, which is every
    second one.

    Overlap: a batch is sampled and its teacher's hidden states computed. After the sampling, with all threads, as now;
    or of each finished group while others are sampled, in a thread of this process or in another process, either with
    half of the threads. Wall time over that of `after`; `sampling` alone, by all threads and by half of them, shows the
    least that is possible. Other work on the machine spoils it: two processes get more of it than one.

Learnt
    Handing over, one thread, 256 tokens (128 at 4,096), two rounds with other work running:
        R      V         bytes a token   shared memory        socket               20 best by HTTP
           64      259             256   1.4 us, 3.3 %        1.2 us, 2.9 %        2,870 bytes, 56 us, 2.9 of the wall
          576   49,152           2,304   1.9 us, 0.03 %       2.2 us, 0.03 %       3,053 bytes, 75 us, 0.8
        1,024  151,936           4,096   2.2 us, 0.05 %       2.7 us, 0.06 %       3,096 bytes, 75 us, 1.2
        4,096  151,936           8,192   4.6 us, 0.11 %       5.8 us, 0.14 %       not measured
    Microseconds are a token's. The last two have a fifth and a thirty-sixth of their models' blocks, which makes their
    percentages that much too large. 4,096 is in bfloat16. Wall ratios are rough for the company they were taken in.

    Overlap, two threads on two cores that were quiet at first, two rounds of a first version, small, 32 completions of
    some 96 tokens: 3.0 and 3.4 s one after the other, 0.8 and 0.9 of it the teacher's; at the same time 4.4 and 5.0 s
    in a thread, 4.5 and 4.6 in another process. Sampling alone takes two threads 2.2 to 2.5 s and one 3.2, or 4.1 and
    more beside a teacher. Another teacher could gain little: its pass takes one thread 1.7 times as long as two. With
    two threads on either side, which spin while they wait for each other's turn, it took 3.5 and 18.9 s in a thread,
    14.7 and 45.9 in another process, as other work began.

    So there is no teacher in a process of its own. It could help where the teacher has a device that the student leaves
    idle, which `device` gives it in this process; that takes two devices to measure.
"""

import json
import tempfile
from contextlib import ExitStack, closing
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from transformers import PreTrainedModel

from benchmarks.frame.rounds import Cost, alternate, argument_parser, publish, ratio, spread
from benchmarks.sft.workload import FIRST_WORD_ID, Shape, word_tokenizer
from benchmarks.teacher_handoff.apart import TeacherApart, Way, Work, new_model, new_teacher
from benchmarks.teacher_handoff.overlap import PAIRS_HERE, check_equal, overlap_costs
from stillhouse.config import OnPolicyTeacher, RuntimeConfig
from stillhouse.inference.local_server import served_model
from stillhouse.inference.model_server import ModelServer
from stillhouse.inference.scoring.completions_api import VllmApi
from stillhouse.store import ArtifactStore
from stillhouse.training.on_policy.scored import ScoredSample
from stillhouse.training.on_policy.teachers.served.connect import connect
from stillhouse.training.on_policy.teachers.teacher import ScoreRequest, Teacher
from stillhouse.training.repeatability import use_fast_float32_products

TOP_K: Final = 20
TEACHERS: Final = {
    "64": Shape(hidden=64, layers=3, heads=2, kv_heads=1, intermediate=192, vocabulary=259, head_dim=32),
    "576": Shape(hidden=576, layers=30, heads=9, kv_heads=3, intermediate=1536, vocabulary=49_152, head_dim=64),
    "1024": Shape(hidden=1024, layers=6, heads=16, kv_heads=8, intermediate=3072, vocabulary=151_936),
    "4096": Shape(hidden=4096, layers=1, heads=32, kv_heads=8, intermediate=12_288, vocabulary=151_936),
}
"""By hidden size: the blocks of the embedded teacher, SmolLM2-135M, Qwen3-0.6B and Qwen3-8B, the last two with fewer of
them: what is handed over is the same, and the pass it is compared with shorter."""
_WIDEST_SERVED: Final = 1024
"""A third copy of wider weights would not fit into 8 GB."""
_SEED: Final = 1


class Draw:
    """Trajectories, new ones each time, as a ledger of scores knows the old ones.

    Args:
        shape: of the model that reads them.
        count: trajectories.
        num_tokens: of a prompt, and of what follows it.
    """

    def __init__(self, shape: Shape, count: int, num_tokens: int) -> None:
        self._chance = np.random.default_rng(0)
        self._vocabulary = shape.vocabulary
        self._size = (count, 2 * num_tokens)
        self._mask = [False] * num_tokens + [True] * num_tokens

    def __call__(self) -> list[ScoredSample]:
        """The next ones."""
        rows = self._chance.integers(FIRST_WORD_ID, self._vocabulary, self._size).tolist()
        return [ScoredSample(row, self._mask, prompt_id=str(number)) for number, row in enumerate(rows)]


def handing(shape: Shape, count: int, num_tokens: int, num_threads: int, num_rounds: int) -> dict[str, Any]:
    """Figures of all ways for a teacher of this shape."""
    dtype = torch.bfloat16 if shape.hidden > _WIDEST_SERVED else torch.float32
    torch.set_num_threads(num_threads)
    draw, scored = Draw(shape, count, num_tokens), count * num_tokens
    model = new_model(shape, dtype, _SEED)
    teacher = new_teacher(model, TOP_K)
    with closing(TeacherApart(shape, dtype, _SEED, num_threads=num_threads, num_rows=scored)) as apart:
        samples = draw()
        apart.ask(Work("shared memory", samples))
        check_equal([teacher.reference(samples).hidden_NR], [apart.receive("shared memory", scored)])
        theirs: dict[Way, list[float]] = {"shared memory": [], "socket": []}

        def again(way: Way) -> None:
            before = apart.cpu_s
            apart.ask(Work(way, ()))
            apart.receive(way, scored)
            theirs[way].append(apart.cpu_s - before)

        ways: tuple[Way, ...] = ("shared memory", "socket")
        costs = alternate(
            {"own": lambda: teacher.reference(draw()), **{way: partial(again, way) for way in ways}}, num_rounds
        )
    floor = [cost.cpu_s for cost in costs["own"]]
    figures: dict[str, Any] = {"pass_cpu_s": asdict(spread(floor)), "bytes_a_token": shape.hidden * dtype.itemsize}
    for way in ways:
        # The first, unmeasured round has its CPU time there, too.
        cpu = [own.cpu_s + other for own, other in zip(costs[way], theirs[way][1:], strict=True)]
        figures[way] = _figures(cpu, floor, scored)
    if shape.hidden <= _WIDEST_SERVED:
        figures["served"] = served(model, shape, draw, scored, num_threads, num_rounds)
    return figures


def _figures(cpu: list[float], floor: list[float], num_tokens: int) -> dict[str, Any]:
    added = ratio(cpu, floor)
    return {"added": asdict(added), "us_a_token": asdict(spread([seconds / num_tokens * 1e6 for seconds in cpu]))}


def served(
    model: PreTrainedModel, shape: Shape, draw: Draw, num_tokens: int, num_threads: int, num_rounds: int
) -> dict[str, Any]:
    """Figures of the most probable tokens by our own server, over those of the teacher in this process."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        model.save_pretrained(folder / "teacher")
        tokenizer = word_tokenizer(shape.vocabulary)
        tokenizer.save_pretrained(folder / "teacher")
        ref = str(folder / "teacher")
        runtime = RuntimeConfig(device="cpu", num_threads=num_threads)
        url = stack.enter_context(served_model(ref, runtime, max_pending=1024))
        settings = OnPolicyTeacher(name="far", kind="vllm", model=ref, base_url=url, top_k=TOP_K)
        far = connect(settings, 1.0, 1.0, tokenizer, None, ArtifactStore(folder / "store"))
        stack.callback(far.close)
        server = stack.enter_context(closing(ModelServer(url, None, 600.0)))
        answer = server.post(VllmApi.path, VllmApi(ref, top_k=TOP_K).body(draw(), 1.0))
        size = len(json.dumps(answer, separators=(",", ":")))
        near = new_teacher(model, TOP_K)
        costs = alternate({"near": lambda: _best(near, draw), "far": lambda: _best(far, draw)}, num_rounds)
    client = [cost.cpu_s / num_tokens * 1e6 for cost in costs["far"]]
    return {
        "wall_over_own": asdict(_wall_ratio(costs["far"], costs["near"])),
        "us_a_token": asdict(spread(client)),
        # An answer has the tokens of the prompt as well, half of all.
        "bytes_a_token": size / num_tokens,
    }


def _best(teacher: Teacher, draw: Draw) -> None:
    requests = [ScoreRequest(sample.token_ids, sample.loss_mask, sample.prompt_id) for sample in draw()]
    teacher.start(requests).result()


def _wall_ratio(costs: list[Cost], over: list[Cost]) -> Any:
    return ratio([cost.wall_s for cost in costs], [cost.wall_s for cost in over])


def main(arguments: list[str] | None = None) -> None:
    """Runs the benchmark."""
    parser = argument_parser(__doc__)
    parser.add_argument("--hidden", nargs="*", choices=TEACHERS, default=list(TEACHERS))
    parser.add_argument("--pairs", nargs="*", choices=PAIRS_HERE, default=["small", "small by large"])
    parser.add_argument("--trajectories", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=64, help="of a prompt, and of a completion")
    parser.add_argument("--groups", type=int, default=8)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args(arguments)
    use_fast_float32_products()
    figures = {}
    for name in options.hidden:
        shape = TEACHERS[name]
        figures[name] = handing(shape, options.trajectories, options.tokens, options.threads, options.rounds)
        print(_line(shape, figures[name]), flush=True)
    for name in options.pairs:
        costs = overlap_costs(PAIRS_HERE[name], options.groups, options.tokens, options.threads, options.rounds)
        overlap = {side: _wall_ratio(of_side, costs["after"]) for side, of_side in costs.items() if side != "after"}
        after_s = spread([cost.wall_s for cost in costs["after"]])
        figures[name] = {"after_s": asdict(after_s), **{side: asdict(over) for side, over in overlap.items()}}
        ratios = ", ".join(f"{side} {over}" for side, over in overlap.items())
        print(f"{name}: one after the other {after_s.median:.2f} s; wall over that: {ratios}", flush=True)
    publish([], figures, options.json)


def _line(shape: Shape, found: dict[str, Any]) -> str:
    ways = [
        f"{way} {found[way]['us_a_token']['median']:.2f} us a token, {found[way]['added']['median']:.2%} of the pass"
        for way in ("shared memory", "socket")
    ]
    line = f"H {shape.hidden:,} V {shape.vocabulary:,}: {found['bytes_a_token']:,} bytes a token; {'; '.join(ways)}"
    if "served" in found:
        http = found["served"]
        line += (
            f"; top {TOP_K} by HTTP {http['bytes_a_token']:,.0f} bytes, {http['wall_over_own']['median']:.2f} of the "
            f"wall time here, {http['us_a_token']['median']:.0f} us of the client's CPU"
        )
    return line


if __name__ == "__main__":
    main()
