# How smope is set up, run and checked. `make` alone lists the targets.

VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
TIMM := .venv-timm
# The first of these that is 3.10 or newer makes the environment; `make setup PYTHON=/path/to/python3` asks for one.
PYTHONS := $(or $(PYTHON),python3 python3.13 python3.12 python3.11 python3.10 python)
# pip draws its progress bars on a terminal, and elsewhere says only what goes wrong.
PIP := $(BIN)/python -m pip --no-input --disable-pip-version-check $$(test -t 2 || echo -qq)

# What the lock holds besides the core: all that the tests touch.
EXTRAS := plot hub serve export onnx ray tune train live heic docs dev

# Tests that attend: they also run without the fast path.
ATTENDING := tests/test_attention.py tests/test_prompts.py tests/backbones/test_vit.py tests/backbones/test_from_timm.py tests/methods

# As many test processes as cores; the checks of one contract case stay together.
PARALLEL ?= -n auto --dist loadgroup

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help setup demo test test-browser test-distributed test-timm bench results soak audit docs lint format lock clean

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-16s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: $(READY) ## Make .venv from the lock, and install smope in it
	@echo "setup: ready; try $(BIN)/smope --help"

demo: $(READY) ## Fetch the default backbone and Emoji-R, teach a short stream, show what it learnt and what it forgot
	$(BIN)/smope demo

# The whole suite comes last, so that its count is the line one reads.
test: $(READY) ## Run the tests; those of attention also without the fast paths
	SMOPE_FAST_ATTENTION=0 SMOPE_FAST_LINEAR=0 $(BIN)/pytest -q $(PARALLEL) $(ATTENDING) -k "not contract or batch_neighbours"
	$(BIN)/pytest $(PARALLEL)

test-browser: $(READY) ## Try the page in a real browser (Debian's chromium; without one it says so)
	$(BIN)/pytest -q -m browser tests/serve

# Two files, two at a time: each test starts processes of its own, and mostly waits for them.
test-distributed: $(READY) ## Run the tests that start several processes: workers, Ray, two that train together (under three minutes)
	$(BIN)/pytest -m distributed tests/distributed -n 2 --dist loadfile --durations=5

test-timm: $(TIMM)/.ready ## Compare our ViT with timm itself, in .venv-timm, made at the first call (5.5 GB)
	$(TIMM)/bin/pytest -rP -m timm tests/backbones/test_timm.py

bench: $(READY) ## Measure what is claimed of speed and memory, turn by turn (about 15 minutes)
	$(BIN)/smope bench attention training prediction heads tasks --out results/speed/vit-b16-224.json
	$(BIN)/smope bench tap memory data --out results/speed/vit-b16-224-rest.json
	$(BIN)/smope bench products --rounds 8 --out results/speed/products-vit-b16-224.json
	$(BIN)/smope bench products --rounds 12 --backbone dinov2-s14-reg-mri --image-size 84 --batch-size 32 --out results/speed/products-vit-s14-84.json
	$(BIN)/smope bench attention training prediction heads task data --backbone dinov2-s14-reg-mri --image-size 84 --batch-size 32 --out results/speed/vit-s14-84.json

results: $(READY) ## List the records the project promises, and run the missing ones
	$(BIN)/smope results

docs: $(READY) ## Build the documentation into site/, strictly; read it with a browser
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict
	@echo "docs: open site/index.html; with search: $(BIN)/python -m http.server -d site"

# atheris is no part of the lock: it is brought if it can be had, and missed with a word if not.
soak: $(READY) ## Try to break it: kills, bad disks, bent files, memory, load, the server's interface; one table (bounded; some 20 minutes)
	@test -d $(VENV)/fuzz || $(PIP) install --target $(VENV)/fuzz atheris || echo "soak: atheris cannot be had here; its rows will say so"
	PYTHONPATH=tools $(BIN)/python -m soak $(SOAK_ARGS)

