# The commands to remember. Each sets up what it needs; nothing is installed outside .venv.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
BASE := $(VENV)/.base
READY := $(VENV)/.ready

# Where Python is told to write no bytecode, each process of the tests would compile Stillhouse and each worker of pytest
# all tests.
test test-slow test-outside test-gpu: export PYTHONDONTWRITEBYTECODE =

# A run from here keeps Prefect's database beside the other results, away from ~/.prefect.
export PREFECT_HOME ?= $(CURDIR)/runs/prefect

# Commands that talk to a server ask this one; a run of the CLI starts its own unless this is set in the environment.
SERVER_PORT = $(or $(PORT),4200)
DEFAULTS = PREFECT_API_URL=$${PREFECT_API_URL:-http://127.0.0.1:$(SERVER_PORT)/api} $(BIN)/python -m tasks.server.environment

.PHONY: help setup vllm llama-cpp base demo recipe-smollm recipe-chat-teacher test test-slow test-outside test-gpu check audit format bench bench-start bench-rollouts bench-dataset bench-sft bench-on-policy bench-demo gpu mlflow prefect server pools deploy automations worker-cpu worker-gpu docs docs-serve renew-model clean

help:
	@sed -n 's/^##//p' $(MAKEFILE_LIST)

# torch first, by pip and from the pin alone: nothing else then asks for a build of it that brings CUDA along, nor does
# uv, which reads none of pip's settings.
$(BASE): pyproject.toml constraints.txt | $(PREFECT_HOME)
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --no-compile -c constraints.txt torch
	.ci/install $(BIN) -e .
	.ci/compile $(BIN)
	$(BIN)/python -m tasks.server.database
	@touch $@

$(READY): $(BASE)
	.ci/install $(BIN) -e '.[dev]'
	.ci/compile $(BIN) all
	@touch $@

## setup      the virtual environment with everything in it
setup: $(READY) | $(PREFECT_HOME)

## vllm       vLLM in an environment of its own, for runtime.engine: for CUDA where there is a GPU, else for the CPU (3 GB)
vllm:
	PYTHON=$(PYTHON) .ci/vllm $(VENV)-vllm

## llama-cpp  llama.cpp, compiled, for GGUF files: publish --to gguf, certify, serve (ten to twenty minutes)
llama-cpp: base
	.ci/llama-cpp $(BIN) $(VENV)/llama.cpp

# What runs need, without tests, benchmarks, docs and the packages of other machines.
base: $(BASE) | $(PREFECT_HOME)

$(PREFECT_HOME):
	@mkdir -p $@

## demo       the whole DAG on the embedded models
demo: base
	$(BIN)/stillhouse distill configs/demo.yaml

# The teacher is trained once: its folder is there afterwards.
SMOLLM := runs/smollm
## recipe-smollm  a pretrained model of 135M parameters: teacher, SFT, on-policy, evaluation, publishing; a quarter of an hour
recipe-smollm: base
	$(BIN)/python examples/smollm/model.py $(SMOLLM)/model
	$(BIN)/python examples/smollm/orders.py $(SMOLLM)/orders
	$(BIN)/stillhouse convert $(SMOLLM)/orders/answered.jsonl -o $(SMOLLM)/answers
	test -d $(SMOLLM)/teacher || { $(BIN)/stillhouse sft examples/smollm/teacher.yaml && $(BIN)/stillhouse publish -o $(SMOLLM)/teacher; }
	$(BIN)/stillhouse distill examples/smollm/student.yaml
	test -d $(SMOLLM)/student || $(BIN)/stillhouse publish -o $(SMOLLM)/student --merge

## recipe-chat-teacher  a teacher that only chats: accuracy against its money for SFT, self-training and a teacher that scores
recipe-chat-teacher: base
	$(BIN)/python -m benchmarks.chat_teacher --json runs/chat_teacher/figures.json

## test       the fast tests, on all cores
test: setup
	$(BIN)/pytest --numprocesses auto --dist loadfile --no-loadscope-reorder

## test-slow  the tests that take long
test-slow: setup
	$(BIN)/pytest -m slow

## test-outside  a real vLLM server, images, several machines; into ~/.cache/stillhouse (40 GB, 40 minutes; images and machines as root)
test-outside: setup
	$(BIN)/pytest -m outside

## test-gpu   the tests that need a CUDA device
test-gpu: setup
	$(BIN)/pytest -m gpu

## check      format, lint, imports, types, known vulnerabilities
check: setup
	$(BIN)/ruff format --check
	$(BIN)/ruff check
	$(BIN)/lint-imports
	$(BIN)/mypy
	.ci/audit $(BIN)

## audit      the pinned packages against the vulnerabilities that are known, where https://osv.dev can be reached
audit: setup
	.ci/audit $(BIN)

## format     mend what a machine can mend
format: setup
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

## bench      what each part costs beside a peer or the bare minimum, in minutes
bench: setup
	$(BIN)/python -m benchmarks.rollouts.acceptance --parts cpu ideal --json runs/bench/acceptance.json
	$(BIN)/python -m benchmarks.limits --json runs/bench/limits.json

## bench-start  seconds to the first request and to the end, beside a bare Prefect flow and the bare client
bench-start: setup
	$(BIN)/python -m benchmarks.start --json runs/bench/start.json

## bench-rollouts  the rollout engine and its peers from PyPI through the same scenarios, in hours
bench-rollouts: setup
	$(BIN)/python -m benchmarks.rollouts
	$(BIN)/python -m benchmarks.rollouts.acceptance --json runs/bench/rollouts/acceptance.json

## bench-dataset  from 10k, 100k and 1M trajectories to a dataset, beside pandas and datasets.map
bench-dataset: setup
	$(BIN)/python -m benchmarks.dataset --json runs/bench/dataset.json

## bench-sft  the trainer beside TRL's SFTTrainer: tokens/s, memory, the same losses
bench-sft: setup
	$(BIN)/python -m benchmarks.sft --json runs/bench/sft.json

## bench-on-policy  on-policy distillation beside TRL's DistillationTrainer: step time, memory, the same losses
bench-on-policy: setup
	$(BIN)/python -m benchmarks.on_policy --json runs/bench/on_policy.json
	$(BIN)/python -m benchmarks.on_policy.overlap --json runs/bench/overlap.json

## bench-demo the demo's accuracies over three seeds
bench-demo: setup
	$(BIN)/python -m benchmarks.demo_seeds --json runs/bench/demo_seeds.json

## gpu        everything that only a GPU can show, in 9 minutes; again goes on with what is missing
gpu: setup
	$(BIN)/python -m benchmarks.gpu

## mlflow     the MLflow pages of the runs made here, on http://127.0.0.1:5000, or PORT=5100
mlflow: base
	MLFLOW_SERVER_ENABLE_JOB_EXECUTION=false DO_NOT_TRACK=1 \
		$(BIN)/mlflow ui --workers 1 --port $(or $(PORT),5000) --backend-store-uri sqlite:///$(CURDIR)/runs/mlflow.db

## server     Prefect's server and pages, on http://127.0.0.1:4200; with PORT=4300 deploy and workers need it, too
server: base
	$(DEFAULTS) python -m tasks.server.prefect_server --port $(SERVER_PORT)

## prefect    the same
prefect: server

## pools      the work pools cpu and gpu, where they are missing; POOL_TYPE=docker or kubernetes for containers
POOL_TYPE ?= process
pools: base
	$(DEFAULTS) python deployments/pools.py $(POOL_TYPE)

## deploy     pools, automations and the deployments of CONFIGS, on a server that runs; CONFIGS="demo nightly", or all; RESET=1 drops what was set on the pages
CONFIGS ?= demo
deploy: pools
	status=0; $(DEFAULTS) python -m deployments.deploy $(CONFIGS) $(if $(RESET),--reset) || status=$$?; \
		$(DEFAULTS) python deployments/automations.py && exit $$status

## automations  what the server does by itself; NOTIFY=slack-webhook/team has it tell a block of yours
automations: base
	$(DEFAULTS) python deployments/automations.py $(if $(NOTIFY),--notify $(NOTIFY))

## worker-cpu a worker that runs what the pool cpu is given, until Ctrl-C
worker-cpu: pools
	$(DEFAULTS) prefect worker start --pool cpu

## worker-gpu a worker that runs what the pool gpu is given, one flow at a time
worker-gpu: pools
	$(DEFAULTS) prefect worker start --pool gpu --limit 1

## renew-model a seller's model that is retired, in all docs, configs and examples: FROM=gpt-5.4-mini TO=gpt-6-luna
renew-model:
	git grep -lF '$(FROM)' -- README.md docs configs examples stillhouse/project | xargs sed -i 's/$(subst .,\.,$(FROM))/$(TO)/g'

## docs       the guide, as a website in site/ that opens without a server
docs: setup
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

## docs-serve the guide on http://127.0.0.1:8001, made again when a page is saved
docs-serve: setup
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs serve --strict --dev-addr 127.0.0.1:8001

## clean      remove caches and builds; runs/ stays, for it holds what was paid for
clean:
	rm -rf build dist site .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis
