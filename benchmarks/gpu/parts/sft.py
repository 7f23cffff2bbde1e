"""Supervised fine-tuning by our trainer and by TRL's `SFTTrainer` on the same rows, at the shapes of Qwen3.

Three steps warm up, eight are timed, one more is profiled. A step has some 32,000 tokens in 48 rows of log-normal
length, half of them learnt. Ours packs rows into `row_tokens` tokens, each attending to itself alone. TRL gets rows in
the order of their length, as many at once as fit into `row_tokens` tokens; `packed` lets it pack. TRL never checkpoints
activations; ours does if the estimate of memory says that it must. Model FLOPs are those of
`stillhouse.training.monitoring.flops`.
"""

import statistics
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np
import torch

from benchmarks.gpu.bench import Bench
from benchmarks.gpu.models import Built, build, shape_of
from benchmarks.gpu.plan import Row
from benchmarks.gpu.profile import StepProfiler
from benchmarks.sft.workload import word_tokenizer
from stillhouse.config import SftConfig, TrainerConfig
from stillhouse.config.training import SftSource
from stillhouse.training.loop.assembly import build_trainer
from stillhouse.training.loop.method import Batch
from stillhouse.training.loop.row_order import Mixture
from stillhouse.training.model.memory import estimate_memory
from stillhouse.training.model.microbatches import num_inputs, num_targets
from stillhouse.training.model.student import Student
from stillhouse.training.monitoring.flops import measure_peak_flops, model_flops
from stillhouse.training.monitoring.metrics import NoListener
from stillhouse.training.monitoring.throughput import peak_memory_gib
from stillhouse.training.sft.method import Sft
from stillhouse.types import Sample

Optimizer = Literal["adamw", "adamw_8bit", "muon"]

_LEARNING_RATE: Final = 1e-5
_NUM_WARM_UPS: Final = 3
_NUM_TIMED: Final = 8
_MEDIAN_TOKENS: Final = 550
_SIGMA: Final = 0.6
_MIN_TOKENS: Final = 64
_MAX_TOKENS: Final = 4096
_SPAN_TOKENS: Final = 40
_STEP_ROWS: Final = 48
_MEAN_TOKENS: Final = 660
_LARGE: Final = frozenset({"8B"})
"""Sizes that are trained by an adapter."""


def measure(row: Row, bench: Bench) -> None:
    """Trains by one side in one variant."""
    options = row.options
    parameters: Literal["full", "lora"] = "lora" if options["size"] in _LARGE else "full"
    built = build(shape_of(options["size"], bench), bench, parameters=parameters)
    if options["side"] == "ours":
        measure_student(built.student(bench), options["row_tokens"], bench, compiled=options["variant"] == "compiled")
        return
    batches = workload(bench, built.causal_lm.config.vocab_size)
    peak_flops = _prepare(bench)
    with tempfile.TemporaryDirectory() as work_dir:
        _record(_train_trl(built, batches, options, bench, Path(work_dir)), built.causal_lm, batches, peak_flops, bench)


def measure_student(
    student: Student, row_tokens: int, bench: Bench, *, compiled: bool = False, optimizer: Optimizer = "adamw"
) -> None:
    """Trains by our trainer.

    Args:
        student: loaded.
        row_tokens: of a packed row.
        bench: takes the figures.
        compiled: compile the blocks.
        optimizer: of the trainer.
    """
    batches = workload(bench, student.causal_lm.config.vocab_size)
    config = SftConfig(
        sources=(SftSource(path="none"),),
        trainer=TrainerConfig(
            optimizer=optimizer,
            microbatch_tokens=row_tokens,
            compile="on" if compiled else "off",
            log_every_steps=1,
            betas=(0.9, 0.999),
        ),
        learning_rate=_LEARNING_RATE,
    )
    peak_flops = _prepare(bench)
    with tempfile.TemporaryDirectory() as work_dir:
        steps = _train_ours(student, batches, config, bench, Path(work_dir))
    _record(steps, student.causal_lm, batches, peak_flops, bench)


def _prepare(bench: Bench) -> float:
    """Measures the peak of matrix products, and forgets the memory that this and making the model took."""
    peak_flops = measure_peak_flops(bench.device, torch.bfloat16)
    if bench.on_gpu:
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(bench.device)
    return peak_flops


