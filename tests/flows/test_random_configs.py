"""No valid config ends in a traceback: seeded walks through the schema, each of which is done or explained."""

import json
import random
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Final, Literal, Union, get_args, get_origin

import pytest
from annotated_types import Ge, Gt, Le, Lt
from pydantic import BaseModel

from stillhouse.config import DistillConfig, parse_config
from stillhouse.errors import ConfigError, StillhouseError
from tests.provider import SimulatedProvider

NUM_FAST: Final = 1
NUM_SLOW: Final = 300
MAX_CHANGES: Final = 16

# Text means something else in each field; those without an entry stay as they are.
TEXTS: Final = {
    "rollouts.system_prompt": ["", "Answer by a number.", "{braces} and \u00e9"],
    "dataset.judge.instructions": ["Be strict."],
    "dataset.selection.prefer": ["first", "shortest", "score:reward", "score:judge/clear", "score:unknown"],
    "dataset.labels.measure": ["language", "student_nll", "rewards", "near_duplicates"],
    "tracking.experiment": ["other"],
}
FIXED: Final = {
    # Other machines, other services, or minutes of waiting.
    *("approval", "promotion", "tracking", "on_policy.engine_url", "runtime.launcher", "runtime.device"),
    *("runtime.task_runner", "runtime.num_processes", "runtime.num_hosts", "runtime.gpus_per_host"),
    *("teacher.batch", "sft.trainer.compile", "on_policy.trainer.compile"),
    *("runtime.max_requests_per_minute", "runtime.max_tokens_per_minute", "runtime.request_timeout_s"),
    *("tools.timeout_s", "rollouts.timeout_s", "budget.max_hours"),
    # Set by the base below, so that a run stays small.
    *("prompts.max_prompts", "on_policy.num_steps", "sft.num_epochs"),
}
SMALL: Final = 4
"""Largest whole number drawn where the schema has no lower one: counts of steps, samples and turns."""
ENOUGH: Final = (
    "max_tokens",
    "max_length",
    "microbatch_tokens",
    "max_concurrent",
    "max_prompt_tokens",
)
"""Whole numbers that are sizes of texts or tables: small and large ones are drawn."""


def fields_of(model: type[BaseModel], path: str = "") -> Iterator[tuple[str, Any, list[Any]]]:
    """Yield every field below `model` by its dotted key, with its type and constraints."""
    for name, field in model.model_fields.items():
        key, kind = f"{path}.{name}" if path else name, field.annotation
        if key in FIXED:
            continue
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            yield from fields_of(kind, key)
        else:
            yield key, kind, list(field.metadata)


FIELDS: Final = list(fields_of(DistillConfig))


def drawn(rng: random.Random, key: str, kind: Any, limits: list[Any]) -> Any:
    """Return a value of a type within its bounds, or LookupError if the type has none that could be drawn."""
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is Annotated:
        return drawn(rng, key, arguments[0], [*limits, *arguments[1:]])
    if origin in (Union, UnionType):
        return drawn(rng, key, rng.choice(arguments), limits)
    if kind is type(None):
        return None
    if kind is bool:
        return rng.random() < 0.5
    if origin is Literal:
        return rng.choice(arguments)
    if kind in (int, float):
        return number(rng, key, kind, limits)
    if kind is str and key in TEXTS:
        return rng.choice(TEXTS[key])
    if origin is tuple and arguments[0] is not str:
        return [drawn(rng, key, arguments[0], []) for _ in range(rng.randint(0, 2))]
    raise LookupError(key)


