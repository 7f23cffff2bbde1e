"""Sections of the rollouts: prompts, tools, teacher, sampling, budget."""

from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from stillhouse.config.secrets import VariableName
from stillhouse.config.section import Address, Section, later_field
from stillhouse.types import JsonObject

Verifier = Literal[
    "exact", "normalised", "contains", "numeric", "math", "choice", "set", "list", "regex", "json", "python", "judge"
]
"""How an answer is compared with the expected one; `stillhouse.verification` says what each does."""

SamePrompt = Literal["first", "merge", "keep"]
"""Treatment of rows with one prompt and different metadata."""


class PromptsConfig(Section):
    """Where prompts come from and which of them are held out for evaluation."""

    form_first = ("source", "max_prompts", "held_out_fraction", "verifier")

    source: str = "embedded:prompts.jsonl"
    """Path of a txt, jsonl, json, csv, tsv or Parquet file, `embedded:NAME`, or for a Hugging Face dataset `hf:NAME`,
    `hf:NAME:CONFIG`, `hf:NAME[SPLIT]`; without a split `train`, and never the test split of a benchmark that you will
    report. Prefer jsonl with `metadata.expected_answer`, so that answers can be verified."""
    sources: dict[str, str] = later_field({})
    """Several sources by name in place of `source`. Each prompt has the name in its metadata as `prompt_source`; one
    that several sources have belongs to the first."""
    max_prompts: int | None = Field(default=None, ge=1)
    """Most distinct prompts to use of a source, from the first; None uses all. Begin with 20 to see a config through:
    raised later, it pays only for the prompts that are new."""
    entries: tuple[Annotated[int, Field(ge=0)], ...] = ()
    """Use only these rows of the source, counted from 0, to look into single prompts; empty uses all."""
    held_out_fraction: float = Field(default=0.1, ge=0.0, lt=1.0)
    """Share of prompts that no stage trains on, decided by each prompt's content. Evaluation on 200 prompts has a 95 %
    interval of up to 7 points either way, on 1,000 of 3. Set it to 0 for data alone."""
    split_seed: int = 0
    """Seed of the held-out set; another seed draws another set of the same size. Leave it, or runs are not
    comparable."""
    verifier: Verifier = "normalised"
    """How an answer is compared with `expected_answer`; a row's `metadata.verifier` overrides it. Try `numeric` or
    `math` for figures, `choice` for letters, `normalised` for a few words, and `judge`, which costs requests, for free
    text."""
    verifier_by_tag: dict[str, Verifier] = {}
    """Verifiers of prompts with these tags; a row's `metadata.verifier` overrides them."""
    same_prompt: SamePrompt = later_field("first")
    """Of rows with one prompt and different metadata, `first` takes the first row alone, `merge` adds what later rows
    have and the first lacks, `keep` takes each row as a prompt of its own."""

    @model_validator(mode="after")
    def _one_source_or_several(self) -> Self:
        if self.sources and (self.entries or self.source != type(self).model_fields["source"].default):
            raise ValueError("prompts.sources stand in place of prompts.source: leave out source and entries")
        return self


ApiName = Literal["auto", "chat", "responses", "messages"]
TokenKind = Literal["prompt", "completion", "cached_prompt", "cache_write", "cache_write_long", "reasoning"]
"""Tokens with a price of their own."""


class McpServerConfig(Section):
    """An MCP server whose tools are offered under their own names."""

    form_first = ("name", "command", "url", "allow")

    name: str = Field(min_length=1)
    """Name in messages and logs; any that tells servers apart."""
    command: tuple[str, ...] = ()
    """Program and arguments of a server that speaks over stdio; empty for one behind `url`."""
    url: Address | None = None
    """Address of a server that speaks streamable HTTP; None for one that is started by `command`."""
    allow: tuple[str, ...] = ()
    """Names of the tools to offer; empty offers all. Name the few that a prompt can need: each tool's schema is sent
    with every request."""
    environment: tuple[str, ...] = ()
    """Names of the environment variables that the program gets besides PATH and HOME."""
    headers_env: dict[str, VariableName] = {}
    """HTTP headers whose values are in environment variables, as `Authorization: VARIABLE`."""
    stateless: bool = False
    """Share one session among all rollouts, since calls do not depend on each other; off, each rollout has its own."""

    @model_validator(mode="after")
    def _one_transport(self) -> Self:
        if bool(self.command) == (self.url is not None):
            raise ValueError(f"MCP server {self.name!r}: give either command or url")
        return self


