# make demo   set up .venv and train MNIST with DistributedDataParallel on this machine
# make test   set up .venv and run lint and all tests
# make bench  measure orch against torchrun and others, side by side
# make image  build orch-train, an image with torch for CPUs (docker/README.md)

PYTHON ?= python3
BIN := .venv/bin
PROFILE ?= local
, := ,

.PHONY: help demo test lint unit schemas soak bench image clean

help:
	@sed -n 's/^# //p' Makefile

.venv/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "orch needs Python 3.11 or newer: make PYTHON=python3.12 ..."; exit 1; }
	$(PYTHON) -m venv .venv

.venv/demo.stamp: pyproject.toml | .venv/bin/python
	@echo "setting up .venv (torch is about 5 GB; it is fetched once)"
	$(BIN)/pip install --quiet --editable '.[train]'
	@touch $@

.venv/test.stamp: pyproject.toml .venv/demo.stamp
	$(BIN)/pip install --quiet --editable '.[train,test,lint]'
	@touch $@

demo: .venv/demo.stamp
	$(BIN)/orch submit jobs/mnist_ddp.yaml --profile $(PROFILE) --follow

# On Debian as root the tests have a cluster (docs/testbed.md), whose packages come first; TESTBED=0 leaves it out.
# Two processes share the files of tests, the long ones first; each can have a testbed.
test: .venv/test.stamp lint
	@$(BIN)/python -m tests.testbed install --where-possible
	$(BIN)/python -m pytest --tx '2*popen//python=tests/testbed/alone $(BIN)/python' --dist loadfile --no-loadscope-reorder

lint: .venv/test.stamp
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

unit: .venv/test.stamp
	$(BIN)/python -m pytest tests/unit tests/golden

# Write the committed JSON Schemas anew, after a change of job.py, profile.py or fields.py.
schemas: .venv/demo.stamp
	$(BIN)/orch schema job > schemas/job.schema.json
	$(BIN)/orch schema profile > schemas/profile.schema.json

# The seeded samples of the test suite in full length.
soak: .venv/test.stamp
	SOAK=1 $(BIN)/python -m pytest -m soak --timeout 3600

.venv-bench/bin/torchx:
	$(PYTHON) -m venv .venv-bench
	.venv-bench/bin/pip install --quiet torchx==0.7.0

# Side-by-side measurements; prints the table of bench/README.md. MNIST_DIR=folder adds the MNIST rows.
bench: .venv/test.stamp .venv-bench/bin/torchx
	@$(BIN)/python bench/pairs.py
	@for script in startup recovery status iterations flood mnist strategies memory scaling checkpoint submit \
		fanout bytes delays many slurm containers; do \
		$(BIN)/python bench/$$script.py || exit 1; done

# PIP_CONF and CERTIFICATES are files lent to the build, for a mirror of the packages; the image keeps neither.
image:
	DOCKER_BUILDKIT=1 docker build --file docker/Dockerfile.cpu --tag orch-train $(BUILD) \
		$(if $(PIP_CONF),--secret id=pip$(,)src=$(PIP_CONF)) \
		$(if $(CERTIFICATES),--secret id=certificates$(,)src=$(CERTIFICATES)) docker

clean:
	rm -rf .venv .venv-bench build dist .mypy_cache .ruff_cache .import_linter_cache .hypothesis
