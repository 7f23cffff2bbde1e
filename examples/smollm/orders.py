"""Orders in a café and the JSON that a kitchen wants: `python examples/smollm/orders.py FOLDER`.

Guests name things in words, some change their minds, and some only ask: what the JSON has to hold can be checked, and a
small model has to read the whole order to get it right. Writes

    answered.jsonl   conversations that end with the right answer, from which the teacher learns
    prompts.jsonl    other orders, with the answer expected; some are held out to measure every model
"""

import json
import random
import sys
from pathlib import Path
from typing import Final

INSTRUCTION: Final = 'Write the order as JSON like {"table": 4, "items": {"tea": 2}}, without anything else.'
NUM_ANSWERED: Final = 640
NUM_PROMPTS: Final = 400

_ITEMS: Final = {
    "tea": "teas",
    "espresso": "espressos",
    "lemonade": "lemonades",
    "scone": "scones",
    "bagel": "bagels",
    "omelette": "omelettes",
    "salad": "salads",
    "soup": "soups",
    "pancake": "pancakes",
    "sandwich": "sandwiches",
    "brownie": "brownies",
    "smoothie": "smoothies",
}
_NUMBERS: Final = ("one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve")
_OPENINGS: Final = (
    "Table {} here.",
    "Hello, this is table {}.",
    "Good morning from table {}!",
    "For table {}, please.",
)
_REQUESTS: Final = ("We would like {}.", "Could we have {}?", "Please bring us {}.", "{}, please.")
_ASIDES: Final = (
    "The {} at the next table looks wonderful.",
    "Is the {} any good today?",
    "Last time the {} was cold.",
)


def order(rng: random.Random) -> tuple[str, str]:
    """Return what the guests say, and the JSON of what they want."""
    table = rng.randrange(len(_NUMBERS))
    *wanted, other = rng.sample(sorted(_ITEMS), rng.randint(2, 4))
    counts = {item: rng.randint(1, 5) for item in wanted}
    said = [_OPENINGS[rng.randrange(len(_OPENINGS))].format(_NUMBERS[table])]
    said.append(_capitalised(rng.choice(_REQUESTS).format(_listed([_amount(item, counts[item]) for item in wanted]))))
    if rng.random() < 0.4:
        said.append(rng.choice(_ASIDES).format(other))
    changed = rng.choice(wanted)
    match rng.randrange(4):
        case 0:
            counts[changed] = rng.choice([count for count in range(1, 6) if count != counts[changed]])
            said.append(f"No, wait, make that {_amount(changed, counts[changed])}.")
        case 1:
            counts[changed] += 1
            said.append(f"And another {changed}.")
        case 2 if len(wanted) > 1:
            del counts[changed]
            said.append(f"Actually, leave out the {_ITEMS[changed]}.")
    return " ".join(said), json.dumps({"table": table + 1, "items": counts})


def _amount(item: str, count: int) -> str:
    return f"{_NUMBERS[count - 1]} {item if count == 1 else _ITEMS[item]}"


def _listed(parts: list[str]) -> str:
    *first, last = parts
    return f"{', '.join(first)} and {last}" if first else last


def _capitalised(text: str) -> str:
    return text[0].upper() + text[1:]


def main() -> None:
    """Write both files into the folder of the command line."""
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    rng = random.Random(0)
    orders: dict[str, str] = {}
    while len(orders) < NUM_ANSWERED + NUM_PROMPTS:
        said, answer = order(rng)
        orders[f"{said}\n{INSTRUCTION}"] = answer
    rows = list(orders.items())
    answered = [
        {"messages": [{"role": "user", "content": prompt}, {"role": "assistant", "content": answer}]}
        for prompt, answer in rows[:NUM_ANSWERED]
    ]
    prompts = [{"prompt": prompt, "expected_answer": answer} for prompt, answer in rows[NUM_ANSWERED:]]
    for name, written in (("answered.jsonl", answered), ("prompts.jsonl", prompts)):
        lines = "".join(json.dumps(row) + "\n" for row in written)
        (folder / name).write_text(lines, encoding="utf-8")


if __name__ == "__main__":
    main()
