from itertools import groupby
from pathlib import Path

from benchmarks.science.tasks import shop
from benchmarks.science.tasks.rows import write_dataset
from stillhouse.chat.parts import ALL_PARTS
from stillhouse.chat.tokenizer import load_tokenizer
from stillhouse.config.training import SftSource
from stillhouse.training.sft.render import Chunk, Rendering, render_chunk
from stillhouse.training.sft.sources import read_source_rows


def test_tool_output_that_is_learnt_has_the_tokens_of_tool_output_that_is_masked(tmp_path: Path) -> None:
    tokenizer = load_tokenizer("embedded:student")
    rendering = Rendering(max_length=512, too_long="drop", parts=ALL_PARTS)
    ids, masks = [], []
    for with_output in (False, True):
        folder = write_dataset(tmp_path, shop.rows(8, seed=0, with_output=with_output))
        rows = list(read_source_rows(SftSource(path=str(folder))))
        samples = render_chunk(tokenizer, Chunk(0, 0.0, rows), rendering).batches["train"]
        ids.append(samples.column("token_ids").to_pylist())
        masks.append(samples.column("loss_mask").to_pylist())
    assert ids[0] == ids[1]
    for masked, learnt in zip(*masks, strict=True):
        assert [is_target for is_target, _ in groupby(learnt)] == [False, True]
        assert sum(learnt) > sum(masked)
