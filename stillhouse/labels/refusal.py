"""The label `refusal`: whether an answer declines, or speaks of being a language model.

Strict patterns rather than a classifier: a missed refusal costs one row, false alarms cost rows nobody looks at. They
follow what models were seen to say: the test prefixes of GCG (Zou et al. 2023, arXiv 2307.15043), the refusals of
XSTest (Roettger et al. 2023, arXiv 2308.01263), and the phrases that the unfiltered WizardLM sets leave out. But a lone
"I'm sorry" or "I cannot", a refusal to those, needs a verb of helping after it.

English first; German, French, Spanish and Chinese by their stock phrases. Other languages are not recognised.
"""

import re
from typing import Final

from stillhouse.labels.declare import FLAW, Column, Kind, Label, Limit, Reason, Texts, present
from stillhouse.labels.prose import without_code

MAX_SHOWN: Final = 200
"""Maximum characters of a refusal in the column."""

_OPENING_CHARS: Final = 500
_STRAIGHT: Final = str.maketrans({"\u2019": "'", "\u2018": "'", "\u00b4": "'"})

_LEAD = r"""
    (?: (?:unfortunately|regrettably|sadly|no|oh|well|hello|hi)\b[^\w\n]{1,3}
      | (?:i\ (?:understand|appreciate|realize|realise|know|see|hear)|thank\ you|thanks|as\ much\ as\ i|while\ i)\b
        [^.!?\n]{0,160}[.,;!]\ (?:but\ |however,?\ )?
    ){0,2}
"""
_SORRY = r"""
    (?: (?:i'm|i\ am|we're|we\ are)\ (?:\w+ly\ |so\ |very\ )?(?:sorry|afraid) | sorry | my\ (?:\w+est\ )?apologies
      | i\ (?:\w+ly\ |do\ )?apologi[sz]e
    )\b [^.!?\n]{0,100}? [,.;:]?\ (?:but\ |that\ |however,?\ ){0,2}
"""
_MODEL = r"""
    (?:an?\ )?(?:ai|artificial\ intelligence|(?:ai\ |large\ )?language\ model|llm)
    (?:\ (?:language\ model|assistant|model|system|chatbot|program))?(?:\ \([^)\n]{1,20}\))?
"""
_CANNOT = r"""
    (?: can(?:'?t|not|\ not) | won't | will\ not | refuse\ to | decline\ to
      | (?:'m|\ am)\ (?:not\ (?:able|allowed|permitted|going|programmed|designed|willing)|unable)\ to
      | (?:'m|\ am)\ not\ comfortable(?:\ with)?
    )(?:\ (?:and|or)\ will\ not)?(?:\ (?:\w+ly|just|in\ good\ conscience))?
"""
_THING = r"(?:that|this|these|those|it|any|such|information|instructions?|advice|content|guidance|assistance)\b"
_HELP = rf"""
    (?: (?:help(?:ing)?|assist(?:ing)?)(?:\ (?:you|anyone|users?|people|out|with|on|in)\b|\ ?[.,;!]|\ ?$)
      | (?:comply|complying|oblige|engag(?:e|ing)\ in|participat(?:e|ing)\ in|fulfil+(?:ing)?|accommodate)\b
      | (?:do|answer|complete|respond\ to|support|condone|recommend|encourage|endorse|promote|facilitate)
        \ (?:your\b|{_THING})
      | (?:provid|giv|offer|shar|creat|generat|writ|produc|discuss|assist|process|continu|reveal)(?:e|ing)?
        \ (?:you\ )?(?:with\ )?(?:(?:specific|detailed|medical|legal|financial|personal|explicit|harmful)\ )*{_THING}
    )
"""
# After an apology any object will do, unless the sentence goes on to give something all the same.
_MAKE = r"""
    (?: provide|give|offer|share|create|generate|write|produce|discuss|process|reveal)\b
    (?![^.!?\n]*\b(?:but|however|although|until|unless|without)\b)
"""
_BY_RULE = r"""
    (?:that|this|your|the)\ (?:request|prompt|question|topic|content)\b[^.!?\n]{0,40}
    (?:violates?|goes\ against|is\ against|conflicts\ with)\ (?:my|our|openai|the)\b[^.!?\n]{0,40}
    (?:guidelines?|polic(?:y|ies)|principles|programming|terms)
"""
_DECLINE = r"""
    (?: (?:must|have\ to|need\ to|will\ have\ to|'ll\ have\ to)(?:\ \w+ly)? | \w+ly )\ (?:decline|refuse)
    (?=\ (?:to|this|that|your|any)\b | [.,;!] | $)
"""