class ToolsConfig(Section):
    """Tools the teacher and the student may call, and the user's rewards."""

    form_first = ("builtin", "file", "rewards_file")

    builtin: tuple[Literal["calculator", "browse"], ...] = ()
    """Tools that come with Stillhouse: `calculator`, and `browse`, which reads a web page as markdown."""
    file: str | None = None
    """Path of a Python file whose functions under `@tool` are offered; None offers none."""
    rewards_file: str | None = None
    """Path of a Python file whose functions under `@reward` score trajectories; None has none."""
    mcp: tuple[McpServerConfig, ...] = ()
    """MCP servers whose tools are offered."""
    timeout_s: float = Field(default=60.0, gt=0.0)
    """Longest run of one tool call in seconds, for tools that set none of their own; the model reads an error then.
    Lower it where a slow tool holds up many rollouts; raise it for MCP servers that build or crawl."""
    max_result_characters: int | None = later_field(None, ge=100)
    """Length at which the result of a call is cut, with a note to the model; None cuts pages of `browse` at 8,000
    characters and other results at 50,000, which are about 12,000 tokens that every later turn sends again."""
    environment: tuple[str, ...] = ()
    """Names of the environment variables that sandboxed tools and `ToolArgs.environment` get."""
    allowed_hosts: tuple[str, ...] = ()
    """Hosts that `browse` may reach although they are private, as `name` or `name:port`."""
    browse_with: Literal["auto", "browser", "http"] = "auto"
    """`browser` renders pages in Chromium, `http` only fetches them; `auto` takes Chromium where there is one."""


ClientKind = Literal["auto", "openai", "direct"]
"""How an endpoint is asked."""


class TeacherConfig(Section):
    """The model imitated."""

    form_first = ("model", "base_url")

    model: str = "embedded:teacher"
    """Model name at the endpoint; without an endpoint, a Hugging Face id, a folder, or `embedded:NAME`. Measure it
    before a large run: `stillhouse test` shows its answers, and a student seldom passes it."""
    base_url: Address | None = None
    """OpenAI-compatible endpoint, up to and with `/v1`; None serves the model from this machine while it is needed."""
    api: ApiName = later_field("auto")
    """The API that the model is asked through: `chat` completions, OpenAI's `responses`, or Anthropic's `messages`.
    `auto` knows which models of OpenAI need `responses`, learns it where an endpoint says so, and takes `messages` at
    api.anthropic.com. Name one for a gateway that speaks it under another address; answers already paid for stay."""
    usd_per_million_tokens: dict[TokenKind, Annotated[float, Field(ge=0.0)]] = later_field({})
    """Price of `prompt` and `completion` tokens in USD per million, and of those that are read from a cache
    (`cached_prompt`), written to it (`cache_write`; for an hour or longer `cache_write_long`) or `reasoning` where it
    differs. Empty takes `prices_file`, the endpoint's list, or what the package genai-prices knows."""
    prices_file: str | None = later_field(None)
    """Path of a file of prices: LiteLLM's `model_prices_and_context_window.json`, or YAML of your own with models and
    their prices as in `usd_per_million_tokens`. Set it where `stillhouse doctor` shows no price, or an old one."""
    service_tier: Literal["auto", "default", "flex", "priority"] | None = later_field(None)
    """Service tier that requests ask for; None leaves it to the account's settings. `flex` is slower at about half the
    price, `priority` faster at about twice; `default` lets a budget reserve less where the account is set to none."""
    flex_fallback: bool = later_field(False)
    """Go on in the default tier, at its price, where `service_tier: flex` finds no room; false waits for room."""
    client: ClientKind = later_field("auto")
    """`openai` asks through the package `openai`, `direct` by plain HTTP for a fifth of the CPU; `auto` takes `direct`
    for this machine and private networks, as far as the host's name or number tells. Set `direct` for a server of your
    own behind a public name, and where a gateway refuses the headers of the package."""
    batch: bool = False
    """Use the provider's batch endpoint: half the price, hours of waiting, single-turn rollouts only. Try the config
    without it first."""

    @model_validator(mode="after")
    def _a_price_is_whole(self) -> Self:
        prices = self.usd_per_million_tokens
        if prices and not {"prompt", "completion"} <= prices.keys():
            raise ValueError(f"usd_per_million_tokens has {', '.join(prices)}; expected prompt and completion, or none")
        return self

    @model_validator(mode="after")
    def _prices_are_of_what_is_sold(self) -> Self:
        if self.base_url is None and (self.prices_file or self.service_tier):
            raise ValueError(
                "prices_file and service_tier are of models that are sold: set base_url, or leave them out"
            )
        if self.prices_file and self.usd_per_million_tokens:
            raise ValueError("usd_per_million_tokens and prices_file are two prices: leave one of them out")
        if self.batch and self.service_tier:
            raise ValueError("batch is a service tier of its own: leave service_tier out")
        if self.flex_fallback and self.service_tier != "flex":
            raise ValueError(
                f"flex_fallback is for service_tier: flex, and service_tier is {self.service_tier}: set that, or leave "
                "flex_fallback out"
            )
        return self

    def key_fields(self, fields: dict[str, Any]) -> dict[str, Any]:
        # Answers are the same through either.
        return {name: value for name, value in fields.items() if name != "client"}


