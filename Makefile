# Nightsweep's commands: `make demo`, `make figures` and `make test`. Each makes the environment in .venv first.
PYTHON ?= python3
TORCH := torch==2.13.0
DEEPSPEED := deepspeed==0.19.8
DEEPSPEED_HASH := sha256:9e491abd0827ea5c389dd702e15e11e13d83d904bac4a20d6c2a4cb37207a9af
BIN := .venv/bin
PIP := $(BIN)/python -m pip install --disable-pip-version-check --quiet --no-compile

# Published sets to draw together, and the folder of what is drawn.
DATA := $(wildcard data/h200-*)
NAMES = $(notdir $(patsubst %/,%,$(DATA)))
FIGURES = figures/$(if $(word 2,$(NAMES)),$(firstword $(subst -, ,$(NAMES))),$(NAMES))

.PHONY: demo figures contact-sheet pictures site test tests lint lock clean bench bench-scale fuzz

demo: .venv/ready
	PATH="$(CURDIR)/$(BIN):$$PATH" snakemake --profile profiles/local --configfile config/demo.yaml

# Every figure and the report of published data, in figures/: no GPU, no training.
figures: .venv/ready
	$(BIN)/nightsweep figures $(DATA) --out $(FIGURES)

# The figures to print, in both widths, in colour and in grey, on one picture.
contact-sheet: figures
	$(BIN)/python -m nightsweep.analysis.tools.contact_sheet $(FIGURES) --out figures/contact-sheet.png

# The pictures of README.md.
pictures: figures
	chromium --headless --no-sandbox --hide-scrollbars --window-size=1280,980 --screenshot=docs/pictures/report.png \
	  file://$(CURDIR)/$(FIGURES)/report.html
	cp $(FIGURES)/causes.png $(FIGURES)/methods.png docs/pictures

# The documentation as pages that open without a server, in site/; their tools are in an environment apart.
site: .venv-site/ready
	NO_MKDOCS_2_WARNING=1 .venv-site/bin/mkdocs build --quiet

.venv-site/ready: envs/docs.lock
	$(PYTHON) -m venv .venv-site
	.venv-site/bin/python -m pip install --disable-pip-version-check --quiet --require-hashes -r envs/docs.lock
	touch $@

# The type check takes one core most of a minute, so the tests begin beside it.
test: .venv/ready
	sh tests/install.sh
	$(MAKE) --no-print-directory --jobs 2 lint tests

# Three workers for two cores: tests on Slurm wait for a part of their time, and with more their ranks miss their limits.
# Bytecode is kept even if the environment asks for none: else each worker rewrites all assertions anew, and each process
# compiles what it imports.
tests: .venv/ready
	PYTHONDONTWRITEBYTECODE= PATH="$(CURDIR)/$(BIN):$$PATH" python -m pytest -n 3 --dist loadfile --no-loadscope-reorder --durations=5

lint: .venv/ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/codespell
	$(BIN)/lint-imports
	$(BIN)/snakefmt --check Snakefile workflow
	PATH="$(CURDIR)/$(BIN):$$PATH" snakemake --configfile config/demo.yaml --lint
	$(BIN)/mypy

# torch first and pinned, so that this pin decides which build of it comes; there are several, so it and what it alone needs
# have no hashes. DeepSpeed is source only: its set-up imports torch, so it is built without isolation, and without its
# operators (they would need a compiler here). Bytecode comes last, made on all cores, ours too, for not everyone who starts
# it may write here; packages bring files that this Python cannot compile, and nothing imports those.
.venv/ready: envs/hashes.lock pyproject.toml Makefile
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Nightsweep needs Python 3.11 or later")'
	$(PYTHON) -m venv .venv
	$(PIP) $(TORCH)
	$(PIP) --require-hashes -r envs/hashes.lock
	echo '$(DEEPSPEED) --hash=$(DEEPSPEED_HASH)' | DS_BUILD_OPS=0 $(PIP) --no-build-isolation --no-deps -r /dev/stdin
	$(PIP) --no-build-isolation --no-deps -e .
	$(BIN)/python -m compileall -qq -j 0 .venv/lib jobs analysis workflow || true
	touch $@

# How fast traces become tables, beside nsys where there is one: see tests/bench/speed.py.
bench: .venv/ready
	$(BIN)/python -m tests.bench.speed $(BENCH)

# What a sweep of many points costs before and after they are measured: see tests/bench/scale.py.
# SCALE="100 1000 10000" takes longer.
bench-scale: .venv/ready
	$(BIN)/python -m tests.bench.scale $(SCALE)

# Faulty traces and random databases through every reader: see tests/fuzz/__main__.py. FUZZ="--traces 5000" takes longer.
fuzz: .venv/ready
	$(BIN)/python -m tests.fuzz $(FUZZ)

# One lock for every Python from 3.11 on, with the hashes of its files and without (for conda, whose pip would want one of
# torch, too); torch is overridden away, because it is installed before (above).
lock: .venv/ready
	$(PIP) uv
	echo "torch ; sys_platform == 'never'" > .venv/override.txt
	$(BIN)/uv pip compile -q --universal --python-version 3.11 --override .venv/override.txt --no-header --no-annotate \
	  --generate-hashes envs/requirements.in -o envs/hashes.lock
	sed -i '/^      - /d' envs/nightsweep.yaml
	echo '      - $(TORCH)' >> envs/nightsweep.yaml
	sed -n 's/^\([^ ][^\\]*\) \\$$/      - \1/p' envs/hashes.lock >> envs/nightsweep.yaml
	$(BIN)/uv pip compile -q --universal --python-version 3.11 --no-header --no-annotate \
	  --generate-hashes envs/docs.in -o envs/docs.lock

clean:
	rm -rf .venv .venv-site .snakemake results figures site