_DECLINES: Final = re.compile(
    rf"""[\s*_#>]*(?P<words> {_LEAD}
        (?: {_SORRY} (?:as\ {_MODEL},?\ )? i\ ?{_CANNOT}\ {_MAKE}
          | (?:{_SORRY})? (?:as\ {_MODEL},?\ )? (?: i\ ?{_CANNOT}\ {_HELP} | i\ ?{_DECLINE} | {_BY_RULE} )
        )[^.!?\n]*)""",
    re.IGNORECASE | re.VERBOSE,
)
_IS_A_MODEL: Final = re.compile(
    rf"""(?<![\w"'])(?:
        as\ {_MODEL}(?:\ (?:trained|developed|created|made|built)\ by\ [^,.\n]{{1,40}})?,?\s(?:i\b|my\b)
      | i(?:'m|\ am)\ (?:just\ |only\ |merely\ )?(?:an\ ai|a\ (?:large\ )?language\ model)
        (?:\ (?:language\ model|assistant|model|system|chatbot))?
        (?=\s*(?:$|[,.;!\n]|(?:and|so|but|trained|developed|created|made)\b))
    )[^.!?\n]*""",
    re.IGNORECASE | re.VERBOSE,
)
_OTHER_LANGUAGES: Final = re.compile(
    r"""[\s*_#>]*(?P<words>(?:
        (?:es\ tut\ mir\ leid|tut\ mir\ leid|entschuldigung|leider)[^.!?\n]{0,60}?
        (?:kann\ ich|ich\ kann)[^.!?\n]{0,60}?\ nicht\ (?:helfen|unterstützen|behilflich|beantworten)
      | ich\ kann\ (?:dir\ |ihnen\ |euch\ )?(?:dabei|damit)\ (?:leider\ )?nicht\ (?:weiter)?(?:helfen|behilflich)
      | als\ (?:ki|künstliche\ intelligenz|sprachmodell)(?:-?(?:sprachmodell|modell|assistent))?\ (?:kann|habe|bin)\ ich
      | (?:je\ suis\ (?:vraiment\ )?)?désolée?[^.!?\n]{0,20}?
        je\ ne\ (?:peux|puis)\ pas\ (?:vous\ |t')?(?:aider|assister|répondre|fournir)
      | en\ tant\ qu(?:e\ |')(?:ia|modèle\ de\ langage|intelligence\ artificielle|assistant\ ia)\b[^.!?\n]{0,40}?\bje\b
      | (?:lo\ siento|lo\ lamento)[^.!?\n]{0,20}?no\ puedo\ (?:ayudar|asistir|proporcionar|cumplir|responder)
      | como\ (?:un\ )?(?:modelo\ de\ (?:lenguaje|ia)|ia|inteligencia\ artificial)\b[^.!?\n]{0,40}?\bno\b
      | (?:非常|很|十分)?(?:抱歉|对不起|對不起)[,\uff0c\u3002!\uff01\s]{0,2}但?我(?:无法|不能|無法)
        (?:提供|协助|帮助|回答|满足|協助|幫助|滿足)
      | 作为(?:一个|一名)?(?:ai|人工智能)(?:语言模型|助手|模型)?[,\uff0c]?\s?我
    )[^.!?\u3002\uff01\uff1f\n]*)""",
    re.IGNORECASE | re.VERBOSE,
)


def refusal_in(answer: str) -> str | None:
    """Return the words of `answer` that decline, or that say it comes from a language model; None without any.

    An answer declines with its first words; quotes and code do not count.
    """
    text = without_code(answer).text.translate(_STRAIGHT)
    opening = text.lstrip()[:_OPENING_CHARS]
    for pattern in (_DECLINES, _OTHER_LANGUAGES):
        if match := pattern.match(opening):
            return _shortened(match["words"])
    for match in _IS_A_MODEL.finditer(text):
        before = text[text.rfind("\n", 0, match.start()) + 1 : match.start()]
        is_quoted = before.count('"') % 2 == 1 or before.count("\u201c") > before.count("\u201d")
        if not (is_quoted or before.startswith(">")):
            return _shortened(match[0])
    return None


def _shortened(words: str) -> str:
    text = " ".join(words.split()).strip("*_ ")
    return text if len(text) <= MAX_SHOWN else text[: MAX_SHOWN - 3] + "..."


def _refusal(texts: Texts) -> str | None:
    if texts.refusal is not None:
        return _shortened(texts.refusal)
    return None if texts.answer is None else refusal_in(texts.answer)


REFUSAL: Final = Label(
    place=40,
    columns=(
        Column("refusal", Kind.TEXT, "the words with which the answer declines; null if it does not", FLAW, _refusal),
    ),
    filters=(
        present("refusal", Reason("refusal", "the answer declines"), "not refused", Limit("drop_refusals", bool,
            "Drop answers that refuse, or that mention being a language model. Look at those it drops once: it goes by "
            "phrases.", off=False), 90),
    ),
)  # fmt: skip
