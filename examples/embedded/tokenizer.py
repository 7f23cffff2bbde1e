"""The byte-level BPE tokenizer of the embedded models, trained on their corpus."""

import re
from collections.abc import Iterable
from typing import Final

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

VOCAB_SIZE: Final = 640
MAX_POSITIONS: Final = 1024
CONTROL_TOKENS: Final = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
# Single ids too, but kept by `decode(..., skip_special_tokens=True)`: a parser must see them in a completion.
MARKUP_TOKENS: Final = (*("<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "<think>", "</think>"),)
# Words with their leading space, single digits (copying a number is then copying digits), single newlines (so no
# merge crosses the border between a turn's header and its text), and runs of anything else.
_PIECES: Final = r" ?\p{L}+|\p{N}|\n|[^\p{L}\p{N}\n]+"


def train_tokenizer(texts: Iterable[str], chat_template: str) -> PreTrainedTokenizerFast:
    """Return a tokenizer of at most `VOCAB_SIZE` entries, learnt from conversations rendered by `chat_template`."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_PIECES), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE - len(MARKUP_TOKENS),
        special_tokens=list(CONTROL_TOKENS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    markup = re.compile("|".join(map(re.escape, MARKUP_TOKENS)))
    tokenizer.train_from_iterator((markup.sub("", text) for text in texts), trainer)
    tokenizer.add_tokens([AddedToken(token, normalized=False, special=False) for token in MARKUP_TOKENS])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        model_max_length=MAX_POSITIONS,
        clean_up_tokenization_spaces=False,
        chat_template=chat_template,
    )
