# make setup       everything into .venv (all extras and test dependencies)
# make quickstart  the whole story on the text inside Python itself, about five minutes
# make test        the tests (six to ten minutes on two cores); make test-slow: the long ones
# make test-fast   without faults, browser, documentation, quickstart and long training (about three minutes)
# make test-portable  the numeric tests once more, with AVX2 and fp32 only
# make golden BASE=HEAD~1  whether a refactoring changed results: this tree against a commit (about two minutes)
# make dist        wheel and sdist, into dist/;  make test-dist: install both away from here and try them
# make lint        ruff and mypy;  make bench: side by side with peers
# make docs        the documentation as a site, into site/
#
# Elsewhere: PYTHON picks the interpreter, PIP_OPTIONS the package index, TORCH the build of torch, e.g.
#   make setup TORCH='torch==2.13.0' PIP_OPTIONS='--index-url https://my.index/simple'

PYTHON      ?= python3
TORCH       ?= torch==2.13.0
PIP_OPTIONS ?=
VENV        ?= .venv
BIN         := $(VENV)/bin
WORKERS     ?= 2

unexport PYTHONDONTWRITEBYTECODE  # tests start many processes, and each would compile the package again

.PHONY: setup quickstart test test-fast test-slow test-portable golden dist test-dist lint bench docs clean
.DEFAULT_GOAL := test

# Current when it is newer than what it was made from. torch comes first, by its pin: a bare range elsewhere would
# bring a build for graphics cards.
$(VENV)/.ready: pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "stemma needs Python 3.11 or newer; set PYTHON=...")'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install $(PIP_OPTIONS) --quiet --upgrade pip
	grep -v '^torch==' constraints.txt > $(VENV)/constraints.txt
	$(BIN)/python -m pip install $(PIP_OPTIONS) --quiet --constraint $(VENV)/constraints.txt '$(TORCH)'
	$(BIN)/python -m pip install $(PIP_OPTIONS) --quiet --constraint $(VENV)/constraints.txt --editable '.[all,test]'
	touch $@

setup: $(VENV)/.ready

quickstart: setup
	$(BIN)/stemma quickstart --out quickstart --overwrite

test: setup
	$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal

test-fast: setup
	$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal --fast

test-slow: setup
	$(BIN)/python -m pytest -m slow --timeout 1800

# What a processor without AVX-512 and bf16 computes: other kernels, other last digits, other random weights. With these
# three, automatic precision is fp32.
PORTABLE := ATEN_CPU_CAPABILITY=default ONEDNN_MAX_CPU_ISA=AVX2 MKL_ENABLE_INSTRUCTIONS=AVX2
NUMERIC  := tests/parity tests/network tests/objectives tests/generation tests/exchange $(wildcard tests/faults/test_kill*.py) \
            $(addprefix tests/training/test_,resume.py checkpoints.py loop.py hardware.py)

test-portable: setup
	$(PORTABLE) $(BIN)/python -m pytest -n $(WORKERS) --dist worksteal $(NUMERIC)

# GOLDEN='--only electra --keep results' and the like are handed on.
golden: setup
	@test -n "$(BASE)" || { echo "say which commit to compare with, such as make golden BASE=HEAD~1" >&2; exit 2; }
	$(BIN)/python tests/golden/compare.py $(BASE) --jobs $(WORKERS) $(GOLDEN)

# Without a network: what builds is in the environment (extra `test`). The wheel is made from the sdist.
dist: setup
	rm -rf dist build
	$(BIN)/python -m build --quiet --no-isolation --outdir dist .

test-dist: dist
	$(BIN)/python tests/installed/smoke.py dist

lint: setup
	$(BIN)/ruff check .
	$(BIN)/mypy

bench: setup
	$(BIN)/python benchmarks/corpus_vs_datasets.py
	$(BIN)/python benchmarks/pretrain_vs_transformers.py
	$(BIN)/python benchmarks/causal_vs_transformers.py
	$(BIN)/python benchmarks/generate_vs_transformers.py
	$(BIN)/python benchmarks/xl_evaluation.py

$(VENV)/.docs: $(VENV)/.ready
	$(BIN)/python -m pip install $(PIP_OPTIONS) --quiet --constraint $(VENV)/constraints.txt --editable '.[docs]'
	touch $@

docs: $(VENV)/.docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

clean:
	rm -rf $(VENV) build dist site quickstart .pytest_cache .mypy_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
