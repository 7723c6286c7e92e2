# make demo   sets everything up, trains on real images with two Horovod ranks and shows what compression did;
#             FRAMEWORK=tensorflow: with TensorFlow in place of PyTorch
# make test   sets everything up and runs the tests, ruff and mypy
# make bench-kernels   measures the kernels, and writes benchmarks/results/kernels.json and the tables of docs
# make bench-frameworks  compares TensorFlow's attachment with PyTorch's: benchmarks/results/frameworks.json
# make bench-accuracy  trains with every method: benchmarks/results/accuracy.jsonl and docs/results.md;
#             ARGS='--data DIR --processes 8'
# make sanitize        runs the kernels' tests under AddressSanitizer and UBSan; ARGS=thread: ThreadSanitizer
# make emulate-avx512  runs them with the AVX-512 passes on a machine without AVX-512; needs SIMDe's headers
# make fuzz            feeds the native decoder mutated payloads for ten minutes; needs clang
# make setup, make lint, make clean: the parts of `make test`, and removing what they made
# Built wheels are kept in CACHE, outside the tree, so that only the first run takes minutes.

VENV ?= .venv
CACHE ?= $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/hgc-horovod
PYTHON ?= python3
ARGS ?=
FRAMEWORK ?= torch
RUN = PATH="$(CURDIR)/$(VENV)/bin:$$PATH"

.PHONY: setup demo test lint bench-accuracy bench-frameworks bench-kernels sanitize emulate-avx512 fuzz clean

setup: $(VENV)/.ready $(VENV)/.built

$(VENV)/.ready: setup.py pyproject.toml $(wildcard scripts/*)
	@PYTHON=$(PYTHON) sh scripts/setup.sh $(VENV) $(CACHE)

$(VENV)/.built: $(VENV)/.ready setup.py $(wildcard csrc/* csrc/tensorflow/*)
	@$(RUN) python setup.py -q build_ext --inplace
	@touch $@

demo: setup  ## FRAMEWORK=tensorflow, ARGS='--seeds 3', ARGS='--dataset cifar10 --data DIR', …
	@$(RUN) python examples/demo.py --framework $(FRAMEWORK) $(ARGS)

test: setup lint
	@$(RUN) python -m pytest $(ARGS)

lint: setup
	@$(RUN) ruff check .
	@$(RUN) ruff format --check -q .
	@$(RUN) mypy
	@$(RUN) clang-format --dry-run -Werror csrc/*.* csrc/tensorflow/* tests/kernels/*.cpp

bench-frameworks: setup  ## ARGS='--size 1000000 --rounds 20 --output FILE', …
	@$(RUN) python benchmarks/frameworks.py $(ARGS)

bench-kernels: setup  ## ARGS='--sizes 1000000 16384 --repetitions 10 --output FILE', …
	@$(RUN) python benchmarks/kernels.py $(ARGS)
	@$(RUN) python benchmarks/kernels.py --table

bench-accuracy: setup  ## ARGS='--data DIR --tasks ag_news --variants dense hgc-1%-4b', …
	@$(RUN) python benchmarks/accuracy.py $(ARGS)
	@$(RUN) python benchmarks/accuracy.py --table

sanitize: setup
	@PYTHON=$(VENV)/bin/python sh scripts/sanitize.sh $(ARGS)

emulate-avx512: setup
	@PYTHON=$(VENV)/bin/python sh scripts/emulate-avx512.sh $(ARGS)

fuzz: setup  ## ARGS=SECONDS
	@PYTHON=$(VENV)/bin/python sh scripts/fuzz.sh $(ARGS)

clean:
	rm -rf $(VENV) build *.egg-info hgc_horovod/kernels/_hgc*.so .pytest_cache .mypy_cache .ruff_cache .hypothesis
