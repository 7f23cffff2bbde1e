import json

import pytest

from stillhouse.inference.answer_body import parse_body
from stillhouse.inference.failures import RequestFailed

WHOLE = {"choices": [{"index": 0, "message": {"role": "assistant", "content": "4"}, "finish_reason": "stop"}]}
EVENT = b'data: {"choices": [{"index": 0, "delta": {"content": "fo"}, "finish_reason": null}]}\n\n'


@pytest.mark.parametrize(("before", "after"), [(b"\n \n", b""), (b"", b"\n\ndata: [DONE]\n\n")])
def test_a_whole_object_is_read_between_white_space_and_before_the_end_of_events(before: bytes, after: bytes) -> None:
    assert parse_body(before + json.dumps(WHOLE).encode() + after) == WHOLE


@pytest.mark.parametrize(
    "content",
    [
        EVENT + b"data: [DONE]\n\n",
        b": keep-alive\n\n" + EVENT,
        b"\nevent: message\n" + EVENT,
        b'{"choices": []}\n{"choices": []}\n',
    ],
)
def test_a_stream_that_nobody_asked_for_fails_at_once_and_names_the_remedy(content: bytes) -> None:
    with pytest.raises(RequestFailed, match=r"rollouts\.extra_body: \{stream: false\}") as caught:
        parse_body(content)
    assert caught.value.failure.kind == "permanent"


@pytest.mark.parametrize(
    ("content", "said"),
    [(b'{"choices": [', "not valid JSON"), (b"502 Bad Gateway", "not valid"), (b"[]", "not a JSON object")],
)
def test_what_is_cut_or_no_object_is_tried_again(content: bytes, said: str) -> None:
    with pytest.raises(RequestFailed, match=said) as caught:
        parse_body(content)
    assert caught.value.failure.kind == "transient"
