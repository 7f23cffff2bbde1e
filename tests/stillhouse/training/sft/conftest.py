import pytest
from transformers import PreTrainedTokenizerBase

from stillhouse.chat.tokenizer import load_tokenizer


@pytest.fixture(scope="session")
def tokenizer() -> PreTrainedTokenizerBase:
    return load_tokenizer("embedded:student")