def _record(
    steps: "Steps", causal_lm: Any, batches: Sequence[Sequence[Sample]], peak_flops: float, bench: Bench
) -> None:
    flops = model_flops(causal_lm.base_model, causal_lm.get_output_embeddings(), causal_lm.config)
    timed = batches[_NUM_WARM_UPS : _NUM_WARM_UPS + _NUM_TIMED]
    flops_per_token = sum(flops.of_step(map(num_inputs, batch), num_targets(batch)) for batch in timed) / num_tokens(
        timed
    )
    tokens_per_s = statistics.median(steps.rates()[_NUM_WARM_UPS - 1 : _NUM_WARM_UPS + _NUM_TIMED - 1])
    bench.record(
        {
            "tokens_per_s": tokens_per_s,
            "mfu": tokens_per_s * flops_per_token / peak_flops,
            "tflops": tokens_per_s * flops_per_token / 1e12,
            "peak_tflops": peak_flops / 1e12,
            "peak_memory_gib": steps.peak_memory_gib,
            "first_steps_s": steps.ends_s[_NUM_WARM_UPS - 1] - steps.started_s,
            "losses": steps.losses,
        }
    )


def workload(bench: Bench, vocabulary: int) -> list[list[Sample]]:
    """The rows of each step, the same for both sides; sorted by length within a step, so that padding is little."""
    generator = np.random.default_rng(0)
    num_rows = 4 if bench.tiny else _STEP_ROWS
    num_steps = _NUM_WARM_UPS + _NUM_TIMED + 1
    bounds = (50, 120) if bench.tiny else (_MIN_TOKENS, _MAX_TOKENS)
    return [_rows(generator, num_rows, vocabulary, bounds) for _ in range(num_steps)]


def num_tokens(batches: Sequence[Sequence[Sample]]) -> int:
    """Of all rows."""
    return sum(len(sample.token_ids) for batch in batches for sample in batch)


@dataclass(slots=True)
class Steps:
    """When each step ended, its loss, and the tokens trained on until then, padding left out."""

    bench: Bench
    started_s: float = field(default_factory=time.perf_counter)
    ends_s: list[float] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    peak_memory_gib: float = 0.0
    """Up to the last step that is timed: the profiler takes memory itself."""

    def end(self, loss: float, num_tokens: int) -> None:
        """A step has ended."""
        self.bench.synchronize()
        self.ends_s.append(time.perf_counter())
        self.losses.append(loss)
        self.tokens.append(num_tokens)
        if len(self.losses) <= _NUM_WARM_UPS + _NUM_TIMED:
            self.peak_memory_gib = peak_memory_gib(self.bench.device)

    def rates(self) -> list[float]:
        """Tokens a second of each step but the first."""
        seconds = (after - before for before, after in pairwise(self.ends_s))
        tokens = (after - before for before, after in pairwise(self.tokens))
        return [count / second for count, second in zip(tokens, seconds, strict=True)]


class LastStepDone(Exception):
    """Ends a training that has nothing left to show; its end would write tens of gigabytes."""


class _Watched(NoListener):
    """Notes our steps, and has the last one profiled.

    Raises:
        LastStepDone: it was the last step.
    """

    def __init__(self, steps: Steps, batches: Sequence[Sequence[Sample]], profiler: StepProfiler) -> None:
        self._steps = steps
        self._batches = batches
        self._profiler = profiler

    def log_metrics(self, metrics: Mapping[str, float], step: int) -> None:
        """A step has ended."""
        if "sft/loss" not in metrics:
            return
        self._steps.end(metrics["sft/loss"], num_tokens(self._batches[:step]))
        if step == len(self._batches) - 1:
            self._profiler.start()
        if step == len(self._batches):
            self._steps.bench.record(self._profiler.figures())
            raise LastStepDone


class _GivenBatches(Sft):
    """SFT on batches made before."""

    def __init__(self, batches: Sequence[Sequence[Sample]], vocabulary: int, config: SftConfig) -> None:
        super().__init__([], [], Mixture((1,), (1.0,), 1, len(batches), 0), [1] * vocabulary, config, {})
        self._batches = batches

    def batch(self, step: int) -> Batch:
        """The batch of `step`."""
        return Batch(self._batches[step])


