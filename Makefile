# The commands of this repository. `make` alone lists the targets.
.DEFAULT_GOAL := help
.PHONY: help structure vms-image venv runtimes bench check lint unit test prove proofs suites nights fleets perf fuzz audit constraints docs dist bundle clean clean-cache molecule scenarios rack rack-down rack-status
SHELL := /bin/bash
BIN := .venv/bin
# Ansible does not start in a locale that is not UTF-8 or was not generated. Every system has C.UTF-8.
export LC_ALL := $(if $(filter-out UTF-8,$(shell locale charmap 2>&1)),C.UTF-8,$(LC_ALL))
# rack.py needs only the standard library, so a machine without .venv can also start a rack.
RACK := $(firstword $(wildcard .venv/bin/python) python3) testrack/rack.py
# Arguments of pytest, for example: make unit PYTEST='-k judging'.
PYTEST ?=
# In an unpacked bundle, this file makes pip use the bundle's wheels.
-include .rackproof/bundle.env
# The scenarios of Molecule are the folders with a converge.yml.
SCENARIOS := $(patsubst molecule/%/converge.yml,%,$(wildcard molecule/*/converge.yml))
# Number of nodes: one for each scenario except debian-13, which makes its own node, and two for other tests.
SCENARIO_NODES := 8

help:  ## List the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

venv: .venv/.ready  ## Make .venv with pinned dependencies (Python 3.11 or newer)

.venv/.ready: pyproject.toml constraints.txt tools/make-venv
	@tools/make-venv .venv

runtimes: venv  ## Make the workloads' environments (PyTorch, MXNet, TensorFlow, staging) as bench.yml would
	@for name in torch mxnet tensorflow imagenet; do \
	  $(BIN)/python workloads/make_runtime.py --runtime workloads/$$name --folder .rackproof/runtimes/$$name >/dev/null || exit 1; \
	done

bench: venv  ## Benchmark this machine: train, probe, judge, report
	@$(BIN)/rackproof bench -l localhost $(ARGS)

# Two jobs at once, for two cores. The scenarios' playbooks take as long to lint as all others, so only `make lint` reads them.
check: venv  ## Lint and fast tests: some minutes
	@$(MAKE) --no-print-directory -j2 --output-sync=target lint unit LINT_LESS='--exclude molecule/'

lint: venv  ## ruff, bandit, shellcheck, import-linter, mypy --strict, ansible-lint (production), yamllint
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	git grep -lzE '^#!.*python' -- ':!*.py' ':!*.j2' ':!testrack' ':!tests' | \
		xargs -0 $(BIN)/bandit --quiet -ll --recursive src plugins workloads tools roles
	git grep -lzE '^#!.*[/ ](ba|da)?sh( |$$)' -- ':!*.py' ':!*.j2' ':!*.in' | xargs -0 $(BIN)/shellcheck --severity=warning
	$(BIN)/lint-imports --no-logo
	$(BIN)/mypy
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/yamllint --strict .
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/ansible-lint --offline -q $(LINT_LESS)

structure:  ## Print the folders of the package (rooms), the imports between them, and imports that run backwards
	@tools/structure

unit: venv  ## Fast tests
	$(BIN)/pytest -q --numprocesses=auto --suite fast $(PYTEST)

test:  ## The gate: lint, fast tests, the four jobs on a rack of two nodes; needs root (13 min on two cores)
	@began=$$(date +%s) && $(MAKE) --no-print-directory venv && PROOF_BEGAN=$$began $(BIN)/python -m tools.proof gate

prove: venv  ## Run the suites that are not green (SUITE=nights: one, FORCE=1: green ones, too); `make suites` lists them
	@$(BIN)/python -m tools.proof prove

proofs: venv  ## Run published run.sub on the rack (UPSTREAM=FOLDER of mlcommons/training_results_v5.1); needs root
	@UPSTREAM="$(abspath $(UPSTREAM))" SUITE=upstream FORCE=1 $(BIN)/python -m tools.proof prove

suites: venv  ## Show which suites are green for the current files, and what each suite proves
	@$(BIN)/python -m tools.proof suites

# Make the image from which the virtual machines boot. testrack/vms/vars.yml lists its contents.
vms-image: venv
	tools/apt-install qemu-system-x86 ovmf ipxe-qemu libvirt-daemon-system libvirt-daemon-driver-qemu \
	  libvirt-clients python3-libvirt dnsmasq-base ipxe nginx curl iproute2 openssh-client
	mkdir -p .rackproof && openssl rsa -in /usr/share/ovmf/PkKek-1-snakeoil.key -passin pass:snakeoil -out .rackproof/snakeoil.key
	rm -rf .rackproof/vms-overlay && testrack/vms/overlay .rackproof/vms-overlay
	PATH="$(CURDIR)/$(BIN):$$PATH" ansible-playbook playbooks/image.yml -e @testrack/vms/vars.yml

# Scenarios run at once, because they mostly wait. Each has its own node, and all share the controller.
scenarios: $(addprefix scenario-,$(SCENARIOS))

molecule: venv  ## Molecule's scenarios on the test rack (SCENARIO=upgrade: one); needs root
	@$(RACK) up --nodes $(SCENARIO_NODES)
	@$(MAKE) --no-print-directory $(addprefix scenario-,$(or $(SCENARIO),$(SCENARIOS)))

# Molecule keeps the inventory of all scenarios in one file, so each scenario here gets its own folder.
scenario-%: venv
	@mkdir -p .rackproof/molecule/$*
	PATH="$(CURDIR)/$(BIN):$$PATH" MOLECULE_EPHEMERAL_DIRECTORY="$(CURDIR)/.rackproof/molecule/$*" \
	  molecule test -s $* --destroy=never

nights: venv  ## Run 50 simulated nights with faults through the code of validate.yml, and renew docs/inside/fleet-model.md (2 min)
	$(BIN)/python tests/perf/prove_nights.py --docs docs/inside/fleet-model.md

fleets: venv  ## Judge simulated fleets with faults by the model of nights and by simpler rules (20 min)
	$(BIN)/python -m tests.fleet_simulator --judge tests.perf.judge_fleets:nights --tables --alarms fail --alarms fail,unproven,degraded $(FLEETS)

perf: venv  ## Benchmarks of Rackproof itself: parser speed, history, start-up
	$(BIN)/pytest tests/perf -o python_files='bench_*.py' --benchmark-disable-gc -s $(PYTEST)

fuzz: venv  ## A million inputs for every parser, 200,000 for every other reader, 10,000 damaged runs and certificates (2 h)
	$(BIN)/python tests/fuzz/million.py --inputs $(or $(INPUTS),1000000)
	$(BIN)/python tests/fuzz/structures.py --inputs $(or $(INPUTS),200000)
	$(BIN)/python tests/fuzz/monotonicity.py --mutations $(or $(MUTATIONS),10000)
	$(BIN)/python tests/fuzz/certificates.py --mutations $(or $(MUTATIONS),10000)

docs: venv  ## Renew the generated parts of docs/
	$(BIN)/python tools/make-docs

rack:  ## Start the test rack, needs root (NODES=4 for a small one, ALSO=b200,h100): 35 s, 20 MB a node
	@$(RACK) $(if $(RELEASE),--release $(RELEASE)) up $(if $(NODES),--nodes $(NODES)) $(if $(ALSO),--also $(ALSO))

rack-down:  ## Remove the test rack and its names from this machine: 10 s
	@$(RACK) down

rack-status:  ## Show the test rack's hosts, their faults, and which hosts answer: 1 s
	@$(RACK) status

# CI does not run this, because it needs the network, and pip-audit (in its own environment) on PATH.
audit:  ## Look up known vulnerabilities of the pinned versions; needs pip-audit and the network
	pip-audit --no-deps --disable-pip --requirement constraints.txt

constraints: venv  ## Renew constraints.txt and the runtimes' requirements: the newest versions that fit, with their hashes
	@tools/renew-constraints

dist: venv  ## Make dist/: the wheel, a tarball of the commit, and their digests
	@tools/make-dist dist

bundle: venv  ## Make dist/rackproof-*.tar for machines without network (RUNTIMES=torch MIRROR=FOLDER IMAGES=FOLDER)
	@$(BIN)/python tools/make-bundle dist --runtimes '$(RUNTIMES)' $(if $(MIRROR),--mirror '$(MIRROR)') $(if $(IMAGES),--images '$(IMAGES)')

clean:  ## Remove the files that make made, except results and staged data
	rm -rf .venv .mypy_cache .pytest_cache .ruff_cache .hypothesis .rackproof/runtimes

clean-cache:  ## Remove the files that racks of all checkouts share on this machine: root file systems, mirror, images
	@$(RACK) down --purge
