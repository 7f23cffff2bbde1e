import pytest
from transformers import GenerationConfig, PreTrainedTokenizerBase

from stillhouse.chat.tokenizer import load_tokenizer
from stillhouse.training.on_policy.teachers.stop_tokens import stop_token_warning

END_OF_TEXT, END_OF_TURN = 0, 2


def tokenizer(eos: int) -> PreTrainedTokenizerBase:
    """Both have the template that closes turns with the end of a turn, as base models often do."""
    one = load_tokenizer("embedded:student")
    one.eos_token = one.convert_ids_to_tokens(eos)
    return one


BASE = (tokenizer(END_OF_TEXT), GenerationConfig(eos_token_id=END_OF_TEXT))
INSTRUCTED = (tokenizer(END_OF_TURN), GenerationConfig(eos_token_id=[END_OF_TURN, END_OF_TEXT]))
INSTRUCTED_BY_TOKENIZER = (tokenizer(END_OF_TURN), None)


@pytest.mark.parametrize(
    ("student", "teacher", "is_warned"),
    [
        (BASE, INSTRUCTED, True),
        (BASE, INSTRUCTED_BY_TOKENIZER, True),
        (INSTRUCTED_BY_TOKENIZER, BASE, True),
        (INSTRUCTED, INSTRUCTED, False),
        (INSTRUCTED_BY_TOKENIZER, INSTRUCTED, False),
        (BASE, BASE, False),
    ],
    ids=[
        "base student",
        "base student, no generation config",
        "base teacher",
        "both instructed",
        "one without config",
        "both base",
    ],
)
def test_only_a_base_model_beside_an_instructed_one_is_warned_of(
    student: tuple[PreTrainedTokenizerBase, GenerationConfig | None],
    teacher: tuple[PreTrainedTokenizerBase, GenerationConfig | None],
    is_warned: bool,
) -> None:
    warning = stop_token_warning(student[0], teacher[0], student[1], teacher[1], teacher_name="maths")
    assert (warning is not None) is is_warned


def test_the_warning_names_the_tokens_and_the_way_out() -> None:
    warning = stop_token_warning(BASE[0], INSTRUCTED[0], BASE[1], INSTRUCTED[1], teacher_name="maths")
    assert warning is not None
    assert (
        "teacher 'maths' end differently: the student was made to stop at <|endoftext|> (0), the teacher at" in warning
    )
    assert "<|im_end|> (2)" in warning
    assert "SFT" in warning
