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
    "curated_dataset": "13af8429 a61e881c daeb6cde 9f7032ab 7093f1e4 080262ac 1f77c5f8 76a3be93 427777d6",
    "demo": "2e2b0ca2 0424063d 64200ab9 5620374a fb21a620 e0fed29a 2005d009 a5deffa9 890e9c8c",
    "eight_gpus": "795b847e 768b435b a1b06218 9f7032ab fb21a620 e548751c b933c3e7 a8797d50 427777d6",
    "self_training": "2e2b0ca2 0424063d e56da195 5620374a fb21a620 e0fed29a 0e0c61fe 76a3be93 890e9c8c",
    "two_gpus": "795b847e fea14e17 a1b06218 9f7032ab fb21a620 b2b55598 b933c3e7 7f686041 427777d6",
    "nightly": "a8913624 c2f87da4 65391ffd 31cff0e1 206d4b7a 5798324f 0c455072 76a3be93 427777d6",
    "on_policy/ema": "86302dbb 0424063d a1b06218 5620374a fb21a620 e0fed29a b933c3e7 d4af88e0 890e9c8c",
    "on_policy/exact": "86302dbb 0424063d a1b06218 5620374a fb21a620 e0fed29a b933c3e7 ea188c10 890e9c8c",
    "on_policy/grpo": "86302dbb 0424063d a1b06218 5620374a fb21a620 e0fed29a b933c3e7 b9ec7a31 890e9c8c",
    "on_policy/mixed": "86302dbb 0424063d a1b06218 9f7032ab fb21a620 e0fed29a b933c3e7 81140ea1 9239d577",
    "on_policy/mixed_agentic": "86302dbb 0424063d a1b06218 5620374a fb21a620 e0fed29a b933c3e7 bbaa0351 890e9c8c",
    "on_policy/pure": "86302dbb 0424063d a1b06218 9f7032ab fb21a620 e0fed29a b933c3e7 e949e44c 9239d577",
    "on_policy/pure_agentic": "86302dbb 0424063d a1b06218 5620374a fb21a620 e0fed29a b933c3e7 22159b33 890e9c8c",
    "on_policy/self_distillation": "ee080eaf 0424063d a1b06218 9f7032ab fb21a620 312f01b7 b933c3e7 5179890b 8d32f682",
    "on_policy/several_teachers": "86302dbb 0424063d a1b06218 5620374a fb21a620 e0fed29a b933c3e7 fed82c77 890e9c8c",
    "openrouter_sft": "d85598e0 c2f87da4 64d13ec8 390d0266 fb21a620 080262ac 78ec1c21 76a3be93 427777d6",
    "qwen3_on_policy": "a8913624 fea14e17 2a67342f 5620374a fb21a620 40532a8c d6b8794f ed3d9275 427777d6",
    "sft_multi_gpu": "6232d519 0424063d a1b06218 9f7032ab fb21a620 ede67e5d ae354a01 76a3be93 427777d6",
    "smoke": "d937363a 0424063d f0c01a9b 5620374a 5e8c3e4b e0fed29a 2793f493 fc46ed1d 890e9c8c",
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
