"""Decoding: `stillhouse.serving.Generator` against `model.generate` of transformers, one thread, embedded teacher.

Claims
    equal     one batch, every completion equally long: no slower than `generate`, although each row has a seed, a
              temperature and a log-probability of its own.
    unequal   twice as many requests as slots and completions of unequal length: faster, as a slot that falls free is
              given to the next request where `generate` pads the batch until its longest row is done.
    group     several completions of each prompt, as on-policy sampling asks for them: faster, as a prompt is computed
              once for all of them.
    reuse     the second turn of a conversation computes only what is new.

Measured
    Both sides get the same prompts (embedded, with the calculator's schema), greedy, end tokens ignored, so that the
    number of new tokens is the same by construction; `generate` takes them left-padded, in batches of the same size and
    order, each up to its longest row. Ratios of tokens a second, wall and CPU, sides in turn. Greedy tokens of both
    sides are compared: they may differ only where padding changes the last bits of nearly equal logits.
    For reuse, the prefill of second turns (prompt, completion, a tool's answer) is timed on a generator that has the
    first turn parked and on a new one.

Learnt
    64 slots, up to 48 tokens, 5 rounds, one thread of two quiet cores, wall and CPU alike: equal 1.04 (1.02..1.09),
    unequal 1.08 (1.06..1.11), reuse 5.3 (4.4..6.8). All completions were equal token for token. With 8 slots and 8
    tokens the unequal case falls to 0.92: at that size a step is mostly dispatch, whatever its rows.
"""

import json
import random
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import islice
from typing import Any, Final

import torch
from transformers import GenerationConfig

from benchmarks.frame.rounds import Spread, alternate, argument_parser, measured, publish, ratio
from stillhouse.chat.next_turn import next_turn_ids
from stillhouse.chat.refs import resolve_model
from stillhouse.chat.template import render
from stillhouse.chat.tokenizer import load_tokenizer
from stillhouse.embedded import embedded_path
from stillhouse.serving.generation import GenerationRequest
from stillhouse.serving.generator import Generator
from stillhouse.serving.models import load_model
from stillhouse.tools.calculator import calculator
from stillhouse.tools.toolbox import Toolbox
from stillhouse.types import Message

MODEL: Final = "embedded:teacher"
GROUP_SIZE: Final = 8
_PAD_ID: Final = 0


@dataclass(frozen=True, slots=True)
class Workload:
    """Prompts and how many tokens to sample after each."""

    prompts: list[list[int]]
    max_tokens: list[int]


@dataclass(frozen=True, slots=True)
class DecodingReport:
    """Ratios above 1 say that the generator is faster."""

    batch_size: int
    equal_wall: Spread
    equal_cpu: Spread
    unequal_wall: Spread
    unequal_cpu: Spread
    group_wall: Spread
    group_cpu: Spread
    same_tokens: float
    """Share of completions that are token for token the same."""
    new_tokens: dict[str, int]
    """Tokens wanted and delivered, of both sides alike, by workload."""
    reuse_cpu: Spread
    """Prefill of second turns: a new generator's CPU time over that of one that has the first turn."""
    reuse_wall: Spread

    def lines(self) -> list[str]:
        """The figures as printed."""
        return [
            f"decoding, {MODEL}, {self.batch_size} slots; tokens/s as a multiple of model.generate's",
            f"  equal lengths      wall {self.equal_wall}   CPU {self.equal_cpu}",
            f"  unequal lengths    wall {self.unequal_wall}   CPU {self.unequal_cpu}",
            f"  {GROUP_SIZE} of each prompt   wall {self.group_wall}   CPU {self.group_cpu}",
            f"  completions equal token for token: {self.same_tokens:.1%}",
            "second-turn prefill; speed as a multiple of a prefill from nothing",
            f"  parked first turn  wall {self.reuse_wall}   CPU {self.reuse_cpu}",
        ]


def embedded_prompts(count: int) -> list[list[Message]]:
    """The first `count` embedded prompts."""
    with embedded_path("prompts.jsonl").open(encoding="utf-8") as file:
        return [[{"role": "user", "content": json.loads(line)["prompt"]}] for line in islice(file, count)]


def by_generator(model: Any, workload: Workload, batch_size: int) -> list[list[int]]:
    """Completions by continuous batching."""
    requests = [
        GenerationRequest(prompt, most, temperature=0.0)
        for prompt, most in zip(workload.prompts, workload.max_tokens, strict=True)
    ]
    return [done.completion_ids for done in Generator(model, max_batch=batch_size).run(requests)]


