# make demo    trains the main job on a generated graph
# make test    runs the tests
# make check   what CI runs: format, lint, types, import directions, tests
# make drill-memory   trains on features of 4 times the memory allowed; root, 14 GB of disk
# make drills  breaks runs on a cluster of network namespaces, and writes cluster/README.md's table; root, iproute2, half an hour
# make image   builds docker/'s cpu image without a Docker engine, and runs the demo in it; root, buildah, debootstrap, 12 GB of disk
# make docs    writes docs/cli.md and docs/config.md from the code
# make env     the environment in .venv, which the others make by themselves

PYTHON ?= $(shell command -v python3.11 || command -v python3)
BIN := .venv/bin
# torch's OpenMP threads wait in a loop; a long one on cores that others use too stalls the tests
export GOMP_SPINCOUNT := 1000
.PHONY: env demo test lint check docs drill-memory drills image

env: .venv/.installed

.venv/.installed: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	touch $@

demo: env
	$(BIN)/dnformer ingest synthetic:sbm --nodes 10000 --out cache/demo
	$(BIN)/dnformer train jobs/configs/demo.yaml --fresh

test: env
	$(BIN)/python -m pytest $(PYTEST_ARGS)

drill-memory: env
	$(BIN)/python tests/drills/memory.py

drills: env
	$(BIN)/python jobs/drills/all.py

image:
	docker/build-local.sh

lint: env
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/yamllint --strict cluster jobs/configs
	$(BIN)/hadolint docker/Dockerfile

docs: env
	$(BIN)/python docs/generate.py

check: lint test
