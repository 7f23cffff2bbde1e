import re
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import yaml
from markdown_it import MarkdownIt

from stillhouse.dataset.report.card import dataset_card
from stillhouse.dataset.report.origin import Origin
from stillhouse.dataset.report.summary import summarise
from stillhouse.dataset.schema import COLUMNS
from stillhouse.store.fingerprint import file_sha256


def card_of(folder: Path, origin: Origin) -> str:
    return dataset_card(summarise(folder, num_repeated=12), origin)


def front_matter(card: str) -> dict[str, list[str]]:
    """Splits by name of config."""
    configs = yaml.safe_load(card.split("---\n")[1])["configs"]
    return {config["config_name"]: [file["split"] for file in config["data_files"]] for config in configs}


def test_the_front_matter_names_the_files_that_have_rows(data: Any, origin: Origin, realistic: Path) -> None:
    assert front_matter(card_of(realistic, origin)) == {"default": ["train", "validation"], "rejected": ["rejected"]}
    folder = data.write([data.kept(1)])
    assert front_matter(card_of(folder, origin)) == {"default": ["train"]}


def test_the_card_tells_what_is_kept_why_not_and_what_it_cost(realistic: Path, origin: Origin) -> None:
    facts = summarise(realistic, num_repeated=12).facts()
    card = card_of(realistic, origin)
    assert f"{facts['kept']:,} of 2,012 trajectories are kept: {facts['train']:,} to train on" in card
    assert f"for each kept row. Rows that repeat another: {facts['exact_duplicates']} exactly" in card
    assert f"| `wrong` | {facts['drop_reasons']['wrong']} | the answer is not the expected one" in card
    assert re.search(r"\| geometry \| \d\d\.\d\u202f% \| \d\d\.\d\u2013\d\d\.\d\u202f% \| \d+ \|", card)
    assert all(f"| `{column.name}` |" in card for column in COLUMNS)


def test_the_card_names_what_the_dataset_was_made_from(realistic: Path, origin: Origin) -> None:
    card = card_of(realistic, origin)
    for text in (
        "| rollouts | `" + "b" * 64,
        "| Stillhouse | `1.2.3` |",
        "`Qwen/Qwen3-1.7B`",
        "$0.1 prompt, $0.8 completion per million tokens",
        "| longest row kept | `2,048 student tokens` |",
        file_sha256(realistic / "train.parquet"),
    ):
        assert text in card
    (config,) = re.findall(r"```yaml\n(.*?)```", card, flags=re.DOTALL)
    assert yaml.safe_load(config) == origin.config.model_dump(mode="json")


def test_words_of_others_stay_text_in_their_cell(data: Any, origin: Origin) -> None:
    attack = "a|b\n# heading <script>alert(1)</script> ``` `code` [x](javascript:y)"
    folder = data.write([data.kept(1, tag=attack, teacher=attack, verified=True)])
    judged = origin.config.judge.model_copy(update={"instructions": f"```\n{attack}\n```\nmore"})
    config = origin.config.model_copy(update={"judge": judged})
    card = card_of(folder, replace(origin, config=config, lineage={attack: attack}))
    tokens = MarkdownIt("commonmark").enable("table").parse(card.split("---\n", 2)[2])
    headings = [after.content for token, after in pairwise(tokens) if token.type == "heading_open"]
    assert headings == ["Teacher trajectories", "Funnel", "Accuracy of the teacher", "Origin", "Files", "Columns"]
    inline = [child.type for token in tokens for child in token.children or ()]
    assert not {"html_inline", "link_open", "image"} & set(inline)
    assert not any(token.type == "html_block" for token in tokens)
    widths = {len(re.findall(r"(?<!\\)\|", line)) for line in card.splitlines() if line.startswith("| a")}
    assert widths <= {3, 5}
