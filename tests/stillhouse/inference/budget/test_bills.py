"""10,000 bills: what is counted is what is charged, to the picodollar, or the cost is unknown and counted at its worst.

The sellers' sums are made apart from the product's, in fractions, from LiteLLM's keys and by the package genai-prices.
"""

import random
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from typing import Final

import pytest
from genai_prices import Usage, calc_price
from genai_prices.data_snapshot import get_snapshot
from genai_prices.types import TimeOfDateConstraint

from stillhouse.inference.budget import spend_of
from stillhouse.inference.budget.known_prices import known_price
from stillhouse.inference.budget.price_file import read_litellm
from stillhouse.inference.budget.spend import Amounts
from stillhouse.inference.price import Price
from stillhouse.inference.usage import Parts, read_cost, read_tier, read_usage
from stillhouse.types import JsonObject, Turn

THRESHOLDS: Final = (32, 100, 128, 200, 256, 272, 512)
TIERS: Final = ("flex", "priority", "batches", "ultrafast", "balanced", "decisions")
PARTS: Final = (
    "input_cost_per_token",
    "cache_read_input_token_cost",
    "cache_creation_input_token_cost",
    "cache_creation_input_token_cost_above_1hr",
    "output_cost_per_token",
    "output_cost_per_reasoning_token",
)
"""In the order of `Parts`."""
SELLERS: Final = {
    "openai": "https://api.openai.com/v1",
    "anthropic": "https://api.anthropic.com/v1",
    "google": "https://generativelanguage.googleapis.com/v1beta/openai",
    "x-ai": "https://api.x.ai/v1",
    "mistral": "https://api.mistral.ai/v1",
    "groq": "https://api.groq.com/openai/v1",
    "together": "https://api.together.xyz/v1",
    "moonshotai": "https://api.moonshot.ai/v1",
}


@dataclass(frozen=True)
class Table:
    """The prices of a model in tenths of a picodollar a token by LiteLLM's keys, with every cell of its bounds."""

    thresholds: list[int]
    tiers: list[str]
    prices: dict[str, int]
    request: int

    @classmethod
    def drawn(cls, rng: random.Random) -> "Table":
        thresholds = sorted(rng.sample(THRESHOLDS, rng.choice((0, 0, 1, 1, 2))))
        tiers = rng.sample(TIERS, rng.choice((0, 1, 2, 3)))
        prices = {}
        for above in (None, *thresholds):
            for tier in (None, *tiers):
                prices |= {part + _suffix(above, tier): rng.randrange(1, 10 ** rng.choice((5, 7, 9))) for part in PARTS}
        return cls(thresholds, tiers, prices, rng.choice((0, 0, rng.randrange(1, 100))))

    @property
    def row(self) -> JsonObject:
        row: JsonObject = {key: float(f"{price}e-13") for key, price in self.prices.items()}
        return {**row, "input_cost_per_request": self.request / 1000} if self.request else row

    def charged(self, used: Parts, tier: str | None) -> int:
        """Return the seller's sum in picodollars."""
        above = max((bound for bound in self.thresholds if used.prompt > 1000 * bound), default=None)
        suffix = _suffix(above, tier)
        tenths = sum(count * self.prices[part + suffix] for part, count in zip(PARTS, used, strict=True))
        return round(Fraction(tenths, 10)) + self.request * 10**9


def _suffix(above: int | None, tier: str | None) -> str:
    return ("" if above is None else f"_above_{above}k_tokens") + (f"_{tier}" if tier else "")


def parts(rng: random.Random, thresholds: list[int]) -> Parts:
    prompt = rng.choice((0, 7, rng.randrange(5_000), *(1000 * above + rng.choice((-1, 0, 1)) for above in thresholds)))
    cuts = sorted(rng.randrange(prompt + 1) for _ in range(3))
    output = rng.randrange(40_000)
    reasoning = rng.choice((0, rng.randrange(output + 1)))
    plain, cached, written = cuts[0], cuts[1] - cuts[0], cuts[2] - cuts[1]
    return Parts(plain, cached, written, prompt - cuts[2], output - reasoning, reasoning)


def answer(rng: random.Random, used: Parts, tier: str | None) -> JsonObject:
    """Return the body of an answer in one of the forms in which usage is told."""
    prompt, output = used.prompt, used.text + used.reasoning
    writes = used.written + used.written_long
    if rng.random() < 0.4:
        usage: JsonObject = {
            "input_tokens": used.plain,
            "cache_read_input_tokens": used.cached,
            "cache_creation_input_tokens": writes,
            "cache_creation": {
                "ephemeral_5m_input_tokens": used.written,
                "ephemeral_1h_input_tokens": used.written_long,
            },
            "output_tokens": output,
            "output_tokens_details": {"reasoning_tokens": used.reasoning},
            "service_tier": "standard" if tier is None else tier,
        }
        return {"usage": usage}
    details = {
        "cached_tokens": used.cached,
        "cache_write_tokens": writes,
        "cache_write_tokens_details": {"ttl_30m_tokens": used.written, "ttl_12h_tokens": used.written_long},
    }
    names = ("input", "output") if rng.random() < 0.5 else ("prompt", "completion")
    is_apart = rng.random() < 0.3
    usage = {
        f"{names[0]}_tokens": prompt,
        f"{names[0]}_tokens_details": details,
        f"{names[1]}_tokens": used.text if is_apart else output,
        f"{names[1]}_tokens_details": {"reasoning_tokens": used.reasoning},
        "total_tokens": prompt + output,
    }
    return {"usage": usage, "service_tier": rng.choice(("default", None)) if tier is None else tier}


