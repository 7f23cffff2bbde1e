"""The shipped tokenizer and teacher, loaded once."""

import pytest
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerFast

from stillhouse.embedded import embedded_path


@pytest.fixture(scope="session")
def tokenizer() -> PreTrainedTokenizerFast:
    return AutoTokenizer.from_pretrained(embedded_path("teacher"))


@pytest.fixture(scope="session")
def teacher() -> PreTrainedModel:
    return AutoModelForCausalLM.from_pretrained(embedded_path("teacher")).eval()
