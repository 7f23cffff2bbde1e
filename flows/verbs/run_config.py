"""Common parts of the verbs that sample: the config of a file and its options, and progress on the terminal."""

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from stillhouse.chat.template_defaults import require_variables
from stillhouse.config import DistillConfig, load_config, parse_config
from stillhouse.config.hosted import hosted_addresses
from stillhouse.config.suggest import PROMPT_SUFFIXES
from stillhouse.embedded import unknown_embedded_model
from stillhouse.errors import ConfigError, StillhouseError
from stillhouse.project.example_models import EXAMPLE_MODELS, SUGGESTED

if TYPE_CHECKING:
    from rich.console import Console

    from stillhouse.progress.run_state import Listener


def config_from(source: Path, options: Mapping[str, object], overrides: Sequence[str]) -> DistillConfig:
    """Return the config in a file, or one that samples the prompts of a file, with the options that are not None.

    `overrides`, as `section.key=value`, win over the options. Raises ConfigError if a key or value is wrong, there is
    no such file, prompts of the user's have no teacher, or a model may be here or at an endpoint.
    """
    settings = [f"{key}={json.dumps(value)}" for key, value in options.items() if value is not None]
    if source.suffix in {".yaml", ".yml"}:
        return config_in(source, [*settings, *overrides])
    is_path = not str(source).startswith(("embedded:", "hf:"))
    if is_path and not source.is_file():
        problem = f"it is a folder: name a file, or hf:{source}" if source.is_dir() else "there is no such file"
        raise ConfigError(
            f"INPUT {source}: {problem}; expected a config (.yaml), or prompts ({', '.join(PROMPT_SUFFIXES)})"
        )
    # Without a config there is no student yet: nothing is held out and nothing is rendered with its template.
    body = {
        "prompts": {"source": str(source), "held_out_fraction": 0.0},
        "dataset": {"labels": {"render": False}, "validation_fraction": 0.0},
        "rollouts": {"temperature": 0.7},
    }
    config = addressed(partial(parse_config, body, str(source)), [*settings, *overrides])
    return _checked(
        config,
        f"Add -m MODEL and, for an endpoint other than OpenAI's, --base-url URL, for instance: -m {EXAMPLE_MODELS[0]}, "
        f"or -m {SUGGESTED} --base-url https://openrouter.ai/api/v1 --api-key-env OPENROUTER_API_KEY",
    )


def scoring_config(source: Path, options: Mapping[str, object], overrides: Sequence[str]) -> DistillConfig:
    """Return the config in a file, or one of the rows of a file or folder, whose rows a teacher scores.

    `overrides`, as `section.key=value`, win over the options. Raises ConfigError if a key or value is wrong, or there
    is no such file or folder.
    """
    settings = [f"{key}={json.dumps(value)}" for key, value in options.items() if value is not None]
    settings = ['sft.loss="kl"', *settings, *overrides]
    if source.suffix in {".yaml", ".yml"}:
        return config_in(source, settings)
    if not source.exists():
        raise ConfigError(
            f"INPUT {source}: there is no such file; expected a config (.yaml), or rows to score: .jsonl, .parquet or "
            "the folder of a dataset"
        )
    body = {"sft": {"dataset_weight": 0.0, "sources": [{"path": str(source)}], "loss": "kl"}}
    config = parse_config(body, origin=str(source), overrides=settings)
    if not config.sft.teacher and not config.sft.teachers:
        raise ConfigError("no teacher is named for the rows. Add -m MODEL, and for a server --base-url URL")
    return _checked(config)


def config_in(path: Path, overrides: Sequence[str], *, writes: bool = True) -> DistillConfig:
    """Return the config in a file, whose teacher `writes` or only scores.

    Raises ConfigError as `load_config`, or if it names no models that fit.
    """
    return _checked(addressed(partial(load_config, path), overrides), origin=f"{path}: ", writes=writes)


def addressed(read: Callable[[Sequence[str]], DistillConfig], overrides: Sequence[str]) -> DistillConfig:
    """Return the config with the addresses of models that are known to be hosted without one."""
    config = read(overrides)
    addresses = list(hosted_addresses(config, os.environ))
    return read([*overrides, *addresses]) if addresses else config


def _checked(
    config: DistillConfig,
    remedy: str = "Set teacher.model (-m) and, for an endpoint, teacher.base_url",
    *,
    origin: str = "",
    writes: bool = True,
) -> DistillConfig:
    """Return the config; raise ConfigError unless its models fit and the user's own prompts have the user's teacher."""
    asks_nobody = config.rollouts.trajectories_file is not None or config.sft.dataset_weight == 0.0
    sources = [*config.prompts.sources.values()] or [config.prompts.source]
    own = [source for source in sources if not source.startswith("embedded:")]
    asks_nobody = asks_nobody if writes else not config.default_teacher_scores
    if own and not asks_nobody and "model" not in config.teacher.model_fields_set:
        raise ConfigError(f"{origin}no teacher is named for {own[0]}. {remedy}")
    refs = {"student.model": config.student.model, "on_policy.teacher": config.on_policy.teacher or ""}
    refs["sft.teacher"] = config.sft.teacher or ""
    if config.teacher.base_url is None:
        refs["teacher.model"] = config.teacher.model
    for key, ref in refs.items():
        if (problem := unknown_embedded_model(ref)) is not None:
            raise ConfigError(f"{key}: {problem}")
    if config.student.chat_template_kwargs:
        require_variables(config.student.model, config.student.chat_template_kwargs)
    return config


def row_numbers(text: str) -> list[int]:
    """Return the numbers in `0,2,5`; raise ConfigError if it is no such list."""
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise ConfigError(f"--entries {text!r}: expected row numbers from 0, such as 0,2,5") from None


@contextmanager
def shown_progress(console: "Console", config: DistillConfig) -> Iterator["Listener"]:
    """Show stages and warnings on `console` inside the block; raise StillhouseError if a SIGTERM ends it."""
    from stillhouse.progress.terminal import progress_on, show_warnings
    from tasks.run.interruption import Terminated, raised_on_sigterm
    from tasks.run.progress import shown_by

    try:
        with raised_on_sigterm(), progress_on(console) as progress, shown_by(progress), show_warnings(console):
            yield progress
    except Terminated:
        raise StillhouseError(
            f"stopped by SIGTERM; finished stages, answers and checkpoints are kept in {config.runtime.store}, and the "
            "same command goes on from there"
        ) from None
