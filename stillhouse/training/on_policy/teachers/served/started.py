"""The vLLM server that a run starts for a teacher without an address."""

from collections.abc import Callable
from contextlib import ExitStack
from typing import Final

from stillhouse.config import OnPolicyTeacher, RuntimeConfig
from stillhouse.inference.vllm.environment import python_for_teacher
from stillhouse.inference.vllm.launch import Launch

_TOKENS_AT_ONCE: Final = 2048
"""Of which vLLM has the log-probabilities of the whole vocabulary in memory that it does not plan for."""


def with_server(
    settings: OnPolicyTeacher, runtime: RuntimeConfig, resources: ExitStack, say: Callable[[str | None], None]
) -> OnPolicyTeacher:
    """Return the settings with the address of a server that is started where they have none.

    It has GPUs that do not train if there are such. `resources` ends it, and `say` shows that it is waited for; None
    when it is over. Raises as `python_for_teacher` and `Launch.start`.
    """
    if settings.base_url is not None:
        return settings
    assert settings.model is not None
    options = ["--enable-scale-out", "--max-num-batched-tokens", str(_TOKENS_AT_ONCE)]
    python = python_for_teacher(settings, runtime)
    launch = Launch(python, settings.model, runtime, options=options, avoided_gpus=range(runtime.num_processes))
    say(f"starting vLLM for teacher {settings.name!r}")
    [process] = launch.start()
    say(None)
    resources.callback(process.stop)
    return settings.model_copy(update={"base_url": process.url})
