# make demo   set everything up and learn CartPole
# make test   set everything up and run the tests

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check -q
# Extras that `make test` needs, and the ones that `make demo` brings.
DEMO_EXTRAS := mpi
TEST_EXTRAS := dev,mpi,export,wandb,mlflow,docs
STAMP := $(VENV)/.installed
DEMO := runs/demo-$(shell date +%Y%m%d-%H%M%S)
TEST_STAMP := $(VENV)/.installed-test
# What others offer, for comparison, in an environment of its own.
PEERS_VENV := .venv-peers
PEERS_STAMP := $(PEERS_VENV)/.installed

export PIP_CONSTRAINT := $(CURDIR)/constraints.txt

.PHONY: demo test test-fast test-long lint format bench docs pictures system-deps clean

demo: $(STAMP)
	$(BIN)/rookery train cartpole --run $(DEMO)
	$(BIN)/rookery eval $(DEMO) --episodes 100
	$(BIN)/rookery plot $(DEMO)
	$(BIN)/rookery record $(DEMO) --out $(DEMO)/demo.mp4 --max-steps 300

test: $(TEST_STAMP) lint
	$(BIN)/python -m pytest -m "not long" -n 2

test-fast: $(TEST_STAMP)
	$(BIN)/python -m pytest -m "not slow and not long" -n 2

test-long: $(TEST_STAMP)
	$(BIN)/python -m pytest -n 2

lint: $(TEST_STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(TEST_STAMP)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(STAMP) $(PEERS_STAMP)
	$(BIN)/python benchmarks/run.py

# The documentation as a site in build/site; a broken link is an error.
docs: $(TEST_STAMP)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict
	@echo "build/site/index.html"

# The pictures of the documentation, made anew by real runs.
pictures: $(STAMP)
	for script in live_view curves agents; do $(BIN)/python docs/make/$$script.py || exit 1; done

# Debian packages that some tests need; none yet.
system-deps:
	@true

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "Rookery needs Python 3.11 or newer; set PYTHON=/path/to/python3.11"; exit 1; }
	$(PYTHON) -m venv $(VENV)

$(STAMP): pyproject.toml constraints.txt | $(VENV)/bin/python
	$(PIP) install -e ".[$(DEMO_EXTRAS)]"
	@touch $@

$(TEST_STAMP): pyproject.toml constraints.txt | $(VENV)/bin/python
	$(PIP) install -e ".[$(TEST_EXTRAS)]"
	@touch $(STAMP) $@

$(PEERS_STAMP): benchmarks/peers.txt
	$(PYTHON) -m venv $(PEERS_VENV)
	PIP_CONSTRAINT= $(PEERS_VENV)/bin/python -m pip --disable-pip-version-check -q install -r benchmarks/peers.txt
	@touch $@

clean:
	rm -rf $(VENV) $(PEERS_VENV) .mypy_cache .ruff_cache .pytest_cache build *.egg-info
