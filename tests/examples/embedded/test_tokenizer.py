import pytest
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from examples.embedded.tokenizer import CONTROL_TOKENS, MARKUP_TOKENS
from stillhouse.embedded import embedded_path


@pytest.mark.parametrize("token", [*CONTROL_TOKENS, *MARKUP_TOKENS])
def test_each_special_token_is_one_id(token: str, tokenizer: PreTrainedTokenizerFast):
    assert len(tokenizer(f"a{token}b")["input_ids"]) == 3


def test_markup_survives_decoding_without_control_tokens(tokenizer: PreTrainedTokenizerFast):
    ids = tokenizer("<|im_start|><think>a</think><tool_call>b</tool_call><|im_end|><|endoftext|>")["input_ids"]
    assert tokenizer.decode(ids, skip_special_tokens=True) == "<think>a</think><tool_call>b</tool_call>"


@pytest.mark.parametrize("text", ["489 - 5 * 12", "na\u00efve caf\u00e9 \u4e2d \U0001f600", "\n\n a  b\t\r\n", ""])
def test_any_text_survives_encoding_and_decoding(text: str, tokenizer: PreTrainedTokenizerFast):
    assert tokenizer.decode(tokenizer(text)["input_ids"]) == text


def test_teacher_and_student_share_tokenizer_and_template(tokenizer: PreTrainedTokenizerFast):
    student = AutoTokenizer.from_pretrained(embedded_path("student"))
    source = embedded_path("chat_template.jinja").read_text(encoding="utf-8")
    assert (tokenizer.eos_token, tokenizer.pad_token) == ("<|im_end|>", "<|endoftext|>")
    assert student.get_vocab() == tokenizer.get_vocab()
    assert student.chat_template == tokenizer.chat_template == source
