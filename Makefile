# make demo   set everything up and learn CartPole
# make test   set everything up and run the tests

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# $(call INSTALL,what,environment,variables): says what comes; pip's progress is shown on a terminal.
INSTALL = @echo "installing $(1) into $(2); this usually takes a few minutes"; \
  quiet=-q; if [ -t 1 ]; then quiet=; fi; \
  $(3) $(2)/bin/python -m pip --disable-pip-version-check $$quiet install
# Extras that `make test` needs, and the ones that `make demo` brings.
DEMO_EXTRAS := mpi,grpc
TEST_EXTRAS := dev,mpi,grpc,ray,envpool,minatar,minigrid,mario,export,wandb,mlflow,docs
# Mario's emulator is compiled when it is installed; so compiled, as one, it makes 1.6 times the steps.
AS_ONE := -O3 -flto -fno-semantic-interposition --param inline-unit-growth=500 \
  --param large-function-growth=2000 --param max-inline-insns-single=2000 --param max-inline-insns-auto=500
FASTER := CXXFLAGS="$(AS_ONE)" LDFLAGS="$(AS_ONE)"
STAMP := $(VENV)/.installed
DEMO := runs/demo-$(shell date +%Y%m%d-%H%M%S)
TEST_STAMP := $(VENV)/.installed-test
# What others offer, for comparison, in environments of their own: .venv-NAME of benchmarks/NAME.txt.
PEERS_STAMP := .venv-peers/.installed
ALL_PEERS_STAMPS := $(PEERS_STAMP) .venv-peers-sf/.installed .venv-peers-rllib/.installed
# Flags of benchmarks/atari.py, such as "--secs 60 --repeats 3 --only Rookery".
BENCH_FLAGS ?=

export PIP_CONSTRAINT := $(CURDIR)/constraints.txt

.PHONY: demo test test-fast test-long lint format bench bench-atari docs pictures proto system-deps clean

demo: $(STAMP)
	$(BIN)/rookery train cartpole --run $(DEMO)
	$(BIN)/rookery eval $(DEMO) --episodes 100
	$(BIN)/rookery plot $(DEMO)
	$(BIN)/rookery record $(DEMO) --out $(DEMO)/demo.mp4 --max-steps 300

# What fails beside others on a busy machine is run once more, alone; its first failure stays on the screen.
test: $(TEST_STAMP) lint
	$(BIN)/python -m pytest -m "not long" -n 3 --dist worksteal --durations 25 || { [ $$? = 1 ] && \
	  echo "--- once more, alone: what failed above ---" && \
	  $(BIN)/python -m pytest -m "not long" --last-failed --last-failed-no-failures none; }

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

# A peer that cannot be installed is told in the table; the others are measured.
bench-atari: $(STAMP)
	-$(MAKE) --keep-going $(ALL_PEERS_STAMPS)
	$(BIN)/python benchmarks/atari.py $(BENCH_FLAGS)

# The documentation as a site in build/site; a broken link is an error.
docs: $(TEST_STAMP)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict
	@echo "build/site/index.html"

# The pictures of the documentation, made anew by real runs.
pictures: $(STAMP)
	for script in live_view curves agents; do $(BIN)/python docs/make/$$script.py || exit 1; done

# The messages of the network link as Python, made anew from their specification.
proto: $(TEST_STAMP)
	$(BIN)/python -m grpc_tools.protoc -I. --python_out=. --pyi_out=. rookery/carriers/wire.proto

# Debian packages that some tests need: a real Slurm, and networks of their own.
SYSTEM_PACKAGES := slurm-wlm munge iproute2

system-deps:
	@missing=$$(for package in $(SYSTEM_PACKAGES); do \
	  dpkg-query -Wf '$${Status}' $$package 2>/dev/null | grep -q ' installed$$' || echo $$package; done); \
	[ -n "$$missing" ] || exit 0; \
	[ "$$(id -u)" = 0 ] && sudo= || sudo=sudo; \
	{ $$sudo apt-get update -qq && $$sudo env DEBIAN_FRONTEND=noninteractive \
	    apt-get install -y -qq --no-install-recommends $$missing >/dev/null; } || \
	  { echo "make system-deps could not use apt-get (as root, or with sudo); install by hand:" $$missing; exit 1; }

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "Rookery needs Python 3.11 or newer; set PYTHON=/path/to/python3.11"; exit 1; }
	$(PYTHON) -m venv $(VENV)

$(STAMP): pyproject.toml constraints.txt | $(VENV)/bin/python
	$(call INSTALL,Rookery and what it needs (PyTorch and others),$(VENV)) -e ".[$(DEMO_EXTRAS)]"
	@touch $@

$(TEST_STAMP): pyproject.toml constraints.txt | $(VENV)/bin/python
	$(call INSTALL,Rookery with all it is tested with,$(VENV),$(FASTER)) -e ".[$(TEST_EXTRAS)]"
	@touch $(STAMP) $@

.venv-%/.installed: benchmarks/%.txt
	$(PYTHON) -m venv .venv-$*
	$(call INSTALL,what $< lists,.venv-$*,PIP_CONSTRAINT=) -r $<
	@touch $@

clean:
	rm -rf $(VENV) $(dir $(ALL_PEERS_STAMPS)) .mypy_cache .ruff_cache .pytest_cache build *.egg-info
