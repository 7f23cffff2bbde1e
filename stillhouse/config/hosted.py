"""Addresses of hosted models that are named without one, as users of OpenAI's clients name them."""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from stillhouse.config.root import DistillConfig
from stillhouse.errors import ConfigError
from stillhouse.sellers import OPENAI

OPENAI_KEY: Final = "OPENAI_API_KEY"
_OPENAI_MODEL: Final = re.compile(r"(?:gpt-\d|chatgpt-|o\d|codex-|ft:gpt-)[^/]*")


def hosted_addresses(config: DistillConfig, environment: Mapping[str, str]) -> Iterator[str]:
    """Yield `section.base_url=ADDRESS` for the teacher and the judge where each is hosted and has no `base_url`.

    A name of OpenAI's (gpt-5.4-mini, o3) is hosted at `OPENAI_BASE_URL`, else at OpenAI; folders and `embedded:` are on
    this machine, as is everything whose `base_url` is stated as null. Other names may be Hugging Face ids: they are on
    this machine too, unless `OPENAI_BASE_URL` is set.

    Raises:
        ConfigError: a name may be either, or the key named for it is another provider's.
    """
    runtime, judge = config.runtime, config.dataset.judge
    models = {"teacher": (config.teacher, runtime.api_key_env)}
    if judge.enabled:
        models["dataset.judge.model"] = (judge.model, runtime.judge_api_key_env or runtime.api_key_env)
    url = environment.get("OPENAI_BASE_URL")
    for section, (model, variable) in models.items():
        is_here = model.model.startswith(("embedded:", "/", "./", "../", "~")) or Path(model.model).is_dir()
        if "base_url" in model.model_fields_set or is_here:
            continue
        if _OPENAI_MODEL.fullmatch(model.model):
            if variable != OPENAI_KEY and not url:
                raise ConfigError(
                    f"{section}.model {model.model!r} is a model of OpenAI's, but its key is to come from {variable}. "
                    f"Name the endpoint that takes that key in {section}.base_url (--base-url for the teacher), or "
                    f"leave the variable at {OPENAI_KEY}",
                    code="which-endpoint",
                )
            yield f'{section}.base_url="{url or OPENAI.base_url}"'
        elif url:
            raise ConfigError(
                f"{section}.model {model.model!r} has no {section}.base_url, while OPENAI_BASE_URL is {url}: it may be "
                "a model there or one to be served by this machine. For the first set "
                f"--set {section}.base_url={url}, for the second --set {section}.base_url=null",
                code="which-endpoint",
            )
