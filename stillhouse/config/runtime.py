"""Sections of the run as a whole: evaluation, tracking, runtime; and the roles of models asked over HTTP."""

from enum import Enum
from typing import Final, Literal, Self

from pydantic import Field, model_validator

from stillhouse.config.secrets import VariableName
from stillhouse.config.section import Section, later_field
from stillhouse.config.suites import Suites
from stillhouse.errors import WrongSetting


class EvaluationConfig(Section):
    """How base, students and teacher are compared on the held-out prompts."""

    form_first = ("enabled", "max_prompts", "num_samples")

    enabled: bool = True
    """Run this stage."""
    max_prompts: int | None = Field(default=None, ge=1)
    """Most held-out prompts to use, from the first; None uses all. 200 have a 95 % interval of up to 7 points either
    way."""
    num_samples: int = Field(default=1, ge=1)
    """Trajectories per prompt. 1 first; 4 narrow the interval where prompts are few."""
    temperature: float | None = Field(default=1.0, ge=0.0)
    """Sampling temperature, where the model takes it; teacher_kl estimates the reverse KL at 1 and is left out at other
    values. 0 measures the most likely answer, as benchmarks often do; None leaves it to each model."""
    max_tokens: int = Field(default=2048, ge=1)
    """Most tokens of one completion, the teacher's as well: long enough for its reasoning, or it is measured too
    low."""
    max_turns: int = Field(default=10, ge=1)
    """Most completions of one trajectory; as rollouts.max_turns."""
    seed: int = 1
    """Seed from which each request's own seed is derived; another measures again with other samples."""
    suites: Suites = later_field(())
    """Tasks of inspect_ai (the extra `suites`) on which every model is measured as well: `FILE.py:task` of your own, or
    `inspect:NAME` of a package's. Temperature 0, `max_tokens` and `seed` apply where a task sets none."""


class TrackingConfig(Section):
    """MLflow."""

    enabled: bool = True
    """Record the run in MLflow; the report page is written in any case. Off for trials that nobody will compare."""
    uri: str | None = None
    """Tracking server or database; None takes MLFLOW_TRACKING_URI, or else a SQLite file in the store."""
    experiment: str = "stillhouse"
    """Experiment the runs are filed under. One a project keeps runs that are compared together."""
    traces: int = Field(default=20, ge=0)
    """Conversations of each stage that samples that become traces in MLflow: the first ones, so that runs with the same
    prompts show the same. 0 for none."""
    register_as: str | None = Field(default=None, pattern=r"^[^/:]*[^/:\s][^/:]*$")
    """Registered model in MLflow of which each student becomes a version, without `/` and `:`; None registers none.
    The last student of a run gets the alias `candidate`."""


