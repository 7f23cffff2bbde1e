"""Loading a model's tokenizer."""

from transformers import AutoTokenizer, PreTrainedTokenizerBase

from stillhouse.chat.refs import NO_CODE, resolve_model
from stillhouse.errors import ConfigError


def load_tokenizer(ref: str) -> PreTrainedTokenizerBase:
    """The tokenizer of a model ref; a student's folder holds its own, also when it holds an adapter.

    Raises:
        ConfigError: If there is none at `ref`, or it has no chat template or no end token.
    """
    try:
        tokenizer = AutoTokenizer.from_pretrained(resolve_model(ref), **NO_CODE)
    except (OSError, ValueError, KeyError) as error:
        raise ConfigError(f"tokenizer of model {ref!r} cannot be loaded: {error}") from error
    for attribute in ("chat_template", "eos_token_id"):
        if getattr(tokenizer, attribute) is None:
            raise ConfigError(f"tokenizer of model {ref!r} has no {attribute}; expected a chat model's tokenizer")
    return tokenizer
