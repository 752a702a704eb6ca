# make demo · test · notebooks · readme · bench: each makes .venv when it is missing or older than the requirements, then runs.
# PYTHON=python3.12 make test   takes another Python (3.11 to 3.13).
PYTHON ?= python3
VENV := .venv
RUN := $(VENV)/bin/python
REQUIREMENTS := requirements.txt requirements-dev.txt pyproject.toml

.PHONY: demo test lint notebooks readme readme-quick bench clean

demo: $(VENV)/ready
	$(RUN) -m train.pretrain configs/demo.yaml

test: $(VENV)/ready lint
	$(RUN) -m pytest -n 2 --dist loadfile

# Runs them; `make notebooks WRITE=--write` also keeps what they print and draw.
notebooks: $(VENV)/ready
	$(RUN) -m notebooks.execute $(WRITE)

# Every command of README, in a fresh copy, as a newcomer would run them: hours.
readme:
	$(PYTHON) tests/readme_commands.py

# Those that take under a minute, with this .venv: a part of CI.
readme-quick: $(VENV)/ready
	$(RUN) tests/readme_commands.py --quick

lint: $(VENV)/ready
	$(RUN) -m ruff check .
	$(RUN) -m ruff format --check .
	$(RUN) -m mypy
	$(VENV)/bin/lint-imports

bench: $(VENV)/ready
	$(RUN) -m benchmarks.throughput
	$(RUN) -m benchmarks.throughput --versus transformers
	$(RUN) -m benchmarks.throughput --ladder --skip compile
	$(RUN) -m benchmarks.throughput --attention
	$(RUN) -m benchmarks.throughput --decode --versus transformers
	$(RUN) -m benchmarks.throughput configs/base.yaml --packing
	$(RUN) -m benchmarks.preparing

# Everything is installed before the stamp is written, so an interrupted install starts again.
$(VENV)/ready: $(REQUIREMENTS)
	$(PYTHON) -m venv $(VENV)
	$(RUN) -m pip install --quiet --disable-pip-version-check -r requirements-dev.txt -e .
	touch $@

clean:
	rm -rf $(VENV) .pytest_cache .ruff_cache .mypy_cache .hypothesis
