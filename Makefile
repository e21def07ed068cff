# Two commands for a newcomer: `make demo` and `make test`. Both set themselves up with nothing but python3 and make.

VENV   ?= .venv
BUDGET ?= 20m
JOBS   ?= $(shell n=$$(nproc 2>/dev/null || echo 2); [ $$n -gt 6 ] && n=6; echo $$((n + 2)))
BENCH_SIZE = $(if $(FULL),--rounds 3 --seconds 2 --scale 1 --whole-day,--rounds 3 --seconds 0.4 --scale 0.1)
PYTHON := $(shell for p in python3 python3.14 python3.13 python3.12 python3.11 python; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && break; done)
BIN    := $(VENV)/bin
GROUP   = $(BIN)/python -c 'import sys, tomllib; \
	groups = tomllib.load(open("pyproject.toml", "rb"))["dependency-groups"]; \
	expand = lambda n: [x for i in groups[n] for x in (expand(i["include-group"]) if isinstance(i, dict) else [i])]; \
	print("\n".join(expand(sys.argv[1])))'

.PHONY: demo test days timers mutation lint types docs bench crash dist clean help

help: ## show what there is
	@grep -E '^[a-z]+:.*##' Makefile | sed -E 's/:.*##/\t/'

demo: $(VENV)/.ready ## see it work, in under 20 seconds
	@$(BIN)/filewheel demo

test: $(VENV)/.ready-test ## run every test that this machine can run
	$(BIN)/python -m tests.suite -n $(JOBS) --dist loadfile --no-loadscope-reorder $(PYTEST)

days: $(VENV)/.ready-test ## the tests that can depend on the day, on six days unlike others and in zones from UTC-12 to UTC+14
	$(BIN)/python -m tests.days -n $(JOBS) --dist loadfile $(PYTEST)

timers: $(VENV)/.ready-test ## CPython's own tests of asyncio, on an event loop with a wheel
	$(BIN)/python -W ignore -m tests.timers.cpython

mutation: $(VENV)/.ready-mutation ## the changes of one folder that no test of it notices, into survivors.txt; MUTATION=schedules/cron.py
	$(BIN)/python -m tests.mutation $(MUTATION)

lint: $(VENV)/.ready-dev ## ruff
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.ready-dev ## mypy, strict; and the stub of the C module beside what was compiled
	$(BIN)/mypy
	@ls filewheel/native/_loops.*.so >/dev/null 2>&1 || echo "(the C module was not built: its stub is not checked)"
	@! ls filewheel/native/_loops.*.so >/dev/null 2>&1 || $(BIN)/stubtest --mypy-config-file pyproject.toml filewheel.native._loops

docs: $(VENV)/.ready-docs ## the site of the documentation, into site/; links and anchors are checked
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict -f .ci/site/mkdocs.yml

bench: $(VENV)/.ready-bench ## filewheel beside other stores, 20 to 30 minutes; FULL=1: hours; DOCS=1: writes docs/benchmarks.md
	@tests/bench/servers.sh
	@mkdir -p bench
	$(BIN)/python -m tests.bench --places ext4,xfs,plain --dir bench --json bench/bench.json --plots bench \
		--elsewhere one,batch-1000,sustained,fire $(BENCH_SIZE) $(if $(DOCS),--docs) $(BENCH)
	-$(BIN)/python -m tests.bench.timers --json bench/timers.json --plots bench

crash: $(VENV)/.ready-test ## try to break a wheel for BUDGET (20m): kills, power cuts, faults, flipped bits
	$(BIN)/python -m tests.crash --budget $(BUDGET) --json crash.json

dist: $(VENV)/.ready-dist ## build the source distribution, wheels for each Python on the PATH, and an SBOM, into dist/
	@rm -rf dist
	$(BIN)/python .ci/dist.py dist $(DIST)

$(VENV)/bin/python:
	@test -n "$(PYTHON)" || { echo "filewheel needs python3, 3.11 or later, on the PATH" >&2; exit 1; }
	@$(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); \
		echo "no venv: on Debian and Ubuntu, apt install python3-venv" >&2; exit 1; }

$(VENV)/.ready: pyproject.toml $(wildcard filewheel/native/*.c filewheel/native/*.h) | $(VENV)/bin/python
	@echo "setting up $(VENV) ..."
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -e .
	@touch $@

$(VENV)/.ready-test: $(VENV)/.ready
	@$(GROUP) test | $(BIN)/python -m pip install --quiet --disable-pip-version-check -r /dev/stdin
	@touch $@

$(VENV)/.ready-bench: $(VENV)/.ready
	@$(GROUP) bench | while read -r library; do \
		$(BIN)/python -m pip install --quiet --disable-pip-version-check "$$library" || \
			echo "(not installed, left out: $$library)" >&2; done
	@touch $@

$(VENV)/.ready-docs: $(VENV)/.ready
	@$(GROUP) docs | $(BIN)/python -m pip install --quiet --disable-pip-version-check -r /dev/stdin
	@touch $@

$(VENV)/.ready-dev: $(VENV)/.ready
	@$(GROUP) dev | $(BIN)/python -m pip install --quiet --disable-pip-version-check -r /dev/stdin
	@touch $@

$(VENV)/.ready-mutation: $(VENV)/.ready
	@$(GROUP) mutation | $(BIN)/python -m pip install --quiet --disable-pip-version-check -r /dev/stdin
	@touch $@

$(VENV)/.ready-dist: $(VENV)/bin/python pyproject.toml
	@$(GROUP) dist | $(BIN)/python -m pip install --quiet --disable-pip-version-check -r /dev/stdin
	@touch $@

clean: ## remove everything that was made here
	rm -f filewheel/native/_loops*.so
	rm -rf $(VENV) build dist site *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