audit: $(READY) ## Ask which locked packages have known vulnerabilities, where that can be asked
	@test -x $(VENV)/audit/bin/pip-audit || { $(BIN)/python -m venv --clear $(VENV)/audit && $(VENV)/audit/bin/python -m pip install -qq --disable-pip-version-check pip-audit==2.10.1; }
	@$(BIN)/python tools/audit.py $(VENV)/audit/bin/pip-audit requirements/lock.txt requirements/torch.txt

lint: $(READY) ## Check format, lint, types and the direction of imports
	$(BIN)/ruff format --check
	$(BIN)/ruff check
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo

format: $(READY) ## Format the code, and mend what ruff can mend
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

# Pins are kept where they can be: `make lock LOCK_ARGS=--upgrade` raises them. Nothing younger than a week gets in. torch stays out, and
# what only torch needs with it: requirements/torch.txt is installed first, so that each machine gets the build that suits it.
lock: $(VENV)/.made ## Resolve requirements/lock.txt anew from pyproject.toml
	$(BIN)/python -m venv $(VENV)/uv
	$(VENV)/uv/bin/python -m pip install -q --disable-pip-version-check uv==0.13.7
	$(VENV)/uv/bin/uv --no-config pip compile pyproject.toml $(EXTRAS:%=--extra %) --excludes requirements/torch.txt \
		--universal --python-version 3.10 --generate-hashes --no-emit-index-url --exclude-newer "7 days" \
		--custom-compile-command "make lock" --quiet --output-file requirements/lock.txt $(LOCK_ARGS)

clean: ## Remove caches and build output (.venv and runs/ stay)
	rm -rf dist build site .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
	find src tests -name __pycache__ -type d -prune -exec rm -rf {} +

# Each step leaves a stamp, and is taken again only when its own file has changed.
$(VENV)/.made:
	@found=; for python in $(PYTHONS); do \
		if $$python -c 'import sys; sys.exit(sys.version_info < (3, 10))' 2>/dev/null; then found=$$python; break; fi; \
	done; \
	if [ -z "$$found" ]; then \
		echo "setup: no Python 3.10 or newer (tried: $(PYTHONS)). Install one, or name it: make setup PYTHON=/path/to/python3" >&2; exit 1; \
	fi; \
	echo "setup 1/4: $(VENV), $$($$found --version)"; \
	$$found -m venv --clear $(VENV) || { \
		echo "setup: $$found cannot make an environment. On Debian and Ubuntu install python3-venv; else name another PYTHON=." >&2; exit 1; }
	@touch $@

$(VENV)/.torch: requirements/torch.txt $(VENV)/.made
	@echo "setup 2/4: $$(cat $<) (the large one; minutes on a slow line)"
	@$(PIP) install -r $< || { echo "setup: torch was not installed (see above). Try again, or name another PYTHON=: its wheels are for some Pythons only." >&2; exit 1; }
	@touch $@

$(VENV)/.locked: requirements/lock.txt $(VENV)/.torch
	@echo "setup 3/4: what $< pins"
	@$(PIP) install --require-hashes -r $< || { echo "setup: the locked packages were not installed (see above). Run make setup again." >&2; exit 1; }
	@touch $@

$(READY): pyproject.toml $(VENV)/.locked
	@echo "setup 4/4: smope itself"
	@$(PIP) install --no-deps --no-build-isolation -e . || { echo "setup: smope was not installed (see above)." >&2; exit 1; }
	@touch $@

# timm wants torchvision, and torchvision a torch of its own kind: no place for them beside ours. smope itself is read from src.
$(TIMM)/.ready: requirements/lock.txt requirements/timm.txt $(VENV)/.made
	@echo "test-timm: $(TIMM), with timm, torchvision and the torch they need (minutes)"
	@$(BIN)/python -m venv --clear $(TIMM)
	@$(subst $(BIN),$(TIMM)/bin,$(PIP)) install -r requirements/timm.txt
	@$(subst $(BIN),$(TIMM)/bin,$(PIP)) install --require-hashes -r requirements/lock.txt
	@touch $@
