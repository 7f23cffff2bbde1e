"""A pretrained model, given as a folder, through SFT and on-policy distillation.

An adapter learns the demo's task from right conversations; that student then teaches the pretrained model, which starts
anew and has to become as good by on-policy distillation.
"""

import random
import tempfile
from itertools import islice
from pathlib import Path
from typing import Any, Final

from benchmarks.gpu.bench import Bench, Unavailable
from benchmarks.gpu.environment import ROOT
from benchmarks.gpu.parts.demo import Shop, Trainings
from benchmarks.gpu.plan import Row
from examples.embedded.shop import CALCULATOR_SCHEMA, conversation, draw_stories
from stillhouse.config import load_config

_NUM_ROWS: Final = 2_000
_SFT: Final[dict[str, Any]] = {"num_epochs": 1, "batch_size": 32, "learning_rate": 2e-4}
_ON_POLICY: Final[dict[str, Any]] = {
    "num_steps": 30,
    "prompts_per_step": 64,
    "max_tokens": 128,
    "learning_rate": 1e-4,
}
_MAX_TOKENS: Final = 128


def measure(row: Row, bench: Bench) -> None:
    """Trains teacher and student."""
    if bench.model is None:
        raise Unavailable("no folder of a pretrained model was given (--model)")
    demo = load_config(ROOT / "configs/demo.yaml", [])
    config = demo.model_copy(
        update={
            "student": demo.student.model_copy(update={"parameters": "lora", "dtype": "bfloat16", "max_length": 1024}),
            "sft": demo.sft.model_copy(update={**_SFT, "trainer": demo.on_policy.trainer}),
            "on_policy": demo.on_policy.model_copy(update=_ON_POLICY),
            "evaluation": demo.evaluation.model_copy(update={"max_tokens": _MAX_TOKENS}),
        }
    )
    model = str(bench.model.absolute())
    with tempfile.TemporaryDirectory() as folder:
        trainings = Trainings(Path(folder), config, Shop(bench, config.tools), bench)
        bench.record({"model": bench.model.name, "base_accuracy": trainings.accuracy(model)})
        stories = islice(draw_stories(random.Random(0), reserved=False), 32 if bench.tiny else _NUM_ROWS)
        rows = [{"messages": list(conversation(story)), "tools": [CALCULATOR_SCHEMA]} for story in stories]
        teacher, seconds = trainings.sft(model, rows)
        bench.record({"teacher_accuracy": trainings.accuracy(teacher), "sft_s": seconds})
        student, seconds = trainings.on_policy(model, teacher)
        bench.record({"on_policy_accuracy": trainings.accuracy(student), "on_policy_s": seconds})
