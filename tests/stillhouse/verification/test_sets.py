import json
from random import Random

from hypothesis import given
from hypothesis import strategies as st

WORDS = st.lists(st.text(alphabet="abcxyz", min_size=2, max_size=8).filter(lambda word: word != "and"), min_size=1)


@given(WORDS, st.randoms(use_true_random=False))
def test_a_set_equals_itself_in_any_order(find, words: list[str], random: Random) -> None:
    shuffled = words + words[:2]
    random.shuffle(shuffled)
    assert find("set", ", ".join(shuffled), json.dumps(words)).verified is True
    assert find("set", json.dumps([*shuffled, "other"]), json.dumps(words)).verified is False
    assert find("list", json.dumps(words), json.dumps(words)).verified is True
