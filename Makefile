# cirkit. Each target sets up what it needs; nothing has to be activated. `make help` lists them.
#
# An environment of your own (conda, another venv) is used as it is with  make study PY=python

VENV = .venv
PYTHON =
# Runs at once, a core and about 1.5 GB of memory each; more with CORES=16.
CORES = $(shell n=$$(getconf _NPROCESSORS_ONLN 2>/dev/null || echo 2); [ "$$n" -gt 4 ] && echo 4 || echo $$n)

# Settings of study and grid; named here so that a misspelt one is an error and not the default run.
SETTINGS = METHODS RATES KINDS SEEDS DATASET DATA_ROOT BACKBONE DEVICE LR GATE THREADS
KNOWN = PY VENV PYTHON CORES PROFILE ARGS $(SETTINGS)
given = $(if $(findstring command line,$(origin $1)),$1)
UNKNOWN := $(filter-out $(KNOWN) MAKEFLAGS,$(foreach v,$(.VARIABLES),$(call given,$v)))
ifneq ($(strip $(UNKNOWN)),)
$(error there is no setting $(strip $(UNKNOWN)); the settings are: $(KNOWN))
endif

ifneq ($(call given,PY),)
RUN = $(PY)
READY = own-python
else
RUN = $(VENV)/bin/python
READY = $(VENV)/cirkit.lock
unexport PYTHONPATH PYTHONHOME
endif

# the kernel `python3` is then the environment's own, whatever the user has elsewhere
export JUPYTER_PREFER_ENV_PATH = 1
unexport JUPYTER_PATH

