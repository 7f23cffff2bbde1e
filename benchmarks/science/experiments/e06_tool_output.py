"""E6: what a tool answers, learnt or only read."""

import json
from pathlib import Path

from benchmarks.science.exams import Exam
from benchmarks.science.findings import Claim, Curve, Experiment, SeedResult
from benchmarks.science.lab import CHAIN, Lab
from benchmarks.science.tasks import shop
from benchmarks.science.tasks.rows import write_dataset
from benchmarks.science.training import Training
from stillhouse.config import PromptsConfig, ToolsConfig
from stillhouse.embedded import embedded_path
from stillhouse.prompts.row import parse_row

_NUM_ROWS = 1600
_NUM_EXAM = 200
_BATCH = 32


def run(lab: Lab, seed: int) -> SeedResult:
    """One seed."""
    exam = _exam(lab)
    curves = {}
    for name, with_output in (("masked", False), ("learnt", True)):
        rows = write_dataset(lab.data, shop.rows(lab.num(_NUM_ROWS, 16), seed, with_output=with_output))
        config = lab.sft(rows, seed, num_epochs=1, learning_rate=5e-4).model_copy(
            update={
                "schedule": "linear",
                "warmup_steps": 0,
                "batch_size": lab.num(_BATCH, 8),
                "microbatch_tokens": 4096,
            }
        )
        training = Training(start=Path(embedded_path("student")), config=config, measure_every=25)
        curves[f"tool output {name}"] = Curve.of(lab.course(training, {CHAIN: exam}))
    masked, learnt = curves.values()
    return SeedResult(seed, curves, {"points": 100 * (masked.final - learnt.final)})


def _exam(lab: Lab) -> Exam:
    """The embedded prompts, which are in no corpus, with the calculator."""
    lines = embedded_path("prompts.jsonl").read_text(encoding="utf-8").splitlines()[: lab.num(_NUM_EXAM, 4)]
    config = PromptsConfig(source="embedded:prompts.jsonl", verifier="numeric")
    prompts, metadata = zip(*(parse_row(json.loads(line), config) for line in lines), strict=True)
    return Exam(prompts, metadata, shop.MAX_TOKENS, shop.MAX_TURNS, ToolsConfig(builtin=("calculator",)))


EXPERIMENT = Experiment(
    name="e6",
    title="Tool output masked or learnt",
    setup="The embedded student, which calls a calculator and misunderstands half of what it is told, is fine-tuned on "
    "1,600 right conversations, once with the calculator's answers masked, as the trainer always does, and once with "
    "the same tokens written as if the student had said them. On-policy, the trainer has no way to learn what a tool "
    "said.",
    claims=(Claim("masking tool output is at least as good as learning it", "points", 0.0),),
    run=run,
    curves_over="step",
)