def turn_of(body: JsonObject) -> Turn:
    usage = body.get("usage")
    return Turn("stop", read_usage(usage), 1.0, "m", cost_usd=read_cost(usage), service_tier=read_tier(body))


def counted(turn: Turn, price: Price) -> int | None:
    """Return picodollars, as the budget counts them; None where it counts the worst case instead."""
    spent = spend_of(turn, price)
    return None if spent is None or spent.usd is None else Amounts.of(spent).picodollars


def pico(usd: Fraction) -> int:
    return round(usd * 10**12)


def batched(tier: str | None) -> str | None:
    return "batch" if tier == "batches" else tier


def test_bills_by_every_key_of_litellm_s_table_are_counted_to_the_picodollar() -> None:
    rng = random.Random(20261127)
    for _ in range(700):
        table = Table.drawn(rng)
        price = read_litellm(table.row, "m", "")
        assert price is not None
        assert not price.unknown
        for _ in range(10):
            used, tier = parts(rng, table.thresholds), rng.choice((None, *table.tiers))
            turn, charged = turn_of(answer(rng, used, batched(tier))), table.charged(used, tier)
            assert counted(turn, price) == charged, (table, used, tier)
            if tier in (None, "priority"):
                most = price.worst(used.prompt, used.text + used.reasoning)
                assert round(most * 10**12) >= charged, (table, used, tier)


def test_what_no_price_is_for_is_never_counted_as_less() -> None:
    rng = random.Random(7)
    table = Table.drawn(rng)
    price = read_litellm(table.row, "m", "")
    assert price is not None
    extras: list[tuple[str, JsonObject]] = [
        ("prompt_tokens_details", {"audio_tokens": 5}),
        ("completion_tokens_details", {"audio_tokens": 5}),
        ("server_tool_use", {"web_search_requests": 2}),
    ]
    for _ in range(500):
        used = parts(rng, table.thresholds)
        body = {"usage": {"prompt_tokens": used.prompt, "completion_tokens": 9, **dict([rng.choice(extras)])}}
        assert counted(turn_of(body), price) is None
        body = answer(rng, used, "a tier that is new")
        assert counted(turn_of(body), price) is None


def test_what_a_seller_says_it_charged_goes_before_any_price() -> None:
    rng = random.Random(8)
    for _ in range(500):
        usd = Fraction(rng.randrange(10**9), 10**10)
        cost = rng.choice(({"cost": float(usd)}, {"cost_in_usd_ticks": int(usd * 10**10)}, _own_key(float(usd))))
        body = {"usage": {"prompt_tokens": 9, "completion_tokens": 9, **cost}}
        assert counted(turn_of(body), Price(1.0, 1.0)) == pico(usd)


def _own_key(usd: float) -> JsonObject:
    return {"cost": 0, "is_byok": True, "cost_details": {"upstream_inference_cost": usd}}


def models(seller: str) -> Iterator[str]:
    """Yield the models of a seller whose prices do not change with the hour."""
    for provider in get_snapshot().providers:
        for info in provider.models if provider.id == seller else ():
            prices = info.prices if isinstance(info.prices, list) else []
            if not any(isinstance(row.constraint, TimeOfDateConstraint) for row in prices):
                yield info.id


@pytest.mark.parametrize("seller", SELLERS)
def test_bills_by_genai_prices_are_counted_as_it_counts_them(seller: str) -> None:
    rng = random.Random(seller)
    known = [(model, known_price(SELLERS[seller], model)) for model in models(seller)]
    priced = [(model, price) for model, price in known if price is not None]
    assert priced
    for _ in range(250):
        model, price = rng.choice(priced)
        used = parts(rng, [above // 1000 for above in price.above])
        if price.cache_write is None or price.cache_write_long is None:
            used = used._replace(written=used.written + used.written_long, written_long=0)
        tier = rng.choice((None, *(price.tiers or {})))
        context = {"batch": {"processing": "batch"}, "fast": {"service_tier": "fast", "speed": "fast"}}
        theirs = calc_price(
            Usage(
                input_tokens=used.prompt,
                cache_read_tokens=used.cached,
                cache_write_tokens=used.written + used.written_long,
                **({"cache_write_1h_tokens": used.written_long} if used.written_long else {}),
                output_tokens=used.text + used.reasoning,
                output_reasoning_tokens=used.reasoning,
            ),
            model_ref=model,
            provider_id=seller,
            price_context=None if tier is None else context.get(tier, {"service_tier": tier}),
        )
        ours = counted(turn_of(answer(rng, used, tier)), price)
        assert ours == pico(Fraction(theirs.total_price)), (model, used, tier, price)
