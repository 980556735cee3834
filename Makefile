# make demo   set up .venv and train MNIST with DistributedDataParallel on this machine
# make test   set up .venv, run the linters and the tests that a change can break
# make test-all  the same with every test, before an issue is called resolved
# make bench  measure orch against torchrun and others, side by side
# make gpu    every check of GPU support that this machine can make (docs/gpu.md)
# make docs   the pages of docs/ as a site in build/site
# make image  build orch-train, an image with torch for CPUs (docker/README.md)

# Shows pip's errors, and not its warnings and its advice about itself.
QUIET := --quiet --quiet

PYTHON ?= python3
BIN := .venv/bin
PROFILE ?= local
, := ,

.PHONY: help demo test test-all prepared lint unit schemas options messages mutations failures sessions pictures soak bench gpu gpu-wheels docs image clean

help:
	@sed -n 's/^# make/make/p' Makefile

.venv/bin/python:
	@[ "$$(uname)" = Linux ] || { echo "orch starts no ranks on $$(uname), so there is no demo and no test: docs/from-laptop.md"; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "orch needs Python 3.11 or newer: make PYTHON=python3.12 ..."; exit 1; }
	$(PYTHON) -m venv .venv

.venv/demo.stamp: pyproject.toml | .venv/bin/python
	@echo "setting up .venv (torch is about 5 GB; it is fetched once)"
	$(BIN)/pip install $(QUIET) --editable '.[train,ui]'
	@touch $@

.venv/test.stamp: pyproject.toml .venv/demo.stamp
	$(BIN)/pip install $(QUIET) --editable '.[train,ui,test,lint]'
	@touch $@

# Other people's frameworks, apart from orch's own packages, as on a node: torch and what it needs come from .venv.
.venv-frameworks/stamp: .venv/test.stamp
	$(BIN)/python -m venv --clear .venv-frameworks
	$(BIN)/python -c 'from importlib.util import find_spec; print(find_spec("torch").origin.rpartition("/torch/")[0])' \
		> .venv-frameworks/lib/$$($(BIN)/python -c 'import sys; print("python%d.%d" % sys.version_info[:2])')/site-packages/torch.pth
	.venv-frameworks/bin/pip install $(QUIET) transformers lightning
	@touch $@

# What other people see runs with. Of MLflow its server on a data base, without the 600 MB that this does not load.
.venv-trackers/stamp: .venv/test.stamp
	$(BIN)/python -m venv --clear .venv-trackers
	.venv-trackers/bin/pip install $(QUIET) --no-compile tensorboard wandb mlflow-skinny==3.17.2 \
		aiohttp alembic fastapi flask flask-cors pandas sqlalchemy uvicorn
	@touch $@

demo: .venv/demo.stamp
	@$(BIN)/orch submit jobs/mnist_ddp.yaml --profile $(PROFILE) --follow
	@printf '%s\n' '' 'Next:' \
		'  $(BIN)/orch status last                           the run that has just ended' \
		'  $(BIN)/orch ui                                    its loss curve in the browser' \
		'  $(BIN)/orch run -- torchrun ... train.py          a script of your own, here' \
		'  $(BIN)/orch init --host me@n[1-3] lab             a profile of your machines (--slurm: of a cluster)' \
		'  $(BIN)/orch run -p lab -- torchrun ... train.py   the script on them'

# On Debian as root the tests have a cluster (docs/testbed.md), whose packages come first; TESTBED=0 leaves it out.
# Some processes share the files of tests, the long ones first; each can have a testbed. Without bytecode, each of some
# thousand commands that the tests start would compile orch anew. CONTRIBUTING.md says which tests are in which command.
WORKERS ?= 3
PYTEST = $(BIN)/python -m pytest --tx '$(WORKERS)*popen//python=tests/testbed/alone $(BIN)/python' --dist loadfile \
	--no-loadscope-reorder

prepared: .venv/test.stamp .venv-frameworks/stamp .venv-trackers/stamp
	@$(BIN)/python -m tests.testbed install --where-possible
	@$(BIN)/python -m compileall -q orchestrator

test: prepared lint
	$(PYTEST) -m 'not full'

test-all: prepared lint
	@$(BIN)/python -m tests.testbed install --all --where-possible
	$(PYTEST)

lint: .venv/test.stamp
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python -m tests.macos.checked | xargs $(BIN)/mypy --platform darwin --follow-imports silent \
		--no-warn-unreachable --cache-dir .mypy_cache/macos
	$(BIN)/lint-imports

