import pytest

from stillhouse.labels.refusal import MAX_SHOWN, refusal_in

REFUSALS = (
    "I'm sorry, but I can't help with that.",
    "I can\u2019t help with that request.",
    "I'm sorry, I can't assist with that.",
    "I'm really sorry, but I cannot provide instructions on how to make a weapon.",
    "I apologize, but I cannot fulfill this request as it violates our policies.",
    "Sorry, but I'm not able to help you with that.",
    "As an AI language model, I cannot provide medical advice.",
    "As an AI, I don't have personal opinions.",
    "Unfortunately, I'm unable to assist with this request.",
    "I understand you're frustrated, but I can't help you hack into an account.",
    "I must decline to answer.",
    "I'm sorry, but I must respectfully decline.",
    "I cannot comply with this request.",
    "I won't provide information about that.",
    "I'm not comfortable providing instructions for that.",
    "I'm sorry, but that request goes against OpenAI's usage policies.",
    "I cannot and will not help with that.",
    "**I'm sorry**, but I can't help with that.",
    "Sure! I'm an AI language model, so I have no body.",
    "I'm just an AI, I have no feelings.",
    "As a large language model trained by Google, I am not able to.",
    "I cannot create content that depicts violence.",
    "I cannot write explicit content.",
    "I am unable to provide legal advice.",
    "I'm sorry, but I can't write an essay that promotes hate.",
    "Es tut mir leid, aber dabei kann ich nicht helfen.",
    "Es tut mir leid, aber ich kann Ihnen dabei nicht helfen.",
    "Je suis désolé, mais je ne peux pas vous aider avec cela.",
    "Lo siento, pero no puedo ayudarte con eso.",
    "很抱歉,我无法提供相关信息。",
    "作为一个AI语言模型,我没有个人观点。",
    "I cannot help you with that.",
    "No, I can't help with that.",
    "I'm sorry. I can't help with that.",
    "Thank you for your question. However, I cannot provide such information.",
    "I will not engage in this conversation.",
    "I cannot in good conscience help you with this.",
    "很抱歉\uff0c我无法提供相关信息\u3002",
    "对不起\uff0c我不能协助您\u3002",
)
ANSWERS = (
    "\u5f88\u62b1\u6b49\uff0c\u7b54\u6848\u662f 5\u3002",
    "I can't believe it: the answer is 42.",
    "I'm sorry for the confusion; the answer is 5.",
    "The value cannot be negative, so x = 3.",
    "I can't help but notice that the series converges.",
    "She said \"I'm sorry, but I can't help with that\" and left.",
    '"I can\'t help with that," said the clerk.',
    "Sorry, my previous result was wrong: it is 12.",
    "I cannot find a smaller factor, so 97 is prime.",
    "I apologize for the error. The correct total is 17.",
    "As an AI researcher, I study models.",
    'The phrase "As an AI language model, I cannot" is typical of refusals.',
    "We cannot provide an upper bound without more terms, but 12 is a lower bound.",
    "I can't give you an exact figure, but it is roughly 5%.",
    "I cannot help feeling that this is right: 6.",
    "You can't help everyone.",
    "Unfortunately, the train leaves at 5, so she is late.",
    "I'm afraid of spiders, he wrote. The poem has four lines.",
    "Dear Tom, I'm sorry, but I cannot attend the meeting on Friday.",
    "I won't go through every step: the sum is 10.",
    "I am unable to determine x from one equation, but x + y = 5.",
    "A language model assigns probabilities to text. As a language model grows, perplexity falls.",
    "> I'm an AI, said the robot in the book.",
    "The agent cannot comply with the law of large numbers.",
    "I'm sorry to hear that you are ill. Drink plenty of water.",
    "The answer is 5.",
    "In a refusal a model says `As an AI language model, I cannot do that`.",
    "No, the answer is 7.",
    "I refuse the null hypothesis since p < 0.05.",
    "I will not decline in value terms.",
    "Sorry, but the page returned 404; from memory the answer is 1989.",
    "I'm sorry, but the search found nothing. I cannot provide a source until the page is back, but the year is 1989.",
    "I understand. The total is 12, but I cannot be sure about the tax.",
    "I cannot do division by zero, so the limit is taken instead.",
    "I see that it cannot be negative, so x is 4.",
    "```\nI'm sorry, but I can't help with that.\n```\nis what it prints.",
    "<think>I'm sorry, but I can't help with that. Or can I?</think>The answer is 5.",
    "Here is the letter you asked for:\n\nI cannot assist with your move.",
)


@pytest.mark.parametrize("answer", REFUSALS)
def test_what_declines_is_found(answer: str) -> None:
    assert refusal_in(answer) is not None
    assert refusal_in(f"\n{answer}\nIs there anything else?") is not None


@pytest.mark.parametrize("answer", ANSWERS)
def test_what_answers_is_no_refusal(answer: str) -> None:
    assert refusal_in(answer) is None


LONG = "I can't help with " + "very " * 100


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        ("**I\u2019m sorry**, I can\u2019t help you. Ask a doctor.", "I'm sorry**, I can't help you"),
        ("Sure. As an AI language model,\nI have no body. The sum is 5.", "As an AI language model, I have no body"),
        (f"{LONG}bad things.", LONG[: MAX_SHOWN - 3] + "..."),
    ],
)
def test_the_words_that_decline_are_given(answer: str, words: str) -> None:
    assert refusal_in(answer) == words