class RuntimeConfig(Section):
    """Facts of the machine and of this one run. Nothing here changes a result, so nothing here enters a cache key."""

    form_first = ("store", "api_key_env", "concurrency", "device")

    store: str = "runs"
    """Folder of artifacts, journal, checkpoints and the MLflow database. For several machines a URL such as
    `s3://BUCKET/PREFIX`, which holds finished artifacts (the extra `s3`; credentials by the usual AWS variables)."""
    store_mode: Literal["private", "group"] = "private"
    """Who else may use the store on this machine: nobody, or the members of its folder's group, who then continue each
    other's runs."""
    scratch: str = "runs"
    """Local folder for unfinished work and copies of finished artifacts if `store` is a URL; otherwise unused."""
    api_key_env: VariableName = "OPENAI_API_KEY"
    """Name of the environment variable that holds the teacher's API key; never the key itself."""
    judge_api_key_env: VariableName | None = None
    """The same for the judge; None takes the teacher's."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where models run; `auto` takes CUDA when there is one. `cpu` repeats a result to the bit."""
    engine: Literal["auto", "vllm", "transformers"] = "auto"
    """What answers for local models and samples for the student: servers of vLLM, which the run starts and ends, or
    transformers. `auto` takes vLLM on CUDA once `make vllm` has set it up; `vllm` takes it on a CPU as well."""
    vllm_python: str | None = None
    """Python of an environment that has vLLM, which asks for other versions than Stillhouse; None takes the one that
    `make vllm` sets up."""
    num_threads: int | None = Field(default=None, ge=1)
    """CPU threads of a training or serving process, and processes that label and render rows; None leaves the threads
    to torch, and takes a process per core for many rows. Set 1 for small models, and where several runs share the
    cores."""
    concurrency: int = Field(default=20, ge=1)
    """Requests in flight at the start; the limit then follows what the endpoint accepts. Leave it: higher values are
    approached in steps. A model that the run serves itself is asked from the start for all that its server takes."""
    max_concurrency: int = Field(default=1000, ge=1)
    """Requests in flight at most. Lower it for a server that you share."""
    max_requests_per_minute: float | None = Field(default=None, gt=0.0)
    """Requests a minute at most; None leaves it to what the endpoint accepts. Set it to leave room for others with the
    same key."""
    max_tokens_per_minute: float | None = Field(default=None, gt=0.0)
    """Tokens a minute at most, prompts and completions together; None leaves it to what the endpoint accepts."""
    request_timeout_s: float = Field(default=600.0, gt=0.0)
    """Longest wait for one HTTP response in seconds. Raise it for reasoning models with long answers; lower it where an
    endpoint hangs."""
    hedge: bool = True
    """Send a request again when its response is long overdue, and take the first response; the report counts these.
    Never where a price is known, as both may be paid for, in batches, or to a model that the run serves itself."""
    max_attempts: int = Field(default=6, ge=1)
    """Tries of one request that fails for passing reasons; rate limiting does not count as a try, nor does an outage of
    up to ten minutes. Raise it for an endpoint that answers with errors now and then."""
    shard_size: int = Field(default=300, ge=1)
    """Prompts of one Prefect task run. Take 200 to 500, or what needs 2 to 10 minutes: each task run costs the server
    some milliseconds, and a killed one is gone through again, with its answers from the journal."""
    rollout_shards: int = Field(default=4, ge=1)
    """Shards of rollouts sampled at once. In the flow's process they share the limits above; elsewhere each has an
    equal part of the limits, and a part of the budget in proportion to its prompts."""
    rollout_deployment: str | None = Field(default=None, pattern=r"^[^/]+/[^/]+$")
    """Deployment of the flow `run-stage` that samples rollouts, such as `run-stage/cpu`, a flow run for each shard, on
    machines that share the store. None samples where `task_runner` says."""
    failure_budget: float = Field(default=0.1, ge=0.0, le=1.0)
    """Share of the items of a stage that may fail before the stage does: malformed rows, rollouts, judgements,
    trajectories whose rewards fail. Those that failed are counted and left out. Results that were accepted under a
    larger share stay."""
    task_runner: Literal["local", "ray"] = "local"
    """Where labels are computed: in processes of this machine, or, with the rollouts, on a Ray cluster (extra `ray`)
    whose workers have the store under the same path."""
    ray_address: str | None = None
    """Ray cluster that the flow's machine is part of, such as `10.0.0.5:6379`; for the launcher `ray` also
    `http://10.0.0.5:8265`. None starts one on this machine for tasks, and finds one there for the launcher."""
    launcher: Literal["inline", "subprocess", "torchrun", "ray"] = "subprocess"
    """Where training runs: in the flow's process, in a guarded process, in several by torchrun, or as a job of a Ray
    cluster (the extra `ray`; KubeRay on Kubernetes) whose hosts share the store."""
    num_processes: int = Field(default=1, ge=1)
    """Processes of a host that share a training, one a device."""
    num_hosts: int = Field(default=1, ge=1)
    """Hosts that train together and share the store. A cluster starts them; under `torchrun` all but the first run the
    command in the run's log."""
    gpus_per_host: int | None = Field(default=None, ge=0)
    """GPUs of each host of a cluster; None takes one per process, and none if `device` is `cpu`."""
    training_deployment: str | None = Field(default=None, pattern=r"^[^/]+/[^/]+$")
    """Deployment of the flow `run-stage` that trains and evaluates students, such as `run-stage/gpu`, on machines that
    share the store; this run waits for it, and cancels it if it ends first. None does both in this run."""
    refresh: tuple[str, ...] = ()
    """Stages of the flow to run again although their results are cached, by their names in its closing table.
    Completions already paid for come from the journal."""

    @property
    def thread_variables(self) -> dict[str, str]:
        """Return the environment variables from which torch takes its number of threads when it is imported."""
        return {} if self.num_threads is None else {"OMP_NUM_THREADS": str(self.num_threads)}

    @property
    def in_one_process(self) -> Self:
        """Return the settings for a job that runs in one process, as one that samples or scores does."""
        launcher = "subprocess" if self.launcher == "torchrun" else self.launcher
        return self.model_copy(update={"launcher": launcher, "num_processes": 1, "num_hosts": 1})

    @model_validator(mode="after")
    def _processes_have_a_launcher(self) -> Self:
        if self.launcher in ("inline", "subprocess") and (self.num_processes, self.num_hosts) != (1, 1):
            raise WrongSetting(
                f"runtime.num_processes = {self.num_processes} and runtime.num_hosts = {self.num_hosts} need "
                f"runtime.launcher `torchrun` or `ray`, which is {self.launcher!r}",
                code="launcher",
            )
        return self


class ModelRole(Enum):
    """Purpose for which a model is asked. An error about its endpoint, key or price names the settings of its role."""

    TEACHER = ("teacher", "api_key_env")
    JUDGE = ("dataset.judge.model", "judge_api_key_env")

    def __init__(self, section: str, key_field: str) -> None:
        self.section: Final = section
        """Path of the section that names endpoint, model and price."""
        self.key_setting: Final = f"runtime.{key_field}"
        """Path of the setting that names the variable of the API key."""
        self._key_field: Final = key_field

    def key_variable(self, runtime: RuntimeConfig) -> str:
        """Return the name of the environment variable that holds the API key."""
        name: str = getattr(runtime, self._key_field) or runtime.api_key_env
        return name
