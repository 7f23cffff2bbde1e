"""The devices of ROLL's workers (roll/configs/base_config.py): processes that train, and their hosts."""

import re
from typing import Any, Final

from stillhouse.interop.mapping import Approximated, ConfigMapper, section, value_at
from stillhouse.types import JsonObject

_TRAINERS: Final = ("student_train", "actor_train", "sft_train", "student")
_FEWER: Final = Approximated(
    "names more devices than num_nodes x num_gpus_per_node, which the training takes: raise runtime.num_hosts for more"
)

_IN_TURN: Final = Approximated("the devices that train also sample, in turn: on_policy.max_staleness is 0")


def map_devices(body: JsonObject, mapper: ConfigMapper) -> None:
    """Map the devices that train, and pop their keys from `body`; transformers samples where no others are left."""
    trainer = next((name for name in _TRAINERS if name in body), "")
    mapping, gpus = value_at(body, trainer, "device_mapping"), body.get("num_gpus_per_node", 8)
    trains = _numbers(mapping)
    if not trains or not isinstance(gpus, int) or not isinstance(body.get("num_nodes", 1), int):
        return
    num = min(len(trains), gpus * body.pop("num_nodes", len(trains)))
    hosts = -(-num // gpus)
    del body[trainer]["device_mapping"]
    body.pop("num_gpus_per_node", None)
    key = f"{trainer}.device_mapping"
    if num < len(trains):
        mapper.skip(_FEWER, key, mapping)
    if num > 1:
        mapper.set("runtime.launcher", "torchrun" if hosts == 1 else "ray", key, mapping)
        mapper.set("runtime.num_processes", num // hosts, key, mapping)
        if hosts > 1:
            mapper.set("runtime.num_hosts", hosts, key, mapping)
    sampler = "actor_infer" if trainer == "actor_train" else "student_infer"
    samples = _numbers(value_at(body, sampler, "device_mapping"))
    if num > 1 and trainer != "sft_train" and (samples & trains or num // hosts == gpus):
        section(body, sampler).pop("device_mapping", None)
        mapper.set("runtime.engine", "transformers", key, mapping)
        if ratio := body.pop("async_generation_ratio", 0):
            mapper.skip(_IN_TURN, "async_generation_ratio", ratio)


def _numbers(mapping: Any) -> set[int]:
    """Return the numbers of devices in `list(range(0,8))`, `[0, 1]` and sums of these."""
    text = str(mapping)
    ranges = (range(*map(int, ends)) for ends in re.findall(r"range\((\d+), *(\d+)\)", text))
    listed = (map(int, re.findall(r"\d+", part)) for part in re.findall(r"\[([\d, ]*)\]", text))
    return {number for part in (*ranges, *listed) for number in part}
