"""The shipped tokenizer, loaded once."""

import pytest
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from stillhouse.embedded import embedded_path


@pytest.fixture(scope="session")
def tokenizer() -> PreTrainedTokenizerFast:
    return AutoTokenizer.from_pretrained(embedded_path("teacher"))