@torch.inference_mode()
def by_generate(model: Any, workload: Workload, batch_size: int) -> list[list[int]]:
    """Completions by `model.generate`, batch by batch; what a batch samples past a row's own length is cut off."""
    completions: list[list[int]] = []
    for first in range(0, len(workload.prompts), batch_size):
        prompts = workload.prompts[first : first + batch_size]
        wanted = workload.max_tokens[first : first + batch_size]
        width = max(map(len, prompts))
        input_ids = torch.tensor([[_PAD_ID] * (width - len(prompt)) + prompt for prompt in prompts])
        mask = torch.tensor([[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in prompts])
        config = GenerationConfig(do_sample=False, max_new_tokens=max(wanted), pad_token_id=_PAD_ID)
        # Gaps of a given config are filled from the model's own, which names an end token.
        model.generation_config = config
        sampled = model.generate(input_ids, attention_mask=mask, generation_config=config)[:, width:].tolist()
        completions += [row[:length] for row, length in zip(sampled, wanted, strict=True)]
    return completions


def second_turns(model: Any, tokenizer: Any, batch_size: int, max_tokens: int) -> tuple[Workload, list[list[int]]]:
    """First turns, and the prompts of the second ones after a tool has answered."""
    messages = embedded_prompts(batch_size)
    tools = Toolbox([calculator]).schemas()
    prompts = [render(tokenizer, history, tools, add_generation_prompt=True) for history in messages]
    first = Workload(prompts, [max_tokens] * batch_size)
    answer: Message = {"role": "tool", "tool_call_id": "call_0", "content": "1234"}
    following = []
    for history, prompt, completion in zip(messages, prompts, by_generator(model, first, batch_size), strict=True):
        said: Message = {"role": "assistant", "content": tokenizer.decode(completion)}
        added = next_turn_ids(tokenizer, completion, [*history, said], [answer], tools)
        following.append([*prompt, *completion, *added])
    return first, following


def measure_reuse(model: Any, tokenizer: Any, batch_size: int, max_tokens: int, rounds: int) -> tuple[Spread, Spread]:
    """Wall and CPU time of a prefill from nothing over one from parked first turns."""
    first, following = second_turns(model, tokenizer, batch_size, max_tokens)
    requests = [GenerationRequest(prompt, 1, temperature=0.0) for prompt in following]
    cold, warm = [], []
    for round_index in range(rounds + 1):
        tokens: list[list[int]] = []

        def prefill(generator: Generator, tokens: list[list[int]] = tokens) -> None:
            tokens.append([done.completion_ids[0] for done in generator.run(requests)])

        fresh, kept = Generator(model, max_batch=batch_size), Generator(model, max_batch=batch_size)
        kept.run([GenerationRequest(prompt, max_tokens, temperature=0.0) for prompt in first.prompts])
        costs = [measured(lambda chosen=chosen: prefill(chosen)) for chosen in (fresh, kept)]  # type: ignore[misc]
        if tokens[0] != tokens[1]:
            raise RuntimeError("the second turn's first tokens differ between a parked and a new prefill")
        if round_index:
            cold.append(costs[0])
            warm.append(costs[1])
    return (
        ratio([cost.wall_s for cost in cold], [cost.wall_s for cost in warm]),
        ratio([cost.cpu_s for cost in cold], [cost.cpu_s for cost in warm]),
    )


def run(*, batch_size: int = 64, max_tokens: int = 48, rounds: int = 5, threads: int = 1) -> DecodingReport:
    """Measures all claims.

    Args:
        batch_size: slots of the generator and rows of a `generate` call.
        max_tokens: new tokens of each completion, or of the longest where lengths are unequal.
        rounds: alternating rounds measured.
        threads: CPU threads of torch.
    """
    model: Any = load_model(MODEL, device="cpu", num_threads=threads)
    tokenizer = load_tokenizer(resolve_model(MODEL))
    tools = Toolbox([calculator]).schemas()
    prompts = [
        render(tokenizer, messages, tools, add_generation_prompt=True) for messages in embedded_prompts(2 * batch_size)
    ]
    lengths = random.Random(0)
    workloads = {
        "equal": Workload(prompts[:batch_size], [max_tokens] * batch_size),
        "unequal": Workload(prompts, [lengths.randint(1, max_tokens) for _ in prompts]),
        "group": Workload(
            [prompt for prompt in prompts[: max(1, batch_size // GROUP_SIZE)] for _ in range(GROUP_SIZE)],
            [max_tokens] * max(1, batch_size // GROUP_SIZE) * GROUP_SIZE,
        ),
    }
    new_tokens, same, speed = {}, [], {}
    for name, workload in workloads.items():
        results: dict[str, list[list[int]]] = {}
        ours, theirs = _sides(model, workload, batch_size, results)
        costs = alternate({"generate": theirs, "generator": ours}, rounds)
        delivered = {side: sum(map(len, completions)) for side, completions in results.items()}
        if set(delivered.values()) != {sum(workload.max_tokens)}:
            raise RuntimeError(f"{name}: {delivered} tokens delivered; expected {sum(workload.max_tokens)} of both")
        new_tokens[name] = sum(workload.max_tokens)
        same += [a == b for a, b in zip(results["generator"], results["generate"], strict=True)]
        speed[name] = (
            ratio([cost.wall_s for cost in costs["generate"]], [cost.wall_s for cost in costs["generator"]]),
            ratio([cost.cpu_s for cost in costs["generate"]], [cost.cpu_s for cost in costs["generator"]]),
        )
    reuse_wall, reuse_cpu = measure_reuse(model, tokenizer, batch_size, max_tokens, rounds)
    return DecodingReport(
        batch_size=batch_size,
        equal_wall=speed["equal"][0],
        equal_cpu=speed["equal"][1],
        unequal_wall=speed["unequal"][0],
        unequal_cpu=speed["unequal"][1],
        group_wall=speed["group"][0],
        group_cpu=speed["group"][1],
        same_tokens=sum(same) / len(same),
        new_tokens=new_tokens,
        reuse_cpu=reuse_cpu,
        reuse_wall=reuse_wall,
    )


def _sides(model: Any, workload: Workload, batch_size: int, results: dict[str, list[list[int]]]) -> Any:
    def ours() -> None:
        results["generator"] = by_generator(model, workload, batch_size)

    def theirs() -> None:
        results["generate"] = by_generate(model, workload, batch_size)

    return ours, theirs


def main(arguments: Sequence[str] | None = None) -> None:
    """Entry point."""
    parser = argument_parser(__doc__)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--max-tokens", type=int, default=48)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    chosen = parser.parse_args(arguments)
    report = run(
        batch_size=chosen.batch_size, max_tokens=chosen.max_tokens, rounds=chosen.rounds, threads=chosen.threads
    )
    publish(report.lines(), asdict(report), chosen.json)


if __name__ == "__main__":
    main()