ifneq ($(call given,CORES),)
ifeq ($(shell [ "$(CORES)" -ge 1 ] 2>/dev/null && echo yes),)
$(error CORES: '$(CORES)' is not a number of runs at once, 1 or more)
endif
endif
ifneq ($(PROFILE),)
ifeq ($(wildcard profiles/$(PROFILE)/config.yaml $(PROFILE)/config.yaml),)
$(error PROFILE: there is no folder profiles/$(PROFILE) with a config.yaml; there are: $(notdir $(wildcard profiles/*)))
endif
endif

RESULTS = $(if $(CIRKIT_RESULTS),$(CIRKIT_RESULTS),results)
quoted = '$(subst ','\'',$1)'
CHOSEN = $(strip $(foreach v,$(SETTINGS),$(if $(call given,$v),$v=$(call quoted,$($v)))))
# a folder of settings for Snakemake, one of profiles/ or your own
PROFILE =
HOW = $(if $(PROFILE),--profile $(call quoted,$(firstword $(wildcard profiles/$(PROFILE)) $(PROFILE))) \
	$(if $(call given,CORES),--cores $(CORES)),--cores $(CORES) \
	--rerun-triggers mtime params --rerun-incomplete --nolock --quiet host progress rules reason)
SNAKEMAKE = $(RUN) -m snakemake $@ $(HOW) $(if $(CHOSEN),--config $(CHOSEN))

ALL_DONE = @echo 'All done. In $(RESULTS)/study: summary.md (the table), figures/index.html, notebooks/ (executed).'

.DEFAULT_GOAL := help
.PHONY: help install own-python study search grid committed book test check parity bench pretrain small lab reference figures lock clean distclean
.SUFFIXES:

help:
	@echo 'make study      set up, draw the world, run the notebooks, write the tables (results/study/)'
	@echo 'make test       set up, run the tests'
	@echo 'make check      the slower checks: style, slow tests, every command of the README'
	@echo 'make grid       more runs:  make grid METHODS="infonce" RATES="0 0.5" KINDS="shuffle" SEEDS="0 1"'
	@echo '                also DATASET, DATA_ROOT, BACKBONE, DEVICE, LR, GATE; CORES (runs at once; at most 4 by default), THREADS (1)'
	@echo '                PROFILE=slurm on a cluster, PROFILE=local for all cores of a machine (profiles/)'
	@echo 'make committed  every run of the committed tables (hours; goes on where it was interrupted)'
	@echo 'make parity     the Q-Former and the towers of salesforce-lavis against those of this package: largest differences'
	@echo 'make bench      time and memory against other ways of computing the same (some minutes);  ARGS=--reference keeps them'
	@echo 'make book       the executed notebooks and the pages as a site for reading offline (results/book/index.html)'
	@echo 'make lab        JupyterLab with the notebooks'
	@echo 'make pretrain   make the stage-1 checkpoint of the tiny backbone again'
	@echo 'make small      make the backbone small, of pretrained parts, for BACKBONE=small (about an hour)'
	@echo 'make install    only the environment (.venv);  PYTHON=... names the interpreter to make it from'
	@echo 'make clean      remove what study and grid wrote;  make distclean  also the environment and caches'
	@echo 'make search     the search for learning rates, on validation;  ARGS=changes, regime or budgets: other tables'
	@echo 'For maintainers: make lock, make figures, make reference'
	@echo 'With an environment of your own:  make study PY=python  uses that interpreter and installs nothing'

install: $(READY)
	@echo "The environment is ready."

# A folder that was moved or copied carries an environment that still points to the old place.
ifneq ($(shell cat $(VENV)/cirkit.folder 2>/dev/null),$(shell pwd -P))
.PHONY: $(VENV)/cirkit.lock
endif
$(VENV)/cirkit.lock: requirements.txt pyproject.toml .ci/install
	@sh .ci/install $(VENV) $(PYTHON)

own-python:
	@$(RUN) .ci/ready.py

study: $(READY)
	@$(SNAKEMAKE) $(ARGS)
	$(ALL_DONE)

grid: $(READY)
	@$(SNAKEMAKE) --keep-going $(ARGS)
	$(ALL_DONE)

# a line is settings as they are typed for grid
committed: $(READY)
	@grep -v '^#' results/reference/grid.txt | while read -r line; do \
		echo "make grid $$line"; eval "$(MAKE) --no-print-directory grid $$line" < /dev/null || exit 1; done

book: $(READY)
	@$(RUN) .ci/book.py

# a file's tests stay together: they share what the first of them made
test: $(READY)
	@$(RUN) -m pytest -n 2 --dist loadfile $(ARGS)

check: $(READY)
	$(RUN) -m ruff check .
	$(RUN) -m pytest -m slow $(ARGS)
	$(RUN) .ci/readme.py --all
	$(RUN) .ci/lab_check.py
	$(RUN) .ci/book.py && $(RUN) .ci/book_check.py

parity: $(READY)
	@RUN=$(RUN) bash .ci/oldest -m cirkit.parity

bench: $(READY)
	@OMP_NUM_THREADS=1 $(RUN) -m cirkit.bench $(ARGS)

pretrain: $(READY)
	@$(RUN) -m cirkit.pretrain $(ARGS)

small: $(READY)
	@$(RUN) -m cirkit.pretrain_small $(ARGS)

lab: $(READY)
	@$(RUN) -m jupyterlab --ServerApp.root_dir=. --LabApp.default_url=/lab/tree/notebooks $(ARGS)

# All notebooks once more, with runs loaded where they are there; figures/ and the record are copies of what they wrote.
figures: $(READY)
	@$(subst -m snakemake figures,-m snakemake study,$(SNAKEMAKE)) --forcerun task_and_data noise_injection train look report

reference: figures
	@$(RUN) -m cirkit.publish $(RESULTS)/study --reference

search: $(READY)
	@$(RUN) -m cirkit.search $(ARGS)

lock: $(READY)
	@$(RUN) .ci/lock.py

clean:
	rm -rf $(RESULTS)/study $(RESULTS)/runs .snakemake .pytest_cache .ruff_cache .hypothesis
	find cirkit tests -name __pycache__ -type d -prune -exec rm -rf {} +

distclean: clean
	rm -rf .venv .cache *.egg-info build dist
