"""Configs keep the cache keys that they have: what keys are made of is compared with recorded digests."""

from pathlib import Path
from typing import Any

import pytest

from stillhouse.config import load_config
from stillhouse.config.section import Section
from stillhouse.store import digest

CONFIGS = Path(__file__).resolve().parents[3] / "configs"
IN_KEYS = ("prompts", "teacher", "rollouts", "tools", "dataset", "student", "sft", "on_policy", "evaluation")
# Of curated_dataset, whose prices were in a file of their own, the teacher has changed; of configs without rollouts,
# the temperature that these would have. The sellers' models are the ones that the configs had then: newer ones are
# other teachers.
DIGESTS = {
    "curated_dataset": "22c424d6 383447a7 e15f25e3 a34169b4 ed2a9927 1eddbbb5 b711571f f25e127e d287195a",
    "demo": "9d3e44e8 01441542 c362b208 04a28f74 c88c323c 82592072 2d177639 63eef02f f7cf325c",
    "eight_gpus": "d682af52 261b5d87 e5a1b293 a34169b4 c88c323c 3e0947b2 1872d310 471ac9ca d287195a",
    "two_gpus": "d682af52 9399313e e5a1b293 a34169b4 c88c323c d587d30a 1872d310 d96cb44e d287195a",
    "nightly": "3fb1d0d3 98853c52 00d90e69 01d6e27e d8e82fac 9a19c898 90a77a95 f25e127e d287195a",
    "on_policy/ema": "7b71f050 01441542 e5a1b293 04a28f74 c88c323c 82592072 1872d310 643863af f7cf325c",
    "on_policy/exact": "7b71f050 01441542 e5a1b293 04a28f74 c88c323c 82592072 1872d310 18bc53fb f7cf325c",
    "on_policy/grpo": "7b71f050 01441542 e5a1b293 04a28f74 c88c323c 82592072 1872d310 c0c98261 f7cf325c",
    "on_policy/mixed": "7b71f050 01441542 e5a1b293 a34169b4 c88c323c 82592072 1872d310 fc7e5c56 8a5f4744",
    "on_policy/mixed_agentic": "7b71f050 01441542 e5a1b293 04a28f74 c88c323c 82592072 1872d310 5370a6fe f7cf325c",
    "on_policy/pure": "7b71f050 01441542 e5a1b293 a34169b4 c88c323c 82592072 1872d310 857b6287 8a5f4744",
    "on_policy/pure_agentic": "7b71f050 01441542 e5a1b293 04a28f74 c88c323c 82592072 1872d310 a086abad f7cf325c",
    "on_policy/self_distillation": "7b71f050 01441542 e5a1b293 04a28f74 c88c323c ce1a416f 1872d310 5e98d9da f7cf325c",
    "on_policy/several_teachers": "7b71f050 01441542 e5a1b293 04a28f74 c88c323c 82592072 1872d310 21b019ef f7cf325c",
    "openrouter_sft": "480998da 98853c52 5dc2abc0 cd2e4532 c88c323c 1eddbbb5 f4dd7d66 f25e127e d287195a",
    "qwen3_on_policy": "3fb1d0d3 9399313e ce99aa04 04a28f74 c88c323c 6f796a9e da7f1b44 d11c8e62 d287195a",
    "sft_multi_gpu": "8d589991 01441542 e5a1b293 a34169b4 c88c323c 4a2f893a 1128a3bf f25e127e d287195a",
    "smoke": "3313d00f 01441542 50c653c9 04a28f74 f35b77fc 82592072 9f6b1ab6 bd639cfd f7cf325c",
}


_PRICE = "usd_per_million_tokens={prompt: 0.25, completion: 2.0, cached_prompt: 0.025}"
SOLD = {
    "curated_dataset": [
        *("teacher.model=gpt-5-mini", f"teacher.{_PRICE}"),
        *("dataset.judge.model.model=gpt-5-mini", f"dataset.judge.model.{_PRICE}"),
    ],
    "nightly": ["teacher.model=openai/gpt-4o-mini"],
    "openrouter_sft": ["teacher.model=openai/gpt-4o-mini"],
}


def identities(name: str) -> dict[str, Any]:
    config = load_config(CONFIGS / f"{name}.yaml", SOLD.get(name, []))
    sections: dict[str, Section] = {name: getattr(config, name) for name in IN_KEYS}
    return {name: section.identity() for name, section in sections.items()}


def test_each_shipped_config_is_compared() -> None:
    assert DIGESTS.keys() == {str(path.relative_to(CONFIGS).with_suffix("")) for path in CONFIGS.rglob("*.yaml")}


@pytest.mark.parametrize("name", DIGESTS)
def test_the_keys_of_a_config_stay(name: str) -> None:
    found = {section: digest(identity)[:8] for section, identity in identities(name).items()}
    assert found == dict(zip(IN_KEYS, DIGESTS[name].split(), strict=True))