unit: .venv/test.stamp
	$(BIN)/python -m pytest tests/unit tests/golden

# Write the committed JSON Schemas anew, after a change of job.py, profile.py or fields.py.
schemas: .venv/demo.stamp
	$(BIN)/orch schema job > schemas/job.schema.json
	$(BIN)/orch schema profile > schemas/profile.schema.json

# Write the tables of training options in docs/ again, after a change of protocol/training_options.py.
options: .venv/demo.stamp
	$(BIN)/python -m tests.option_tables --write

# Write the list of all errors, hints and help texts again, after a change of one: read what has changed.
messages: .venv/demo.stamp
	$(BIN)/python -m tests.messages --write

# Write the causes in docs/failures.md again, after a change of a rule in orchestrator/outcome/rules.py.
failures: .venv/demo.stamp
	$(BIN)/python -m tests.failures --write

# Invert COUNT conditions, drawn by SEED, one at a time: name those that no unit test detects.
mutations: .venv/test.stamp
	$(BIN)/python -m tests.mutations

# Record the sessions of README.md and docs/ again, from real runs: on this machine, and on the testbed where there can be one.
sessions: .venv/test.stamp
	tests/testbed/alone $(BIN)/python -m tests.sessions

# The pictures of the page in docs/ui. `python -m tests.pictures --all FOLDER` shows every view in four widths and both colour schemes.
pictures: .venv/test.stamp
	$(BIN)/python -m tests.pictures

# The seeded samples of the test suite in full length.
soak: .venv/test.stamp .venv-frameworks/stamp
	SOAK=1 $(BIN)/python -m pytest -m soak --timeout 3600

.venv-bench/bin/torchx:
	$(PYTHON) -m venv .venv-bench
	.venv-bench/bin/pip install $(QUIET) torchx==0.7.0

# Side-by-side measurements; prints the table of bench/README.md. MNIST_DIR=folder adds the MNIST rows.
bench: .venv/test.stamp .venv-bench/bin/torchx
	@$(BIN)/python bench/pairs.py
	@for script in startup recovery status iterations flood sampling mnist strategies memory scaling checkpoint submit plan \
		fanout bytes outputs delays many slurm containers environments views ui; do \
		$(BIN)/python bench/$$script.py || exit 1; done

# Fetches nothing. GPU_PYTHON=python3 where torch is the system's own, with what `make gpu-wheels` has put into .whl.
GPU_PYTHON ?= $(BIN)/python
gpu:
	@$(GPU_PYTHON) tests/gpu/run.py $(if $(OUT),--out $(OUT)) $(if $(LIMIT),--limit $(LIMIT))

# What orch needs beside torch, for a GPU machine without a network and with this Python.
GPU_PYTHON_VERSION ?= 3.12
gpu-wheels: .venv/demo.stamp
	$(BIN)/pip download $(QUIET) --only-binary=:all: --no-deps --python-version $(GPU_PYTHON_VERSION) --dest .whl \
		pydantic pydantic-core==$$($(BIN)/python -c 'import pydantic_core; print(pydantic_core.__version__)') \
		annotated-types typing-inspection typing-extensions ruamel.yaml platformdirs click packaging cryptography cffi pycparser

.venv-docs/bin/mkdocs:
	$(PYTHON) -m venv .venv-docs
	.venv-docs/bin/pip install $(QUIET) mkdocs==1.6.1

docs: .venv-docs/bin/mkdocs
	rm -rf build/pages && mkdir -p build/pages
	cp -r --parents *.md docs docker/README.md bench/README.md build/pages
	sed 's/\.md)/.html)/g' llms.txt > build/pages/llms.txt
	.venv-docs/bin/mkdocs build --quiet --strict
	@echo "build/site/index.html"

# PIP_CONF and CERTIFICATES are files lent to the build, for a mirror of the packages; the image keeps neither.
image:
	DOCKER_BUILDKIT=1 docker build --file docker/Dockerfile.cpu --tag orch-train $(BUILD) \
		$(if $(PIP_CONF),--secret id=pip$(,)src=$(PIP_CONF)) \
		$(if $(CERTIFICATES),--secret id=certificates$(,)src=$(CERTIFICATES)) docker

clean:
	rm -rf .venv .venv-bench .venv-docs .venv-frameworks .venv-trackers build dist .mypy_cache .ruff_cache .import_linter_cache .hypothesis
