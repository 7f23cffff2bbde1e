import torch

from benchmarks.on_policy.lengths import EndsAsAsked
from benchmarks.sft.workload import FIRST_WORD_ID

END = 2


def test_the_end_token_is_forced_in_the_row_and_place_that_its_prompt_asks_for() -> None:
    prompts = torch.tensor([[0, 1, 6, 4, FIRST_WORD_ID + 3], [1, 6, 4, FIRST_WORD_ID + 1, 9]])
    mask = torch.tensor([[0, 1, 1, 1, 1], [1, 1, 1, 1, 1]])
    ends = EndsAsAsked(prompts, mask, END)
    forced = []
    for num_sampled in range(4):
        scores = ends(torch.zeros(2, 5 + num_sampled), torch.ones(2, 4))
        forced.append([row[END] == 0.0 and row.isinf().sum() == 3 for row in scores])
    assert forced == [[False, True], [False, False], [True, False], [False, False]]