def _train_ours(
    student: Student, batches: Sequence[Sequence[Sample]], config: SftConfig, bench: Bench, work_dir: Path
) -> Steps:
    _record_estimate(student, config, bench)
    method = _GivenBatches(batches, student.causal_lm.config.vocab_size, config)
    steps = Steps(bench)
    watched = _Watched(steps, batches, StepProfiler(student.step, student.step.backbone, bench))
    trainer = build_trainer(method, student, config, work_dir=work_dir, identity={}, listener=watched, peak_tflops=1.0)
    try:
        trainer.run()
    except LastStepDone:
        return steps
    raise RuntimeError("the trainer ended before it logged its last step")


def _record_estimate(student: Student, config: SftConfig, bench: Bench) -> None:
    """What `gradient_checkpointing: auto` goes by, to be held against the peak."""
    weights = sum(p.nbytes for p in student.model.parameters())
    compiled = config.trainer.compile == "on"
    whole = estimate_memory(
        student, config.trainer, config.trainer.microbatch_tokens, checkpointed=False, compiled=compiled
    )
    bench.record({"estimated_memory_gib": (weights + whole.total) / 2**30})


def _train_trl(
    built: Built, batches: Sequence[Sequence[Sample]], options: Mapping[str, Any], bench: Bench, work_dir: Path
) -> Steps:
    from datasets import Dataset
    from transformers import TrainerCallback
    from trl import SFTConfig as TrlConfig
    from trl import SFTTrainer

    steps = Steps(bench)

    class Callback(TrainerCallback):
        def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **rest: Any) -> None:
            if logs and "loss" in logs:
                steps.end(logs["loss"], int(state.num_input_tokens_seen))

    config = TrlConfig(
        output_dir=str(work_dir),
        max_steps=len(batches) - 1,
        learning_rate=_LEARNING_RATE,
        lr_scheduler_type="constant",
        bf16=True,
        gradient_checkpointing=False,
        train_sampling_strategy="sequential",
        include_num_input_tokens_seen="non_padding",
        logging_steps=1,
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
        use_cpu=not bench.on_gpu,
        torch_compile=options["variant"] == "compiled",
        # Its kernels are Triton's, which a rehearsal on a CPU does without.
        use_liger_kernel=options["variant"] != "compiled" and bench.on_gpu,
        **_trl_rows(options, len(batches[0])),
    )
    SFTTrainer(
        model=built.model,
        processing_class=word_tokenizer(built.causal_lm.config.vocab_size),
        train_dataset=Dataset.from_list([_trl_row(sample) for batch in batches for sample in batch]),
        args=config,
        callbacks=[Callback()],
    ).train()
    return steps


def _trl_rows(options: Mapping[str, Any], step_rows: int) -> dict[str, Any]:
    """How TRL shares out the rows of a step."""
    if options["variant"] == "packed":
        num_packs = max(1, round(step_rows * _MEAN_TOKENS / options["row_tokens"]))
        packing = {"packing": True, "max_length": options["row_tokens"]}
        return {**packing, "per_device_train_batch_size": 1, "gradient_accumulation_steps": num_packs}
    at_once = max(size for size in range(1, step_rows + 1) if step_rows % size == 0 and _fits(size, options))
    return {
        "max_length": _MAX_TOKENS,
        "per_device_train_batch_size": at_once,
        "gradient_accumulation_steps": step_rows // at_once,
    }


def _fits(num_rows: int, options: Mapping[str, Any]) -> bool:
    return num_rows == 1 or num_rows * _MEAN_TOKENS <= options["row_tokens"]


def _trl_row(sample: Sample) -> dict[str, list[int]]:
    labels = [one if said else -100 for one, said in zip(sample.token_ids, sample.loss_mask, strict=True)]
    return {"input_ids": list(sample.token_ids), "labels": labels}


def _rows(generator: np.random.Generator, count: int, vocabulary: int, bounds: tuple[int, int]) -> list[Sample]:
    """Rows of log-normal length, in spans that are learnt and spans that are not."""
    lengths = generator.lognormal(np.log(_MEDIAN_TOKENS), _SIGMA, count).clip(*bounds)
    return [
        Sample(
            token_ids=generator.integers(vocabulary, size=length).tolist(),
            loss_mask=[bool(place // _SPAN_TOKENS % 2) for place in range(length)],
            prompt_id=f"row-{number}",
        )
        for number, length in enumerate(sorted(lengths.astype(int)))
    ]
