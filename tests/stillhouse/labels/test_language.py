import pytest

from stillhouse.labels.language import identified


@pytest.mark.parametrize(
    ("answer", "language"),
    [
        ("Bob bought three more marbles than Alice did.", "en"),
        ("BOB BOUGHT THREE MORE MARBLES THAN ALICE DID.", "en"),
        ("Die Antwort lautet fünf Äpfel, wie wir gesehen haben.", "de"),
        ("La réponse est quarante-deux pommes, comme nous l'avons vu.", "fr"),
        ("La respuesta correcta es cinco manzanas.", "es"),
        ("La risposta corretta è cinque mele, come abbiamo visto.", "it"),
        ("Правильный ответ: пять яблок.", "ru"),
        ("他有五个苹果,答案是五。", "zh"),
        ("答えは五つのりんごです。", "ja"),
        ("정답은 사과 다섯 개입니다.", "ko"),
        ("الإجابة الصحيحة هي خمس تفاحات.", "ar"),
        ("Die Funktion gibt die Summe zurück:\n```python\nreturn the_sum_of(all_the_values)\n```", "de"),
        ("<think>The user speaks German, so I will answer in it.</think>Es sind insgesamt fünf Äpfel.", "de"),
        ("Die Lösung ist $x = \\frac{the}{answer}$, also fünf Äpfel, siehe https://the-answer.com/is-here", "de"),
    ],
)
def test_the_language_of_prose_is_found(answer: str, language: str) -> None:
    found, confidence = identified(answer)
    assert found == language
    assert confidence is not None
    assert 0.3 <= confidence <= 1


@pytest.mark.parametrize(
    "answer",
    [
        None,
        "42",
        "The answer is 5.",
        "$$\\int_0^1 x^2 \\, \\mathrm{d}x = \\frac{1}{3}$$",
        "```python\nprint('the answer to this question is five apples')\n```",
        '{"answer": "five apples and three pears", "unit": "pieces of fruit"}',
        "`the answer to this question` is `five apples`",
        "https://example.com/the-answer-to-this-question-is-five-apples",
        "🍎🍎🍎🍎🍎 = 5 ✅✅✅✅✅✅✅✅✅✅",
        "<div><span></span></div><table><tr></tr></table>",
    ],
)
def test_answers_without_prose_have_no_language(answer: str | None) -> None:
    assert identified(answer) == (None, None)
