from stillhouse.agent.loop import Conversation
from stillhouse.store import canonical_json, digest
from stillhouse.types import Message

MESSAGES: list[Message] = [
    {"role": "user", "content": "café \ud83d 1"},
    {"role": "assistant", "content": None, "reasoning_details": [{"data": "opaque", "index": 0}]},
    {"role": "user", "content": "go on"},
]


def test_a_digest_that_grew_is_that_of_all_messages() -> None:
    grown = Conversation(MESSAGES[:1])
    for count in range(1, 4):
        assert grown.digest.of_request() == digest(MESSAGES[:count])
        if count < 3:
            grown.add(MESSAGES[count])
    assert grown.num_characters == sum(len(canonical_json(message)) for message in MESSAGES)


def test_opaque_reasoning_is_part_of_a_request() -> None:
    other: Message = {**MESSAGES[1], "reasoning_details": [{"data": "opaque", "index": 1}]}
    assert Conversation(MESSAGES).digest.of_request() != Conversation([MESSAGES[0], other]).digest.of_request()
    assert Conversation(MESSAGES[:2]).digest.of_request() != Conversation([MESSAGES[0], other]).digest.of_request()


def test_a_request_bounded_to_fewer_tokens_is_another() -> None:
    conversation = Conversation(MESSAGES)
    assert len({conversation.digest.of_request(bound) for bound in (None, 10, 11)}) == 3


def test_no_messages_have_a_digest_as_well() -> None:
    assert Conversation([]).digest.of_request() == digest([])