def number(rng: random.Random, key: str, kind: type, limits: list[Any]) -> float:
    low = next((limit.ge for limit in limits if isinstance(limit, Ge)), None)
    above = next((limit.gt for limit in limits if isinstance(limit, Gt)), None)
    high = next((limit.le for limit in limits if isinstance(limit, Le)), None)
    below = next((limit.lt for limit in limits if isinstance(limit, Lt)), None)
    if kind is int:
        most = 400 if key.rpartition(".")[2] in ENOUGH else SMALL
        least = 0 if low is None else int(low)
        return rng.choice([least, rng.randint(least, max(least, most)), min(max(least, most), high or most)])
    least = float(low if low is not None else (above or 0.0) + 1e-6)
    most = float(high if high is not None else (1.0 if below is None else below - 1e-6))
    return rng.choice([least, rng.uniform(least, max(least, most)), max(least, most)])


def random_body(rng: random.Random, base: dict[str, Any]) -> dict[str, Any]:
    """Return a valid body: `base` with a few fields drawn anew."""
    while True:
        body = json.loads(json.dumps(base))
        for key, kind, limits in rng.sample(FIELDS, rng.randint(1, MAX_CHANGES)):
            try:
                value = drawn(rng, key, kind, limits)
            except LookupError:
                continue
            *sections, name = key.split(".")
            section = body
            for part in sections:
                section = section.setdefault(part, {})
            section[name] = value
        try:
            parse_config(body, origin="random")
        except ConfigError:
            continue
        return body


def base_body(folder: Path, url: str, key: str, rng: random.Random) -> dict[str, Any]:
    """Return a small run: ad hoc without rendering, or as from a file, the teacher remote or embedded."""
    body: dict[str, Any] = {
        "prompts": {"max_prompts": 8, "verifier": "numeric", "held_out_fraction": 0.25},
        "rollouts": {"max_tokens": 32, "max_turns": 3},
        "tools": {"builtin": ["calculator"]},
        "student": {"parameters": "full", "dtype": "float32", "max_length": 512},
        "sft": {"num_epochs": 1, "batch_size": 4},
        "on_policy": {"num_steps": 1, "prompts_per_step": 2, "max_tokens": 16, "max_turns": 2},
        "evaluation": {"max_tokens": 16, "max_turns": 2},
        "tracking": {"enabled": False},
        "runtime": {
            "store": str(folder),
            "api_key_env": key,
            "num_threads": 1,
            "launcher": "inline",
            "failure_budget": 1.0,
        },
    }
    if rng.random() < 0.8:
        body["teacher"] = {"model": "simulated", "base_url": url}
        body["on_policy"]["teacher"] = "embedded:teacher"
    if rng.random() < 0.3:
        body["prompts"]["held_out_fraction"] = 0.0
        body["dataset"] = {"labels": {"render": False}, "validation_fraction": 0.0}
    if rng.random() < 0.3:
        body.setdefault("dataset", {})["selection"] = {"target_rows": rng.randint(1, 12)}
    return body


def run_one(seed: int, folder: Path, provider: SimulatedProvider, *, trains: bool) -> str:
    """Run a config and tell how it ended; any exception but an explained one goes on, with the config."""
    from flows.distill import distill
    from flows.generate import generate

    rng = random.Random(seed)
    body = random_body(rng, base_body(folder, provider.url, "STILLHOUSE_TEST_KEY", rng))
    if trains:
        body["on_policy"]["enabled"] = rng.random() < 0.5
    try:
        config = parse_config(body, origin="random")
        (distill if trains else generate)(config)
    except StillhouseError as error:
        return f"{type(error).__name__}: {error}"
    except Exception as error:
        pytest.fail(f"seed {seed}: {type(error).__name__}: {error}\n{json.dumps(body)}", pytrace=True)
    return "done"


@pytest.fixture
def run(tmp_path: Path, provider: SimulatedProvider) -> partial[str]:
    return partial(run_one, folder=tmp_path / "runs", provider=provider)


@pytest.mark.parametrize("seed", range(NUM_FAST))
def test_a_random_valid_config_is_done_or_explained(run: partial[str], seed: int) -> None:
    assert run(seed, trains=False)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(NUM_FAST, NUM_SLOW))
def test_of_many_random_valid_configs_each_is_done_or_explained(run: partial[str], seed: int) -> None:
    assert run(seed, trains=seed % 3 == 0)
