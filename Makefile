# `make reproduce` and `make test` set up everything first, from nothing. Second runs reuse what is there.
#   NAME=smollm2_135m   the reproduction, a folder under reproductions/      SMOKE=1 MINI=1   its small version, its miniature
#   BACKEND=cpu|cuda    which lock under requirements/                       PYTHON=...       the interpreter to build with
#   CLUSTER=slurm|kubernetes|storage   adds Snakemake's plugins for it: docs/clusters.md

NAME ?= smollm2_135m
BACKEND ?= cpu
PYTHON ?=
CLUSTER ?=
SMOKE ?=
MINI ?=
ARGS ?=
# Two files of tests at a time, each on one core: most of a test's time is one process that starts.
TEST = OMP_NUM_THREADS=1 $(RUN) -m pytest -n 2 --dist loadfile
VENV := $(if $(filter cpu,$(BACKEND)),.venv,.venv-$(BACKEND))
SCALE := $(if $(filter-out 0,$(SMOKE)),smoke,$(if $(filter-out 0,$(MINI)),mini,full))
TARGET := reproduce_$(NAME)$(filter-out _full,_$(SCALE))
RUN := $(VENV)/bin/python
LOCKS := $(addprefix requirements/,install.sh $(BACKEND).lock torch-cpu.txt torchvision.txt uv.txt verifier.txt)
CLUSTERS := slurm kubernetes storage
ifneq ($(filter-out $(CLUSTERS),$(CLUSTER)),)
$(error CLUSTER=$(CLUSTER): no such cluster. Fix: use one of $(CLUSTERS))
endif
export BACKEND
export PATH := $(CURDIR)/$(VENV)/bin:$(PATH)

.PHONY: help setup doctor plan reproduce smoke nightly test test-slow test-all test-kills test-slurm test-kubernetes test-storage lint lock
.NOTPARALLEL:

help:
	@echo 'make reproduce [NAME=... SMOKE=1 MINI=1 BACKEND=cuda]   set up, then train, serve, measure and report one verifier'
	@echo 'make plan [NAME=...]                             what it takes, step by step'
	@echo 'make smoke                                       the same in small'
	@echo 'make nightly                                     the miniature of every family, one after another'
	@echo 'make test | test-slow | test-all [ARGS=...]      set up, then the tests'
	@echo 'make test-slurm | test-kubernetes | test-storage profiles of clusters and shared results, on this machine'
	@echo 'make test-kills                                  a real run in small, killed 20 times on its way'
	@echo 'make setup | doctor | lint | lock                environment, its check, static checks, new locks'

setup: $(VENV)/.ready $(CLUSTER:%=$(VENV)/.ready-%)

$(VENV)/.ready: $(LOCKS)
	@sh requirements/install.sh $(BACKEND) $(VENV) $(PYTHON)
	@touch $@

$(CLUSTERS:%=$(VENV)/.ready-%): $(VENV)/.ready-%: requirements/%.txt $(VENV)/.ready
	@$(RUN) -m uv pip install --quiet --python $(RUN) --no-deps --require-hashes -r $<
	@touch $@

# A lock that is named wrongly is a mistake of the caller: install.sh says which names there are.
$(LOCKS):

doctor: setup
	@$(RUN) -m harness.doctor $(NAME) --scale $(SCALE)

plan: setup
	@$(RUN) -m harness.plan $(NAME) --scale $(SCALE)

# A run that was killed leaves its lock; it is let go of only when no live run holds it.
reproduce: setup
	@$(RUN) -m harness.runlock
	@$(RUN) -m harness.preflight $(NAME) --scale $(SCALE)
	@$(RUN) -m harness.doctor $(NAME) --scale $(SCALE)
	@echo '[run] snakemake --cores all $(TARGET)'
	@$(RUN) -m snakemake --cores all $(TARGET) $(ARGS)

smoke:
	@$(MAKE) --no-print-directory reproduce SMOKE=1

nightly: setup
	@$(RUN) -m harness.runlock
	$(RUN) -m snakemake --cores all --keep-going nightly $(ARGS)

test: setup
	$(TEST) $(ARGS)

test-slow: setup
	$(TEST) -m slow $(ARGS)

test-all: setup
	$(TEST) -m 'not endurance and not cluster' $(ARGS)

# Runs in small, each killed 20 times: around a training, then with servers. Takes many minutes.
test-kills: setup
	$(RUN) -m pytest -m endurance tests/dag/test_kills.py -s $(ARGS)

# With SLURM (apt-get install slurm-wlm munge), which is started on this machine alone and stopped at the end.
test-slurm: setup $(VENV)/.ready-slurm
	$(RUN) -m pytest -m cluster tests/clusters/test_slurm.py $(ARGS)

test-kubernetes: setup $(VENV)/.ready-kubernetes
	$(RUN) -m pytest -m cluster tests/clusters/test_kubernetes.py $(ARGS)

test-storage: setup $(VENV)/.ready-storage
	$(RUN) -m pytest -m cluster tests/clusters/test_storage.py $(ARGS)

lint: setup
	$(RUN) -m ruff check .
	$(RUN) -m ruff format --check .
	$(RUN) -m mypy
	$(RUN) -m snakefmt --check Snakefile harness/rules

# New versions within what the .in files ask for.
lock: setup
	cd requirements && ../$(RUN) -m uv pip compile --quiet --upgrade --generate-hashes --python-version 3.11 \
		--override overrides.txt cpu.in -o cpu.lock
	cd requirements && ../$(RUN) -m uv pip compile --quiet --upgrade --generate-hashes --python-version 3.11 \
		--python-platform x86_64-unknown-linux-gnu cuda.in -o cuda.lock
	cd requirements && for cluster in $(CLUSTERS); do ../$(RUN) -m uv pip compile --quiet --generate-hashes --no-deps \
		--python-version 3.11 $$cluster.in -o $$cluster.txt; done