class RolloutsConfig(Section):
    """Sampling from the teacher. Sampling fields and system prompt are part of a rollout's identity."""

    form_first = ("max_prompts", "num_samples", "system_prompt", "temperature", "max_tokens", "max_turns")

    max_prompts: int | None = Field(default=None, ge=1)
    """Most training prompts to sample the teacher for; None for all. On-policy training uses all of them. Begin with a
    few hundred: 400 take the demo's student from 45 % to more than 60 %."""
    num_samples: int = Field(default=1, ge=1)
    """Trajectories per prompt; with `dataset.selection.target_rows`, the most. 1 spends the budget on different
    prompts; 4 to 8 find a right answer to hard ones, and give each prompt a pass rate."""
    trajectories_file: str | None = None
    """Take the trajectories of this file, as `stillhouse convert` writes it, and sample none; None samples."""
    system_prompt: str | None = None
    """Put before each prompt that has no system message of its own; None adds none. The student is trained with it:
    serve it with the same text."""
    temperature: float | None = Field(default=None, ge=0.0)
    """Sampling temperature; 0 is greedy. None leaves it to the model, and one that the run serves itself is sampled
    at 1. Newer models of OpenAI and Anthropic take no other than their own; elsewhere try 0.6 to 0.8 for one careful
    answer a prompt, 1 for several different ones. One that the endpoint refuses is left out, and the trajectory says
    so."""
    top_p: float | None = Field(default=None, gt=0.0, le=1.0)
    """Nucleus of the sampling distribution; 1 keeps all of it, None leaves it to the model. Reasoning models are mostly
    published with 0.95 at temperature 0.6 (Qwen3, DeepSeek-R1)."""
    max_tokens: int = Field(default=2048, ge=1)
    """Most tokens of one completion, reasoning included. Reasoning models need 8,000 to 32,000: a completion that is
    cut is paid for and of little use."""
    max_turns: int = Field(default=10, ge=1)
    """Most completions of one rollout; a closing answer is not counted. 1 without tools, 5 to 10 with simple ones, 20
    or more for an agent that browses; each turn sends all earlier ones again."""
    closing_answer: bool = True
    """Where the last turn still calls tools, refuse them with a message and ask once more for an answer. Off, such a
    rollout ends without an answer."""
    response_schema: JsonObject = {}
    """JSON schema of the final answer, sent as `response_format` in the form that the endpoint takes; empty takes any
    text. Where it takes none, set `extra_body: {response_format: {type: text}}`. A model that the run itself serves is
    not sent it. Answers are checked and corrected in any case."""
    max_corrections: int = Field(default=1, ge=0)
    """Corrections of an answer that misses `response_schema` before the rollout counts as invalid. Each is one more
    request."""
    finish_reasons: tuple[str, ...] = later_field(())
    """Finish reasons, as the endpoint writes them, of whole answers that would end as `unfinished`. The words of the
    usual providers are known; name another once you have read answers that end with it."""
    reasoning_effort: Literal["none", "minimal", "low", "medium", "high", "xhigh"] | None = None
    """Reasoning effort of the model; None sends nothing and leaves it to the endpoint. More effort costs more tokens:
    compare `low` and `medium` on five rollouts of `stillhouse test`."""
    extra_body: JsonObject = {}
    """Additional keys of every request, such as OpenRouter's `provider`. They are part of a rollout's identity, so
    changing one samples anew."""
    record_tokens: bool = False
    """Keep token ids and log-probabilities where the endpoint gives them, for an analysis of your own; files grow
    several times."""
    record_top_k: int | None = later_field(None, ge=1)
    """Ask for the most probable tokens at each sampled one (`top_logprobs`), from which `sft.loss: kl` then learns
    without a scoring pass; None asks for none. It is part of a rollout's identity. OpenAI gives up to 20 and vLLM up to
    its `--max-logprobs`; try 20, at some 110 bytes a token."""
    timeout_s: float | None = Field(default=None, gt=0.0)
    """Wall time of one rollout in seconds, tools included; None sets no limit. Set it where tools can hang: 600 is
    plenty for ten turns."""
    max_rollout_tokens: int | None = Field(default=None, ge=1)
    """Most tokens of one rollout, prompts and completions of all its turns; None sets no limit. Set it for agents, each
    of whose turns sends all earlier ones again: ten times what `stillhouse test` shows stops only runaways."""
    seed: int | None = 0
    """Seed from which each request's own seed is derived; None sends no seed. Another seed samples, and pays for,
    everything anew."""

    @property
    def keyed_top_p(self) -> float | None:
        """Return the nucleus that keys hold: 1 where only a temperature is set, as all of them had it at first."""
        return 1.0 if self.top_p is None and self.temperature is not None else self.top_p


class BudgetConfig(Section):
    """Limits of what the run spends on the teacher. Answers of earlier attempts at the same rollouts count as well."""

    max_usd: float | None = Field(default=None, gt=0.0)
    """Most money in USD; None sets no limit. It needs a known price. Set it before anything large, to the upper
    end of what `stillhouse plan` tells; raise it and run again to go on."""
    max_tokens: int | None = Field(default=None, ge=1)
    """Most tokens, prompts and completions together; None sets no limit. The cap to set where no price is known."""
    max_requests: int | None = Field(default=None, ge=1)
    """Most requests, those that failed included; None sets no limit. For endpoints with a quota of requests a day."""
    max_hours: float | None = Field(default=None, gt=0.0)
    """Most hours of wall time for the rollouts of one attempt; None sets no limit. For a night's window: the same
    command goes on the next night."""
