from collections.abc import Callable

import pytest
from transformers import AutoModelForCausalLM, Gemma3Config, Mamba2Config, PreTrainedModel, Qwen3Config

from stillhouse.chat.tokenizer import load_tokenizer
from stillhouse.errors import TrainingError
from stillhouse.training.model.student import Student


def _nested() -> PreTrainedModel:
    """Text and vision, as Gemma 3 of 4B and more: the text model's settings lie in a config inside the config."""
    text = {
        "vocab_size": 64, "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2,
        "num_key_value_heads": 1, "head_dim": 8, "max_position_embeddings": 128,
    }  # fmt: skip
    vision = {
        "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "image_size": 28,
        "patch_size": 14,
    }  # fmt: skip
    return AutoModelForCausalLM.from_config(Gemma3Config(text_config=text, vision_config=vision, mm_tokens_per_image=4))


def _without_positions() -> PreTrainedModel:
    config = Mamba2Config(
        vocab_size=64, hidden_size=16, num_hidden_layers=1, num_heads=4, head_dim=8, state_size=8, n_groups=1,
        chunk_size=8,
    )  # fmt: skip
    return AutoModelForCausalLM.from_config(config)


@pytest.mark.parametrize(("build", "expected"), [(_nested, 128), (_without_positions, None)])
def test_the_context_is_that_of_the_text_model_or_has_no_limit(
    build: Callable[[], PreTrainedModel], expected: int | None
):
    model = build()
    assert Student(model, model, load_tokenizer("embedded:student"), "base").max_context == expected


@pytest.mark.parametrize("change", [{"final_logit_softcapping": 60.0}, {"logits_scaling": 2.0}], ids=["cap", "factor"])
def test_logits_that_are_not_those_of_the_config_are_refused_also_where_they_are_small(change: dict[str, float]):
    config = Qwen3Config(
        vocab_size=640, hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2,
        num_key_value_heads=1, head_dim=8,
    )  # fmt: skip
    model = AutoModelForCausalLM.from_config(config)
    for name, value in change.items():
        setattr(model.config, name, value)  # which Qwen 3 itself does not read
    with pytest.raises(TrainingError, match="logits"):
        Student(model, model, load_tokenizer("embedded:student"), "base")
