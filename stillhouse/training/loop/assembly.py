"""Builds a trainer from its parts."""

from functools import partial
from pathlib import Path

from stillhouse.config import OnPolicyConfig, SftConfig
from stillhouse.progress.state import NoProgress, Progress
from stillhouse.training.loop.method import Method
from stillhouse.training.loop.passes import Passes
from stillhouse.training.loop.stopping import Alarms
from stillhouse.training.loop.trainer import Trainer
from stillhouse.training.loop.watch import Watch
from stillhouse.training.loop.weights import Weights
from stillhouse.training.model.blocks import compiler_settings, decoder_blocks, prepare_blocks, wants_compile
from stillhouse.training.model.memory import wants_checkpointing
from stillhouse.training.model.student import Student
from stillhouse.training.monitoring.flops import known_flops, measure_peak_flops
from stillhouse.training.monitoring.generations import Generations
from stillhouse.training.monitoring.metrics import Listener, NoListener
from stillhouse.training.monitoring.throughput import Throughput
from stillhouse.training.ranks import Ranks
from stillhouse.training.sharding import shard
from stillhouse.types import JsonObject


def build_trainer(
    method: Method,
    student: Student,
    section: SftConfig | OnPolicyConfig,
    *,
    work_dir: Path,
    identity: JsonObject,
    ranks: Ranks | None = None,
    progress: Progress | None = None,
    listener: Listener | None = None,
    tracking_run_id: str | None = None,
    generations: Generations | None = None,
    peak_tflops: float | None = None,
    alarms: Alarms | None = None,
) -> Trainer:
    """Return a trainer of `student`, whose trained parameters are changed in place, by `method`.

    `work_dir` holds `checkpoints/` and `metrics.jsonl`; checkpoints of another `identity` are refused, and one made
    under another run than `tracking_run_id`, the one behind `listener`, sends all metrics again. `ranks` None is this
    process alone. MFU is a share of `peak_tflops` of one device, which None measures.

    Raises:
        ConfigError: this student, method or machine does not support what the config asks for.
    """
    config = section.trainer
    ranks = ranks or Ranks.single(student.device)
    passes = Passes(student, ranks, config)
    student.step.compiles_head = compiled = wants_compile(student, config, method.num_steps, ranks.device)
    if compiled:
        passes.compiling = partial(compiler_settings, suppress_errors=config.compile == "auto")
    checkpointed = wants_checkpointing(
        student, config, config.microbatch_tokens, ranks, compares=bool(method.divergence), compiled=compiled
    )
    prepare_blocks(student.causal_lm, compiled=compiled, checkpointed=checkpointed)
    flops = known_flops(student.step.backbone, student.head, student.causal_lm.config.get_text_config())
    if ranks.size > 1:
        shard(student.step, decoder_blocks(student.causal_lm), ranks, student.dtype)
    peak_flops = measure_peak_flops(student.device, student.dtype) if peak_tflops is None else peak_tflops * 1e12
    throughput = Throughput(
        flops, peak_flops * ranks.size, method.num_steps, packing=passes.packing, device=student.device
    )
    watch = Watch(
        method,
        config,
        throughput,
        vocabulary_size=len(student.tokenizer),
        work_dir=work_dir,
        keeps_rows=ranks.is_first,
        progress=progress or NoProgress(),
        listener=listener or NoListener(),
        alarms=alarms or Alarms(),
    )
    return Trainer(
        method,
        passes,
        Weights(student, config, ranks),
        watch,
        config,
        section.learning_rate,
        ranks,
        work_dir / "checkpoints",
        identity,
        tracking_run_id,
        generations,
    )
