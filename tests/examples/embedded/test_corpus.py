import itertools
import random
import re

from transformers import PreTrainedTokenizerFast

from examples.embedded.corpus import Row, draw_rows


def trained_texts(row: Row, tokenizer: PreTrainedTokenizerFast) -> list[str]:
    spans = itertools.groupby(zip(row.ids, row.loss_mask, strict=True), key=lambda pair: pair[1])
    return [tokenizer.decode([token for token, _ in pairs]) for is_on, pairs in spans if is_on]


def written_turns(row: Row, tokenizer: PreTrainedTokenizerFast) -> list[str]:
    return re.findall(r"<\|im_start\|>assistant\n(.*?<\|im_end\|>)", tokenizer.decode(row.ids), re.DOTALL)


def test_a_scrambled_corpus_trains_on_every_assistant_turn_and_is_the_same_by_seed(tokenizer: PreTrainedTokenizerFast):
    rows, again = (draw_rows(tokenizer, "scrambled", 50, random.Random(1)) for _ in range(2))
    assert rows == again
    for row in rows:
        assert trained_texts(row, tokenizer) == written_turns(row, tokenizer)


def test_a_correct_corpus_leaves_out_exactly_one_turn_where_it_slipped(tokenizer: PreTrainedTokenizerFast):
    num_slips = 0
    for row in draw_rows(tokenizer, "correct", 200, random.Random(1)):
        trained, written = trained_texts(row, tokenizer), written_turns(row, tokenizer)
        left_out = [turn for turn in written if turn not in trained]
        assert len(left_out) <= 1
        assert trained[-1].startswith("The answer is ")
        assert all("<tool_call>" in turn for turn in left_out)
        num_slips += len(left_out)
    assert 25 <= num_slips <= 75
