# make demo          trains a very small model in some two minutes: watch a head learn to copy.
# make story         trains the demo, which writes stories, in $(STORY_MINUTES) minutes on two CPU cores.
# make mine          copies the notebooks to mine/, which git ignores: work there, and `git pull` meets no changes of yours.
# make student       copies all of Headlight without solutions, for a class: OUT=../class; CLASSROOM=--classroom for GitHub.
# make test          style, types, import rules, and the tests of every room: at most 5 minutes on two cores.
# make test-all      `make test`, then all the rest: slow tests, notebooks, quick commands of README, benchmarks/gpu.sh on a CPU.
# make notebooks     runs every notebook; with WRITE=--write it also keeps what they print and draw.
# make slides        makes slides from the notebooks, a PDF for each week of the course, in slides/; it needs Chromium.
# make site          makes a site of README, guides, notebooks, and slides if you made them, in site/; it needs no server.
# make readme        runs every command of README and of three guides in a fresh copy, as a newcomer would: hours.
# make readme-quick  runs those that take under a minute, with this .venv.
# make lint          style, types and import rules alone.
# make sizes         lines and files of every room, and of the path of a training run.
# make bench         measures speed on this machine.
# make clean         removes .venv and every cache.
# make install       installs what tests, notebooks and benchmarks need besides; `make demo` alone needs less.
# Each makes .venv when it is missing or older than the requirements, with the tested versions of constraints.txt;
# CONSTRAINTS= takes the newest. PYTHON=python3.12 takes another Python from 3.11 on, WORKERS=8 another number of test
# processes.
# TORCH="--index-url ADDRESS" installs torch from there first: the address that pytorch.org shows, for CPU or your CUDA.
PYTHON ?= python3
WORKERS ?= 2
VENV := .venv
RUN := $(VENV)/bin/python
CONSTRAINTS ?= constraints.txt
PIP := $(RUN) -m pip install $(addprefix -c ,$(CONSTRAINTS)) --disable-pip-version-check
TORCH ?=
STORY_MINUTES := 3 to 10
NOTEBOOKS = $(patsubst notebooks/%,%,$(wildcard notebooks/*.ipynb notebooks/zh/*.ipynb))
PYTEST := $(RUN) -m pytest -n $(WORKERS) --dist loadfile

.PHONY: demo story mine student install test test-all gpu-dry-run notebooks slides readme readme-quick lint sizes bench clean site

demo: $(VENV)/installed
	$(RUN) -m train.pretrain configs/small.yaml
	@echo
	@echo 'This model copies, but it writes no stories. `make story` trains one that does, in $(STORY_MINUTES) minutes.'

story: $(VENV)/installed
	$(RUN) -m train.pretrain configs/demo.yaml

# A copy that is there already is yours and stays. The folder lies beside notebooks/, so that links work in it, too.
mine:
	@mkdir -p mine/zh
	@for file in $(NOTEBOOKS); do [ -e mine/$$file ] || cp notebooks/$$file mine/$$file; done
	@echo 'Your copies are in mine/. Delete one, and `make mine` copies it anew.'

student: $(VENV)/installed
	$(RUN) -m notebooks.student $(CLASSROOM) $(or $(OUT),../headlight-for-students)

install: $(VENV)/ready

test: lint
	$(PYTEST) -m "not slow"

# What does not share its work between processes runs beside another of its kind, with one thread: threads of two
# programs would wait for each other.
test-all: test
	OMP_NUM_THREADS=1 $(MAKE) -j 2 readme-quick notebooks gpu-dry-run
	$(PYTEST) -m slow

gpu-dry-run: $(VENV)/ready
	PYTHON=$(RUN) OUT=$$(mktemp -d) TEXT=docs bash benchmarks/gpu.sh --dry-run quick real speed

notebooks: $(VENV)/ready
	$(RUN) -m notebooks.execute $(WRITE)

site: $(VENV)/ready
	$(RUN) -m docs.tools.site

slides: $(VENV)/ready
	$(RUN) -m docs.tools.slides

readme:
	$(PYTHON) tests/readme_commands.py

readme-quick: $(VENV)/ready
	$(RUN) tests/readme_commands.py --quick

lint: $(VENV)/ready
	$(RUN) -m ruff check .
	$(RUN) -m ruff format --check .
	$(RUN) -m mypy
	$(VENV)/bin/lint-imports

sizes: $(VENV)/installed
	$(RUN) -m docs.tools.sizes

bench: $(VENV)/ready
	$(RUN) -m benchmarks.training
	$(RUN) -m benchmarks.training --versus transformers
	$(RUN) -m benchmarks.decoding --versus transformers
	$(RUN) -m benchmarks.decoding --kv-heads 8,2,1

# Two stamps, each written last, so that an interrupted install starts again. installed: what running needs.
# ready: what tests, notebooks and benchmarks need as well.
$(VENV)/installed: requirements.txt constraints.txt pyproject.toml
	$(PYTHON) -m venv $(VENV)
	@$(if $(TORCH),,$(RUN) -c "$$ABOUT_TORCH")
	$(if $(TORCH),$(PIP) "$$(grep '^torch' requirements.txt)" $(TORCH))
	$(PIP) -e .
	touch $@

$(VENV)/ready: requirements-dev.txt $(VENV)/installed
	$(PIP) -r requirements-dev.txt
	touch $@

# Said before pip downloads torch: on Linux its default build brings the libraries of CUDA.
define ABOUT_TORCH
import importlib.util, shutil, sys
if sys.platform == "linux" and not importlib.util.find_spec("torch") and not shutil.which("nvidia-smi"):
    print("No NVIDIA GPU found. On Linux pip takes the CUDA build of torch, some gigabytes more than you need.")
    print('For the CPU build: make TORCH="--index-url ADDRESS" with the address that pytorch.org shows for CPU.')
endef
export ABOUT_TORCH

clean:
	rm -rf $(VENV) .pytest_cache .ruff_cache .mypy_cache .hypothesis
