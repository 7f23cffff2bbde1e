from stillhouse.tracking.params import MAX_PARAM_CHARS, flatten, shorten


def test_leaves_are_named_by_their_path() -> None:
    config = {"sft": {"epochs": 2, "on": True, "none": None, "lora": {"rank": 8}}, "list": [1, "a"], "empty": {}}
    assert flatten(config) == {
        "sft.epochs": "2",
        "sft.on": "true",
        "sft.none": "null",
        "sft.lora.rank": "8",
        "list": '[1, "a"]',
        "empty": "{}",
    }


def test_a_value_at_the_limit_is_whole_and_a_longer_one_is_cut_to_it() -> None:
    assert shorten("x" * MAX_PARAM_CHARS, MAX_PARAM_CHARS) == "x" * MAX_PARAM_CHARS
    cut = shorten("x" * (MAX_PARAM_CHARS + 1), MAX_PARAM_CHARS)
    assert len(cut) == MAX_PARAM_CHARS
    assert "6001 characters" in cut
