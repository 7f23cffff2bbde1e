"""The vLLM servers that a training starts to sample for its student."""

import logging
from collections.abc import Callable
from contextlib import ExitStack

from stillhouse.config import OnPolicyConfig
from stillhouse.errors import ConfigError
from stillhouse.inference.vllm.environment import gpus, vllm_python
from stillhouse.inference.vllm.launch import Launch, lora_rank, refusal, started
from stillhouse.training.job import TrainJob
from stillhouse.training.model.student import Student

logger = logging.getLogger(__name__)


def with_sampler(
    config: OnPolicyConfig,
    job: TrainJob,
    student: Student,
    resources: ExitStack,
    say: Callable[[str | None], None],
    *,
    on_gpu: bool,
) -> tuple[OnPolicyConfig, bool]:
    """Return the config with the addresses of servers that are started, if they are, and whether these have to sleep.

    There is one for the student's weights on each idle GPU, or on as many as hold them, where the training is `on_gpu`.
    It has to sleep where it shares the only GPU with the training. `resources` ends them, and `say` shows what is
    waited for; None when it is over. Raises as `stillhouse.inference.vllm.launch.started`, and ConfigError if
    `runtime.engine` is `vllm`, which cannot sample for such a student.
    """
    python = vllm_python(job.runtime) if config.engine_url is None else None
    if python is None:
        return config, False
    if (reason := _refusal(job, student, on_gpu=on_gpu)) is not None:
        if job.runtime.engine == "vllm":
            raise ConfigError(f"runtime.engine is `vllm`, but {reason}; set it to `auto`")
        logger.warning("the student is sampled by transformers: %s", reason)
        return config, False
    options = ["--logprobs-mode", "processed_logprobs", "--dtype", str(student.dtype).removeprefix("torch.")]
    if student.model is not student.causal_lm:
        rank = lora_rank(student.model.peft_config["default"].r)
        # One that the next requests ask for, and those that requests under way still need.
        num_versions = config.max_staleness // config.updates_per_batch + 2
        options += ["--enable-lora", "--max-loras", str(num_versions), "--max-lora-rank", str(rank)]
    sleeps = on_gpu and len(gpus()) == 1 and config.max_staleness == 0
    launch = Launch(
        python,
        student.base_ref,
        job.runtime,
        options=[*options, *(["--enable-sleep-mode"] if sleeps else [])],
        variables={"VLLM_SERVER_DEV_MODE": "1", "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "True"},
        avoided_gpus=range(job.runtime.num_processes) if on_gpu else (),
    )
    say("starting vLLM")
    processes = started(launch, most=len(gpus()) if on_gpu else 1)
    say(None)
    for process in processes:
        resources.callback(process.stop)
    urls = tuple(process.url for process in processes)
    return config.model_copy(update={"engine_url": urls or None}), sleeps and bool(urls)


def _refusal(job: TrainJob, student: Student, *, on_gpu: bool) -> str | None:
    """Return why vLLM would not sample for this student; None if it does."""
    if on_gpu and 1 < len(gpus()) <= job.runtime.num_processes:
        return "all GPUs train; it needs one beyond those of runtime.num_processes"
    if job.student.parameters == "qlora":
        return "student.parameters is `qlora`, whose weights in 4 bits it does not have"
    return None if student.model is student.causal_lm else refusal(student.model.peft_config["default"].to_dict())
