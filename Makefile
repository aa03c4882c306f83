# SPDX-License-Identifier: Apache-2.0
# The two commands that matter: `make demo` and `make test`. Both set themselves up.
PYTHON ?= python3
SOURCES = daemon tests bench instrument
RUN = .venv/bin
# Tests that need no quiet machine, so many at a time; then the others, alone (tests/parts.py). Most of the first wait
# for programs and daemons: `make test WORKERS=3` takes less time where the cores are not busy with two.
# Modules are given out in this order: those that take longest first.
WORKERS ?= 2
BESIDE = -n $(WORKERS) --dist loadfile --no-loadscope-reorder -m "not quiet and not slow"
UNIT = tests/unit tests/bpf_logic
REAL = tests/e2e tests/kernel tests/system

.PHONY: help demo test lint unit kernel e2e system kernels bench proto workloads bytecode clean
help: ## this list
	@grep -hE '^[a-z0-9]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 12

.venv/.run: pyproject.toml scripts/setup.sh
	@PYTHON=$(PYTHON) scripts/setup.sh run

.venv/.dev: pyproject.toml scripts/setup.sh
	@PYTHON=$(PYTHON) scripts/setup.sh dev
	@touch .venv/.run .venv/.dev

demo: .venv/.run ## build an OpenMP example, profile it, print the report, leave demo.pb.gz
	@mkdir -p build
	gcc -O2 -g -fopenmp examples/heat.c -o build/heat
	$(RUN)/parprof record -o demo.pb.gz -- build/heat
	@echo
	@echo "The profile is demo.pb.gz. Next: .venv/bin/parprof report demo.pb.gz --view flat"

test: .venv/.dev workloads bytecode ## everything: lint, types, unit, BPF logic, kernel, end to end
	$(RUN)/ruff check $(SOURCES)
	$(RUN)/ruff format --check $(SOURCES)
	$(RUN)/mypy daemon/parprof
	$(RUN)/python -m pytest $(BESIDE) --leave-results build/beside.json $(REAL) $(UNIT) || [ $$? = 1 ]
	$(RUN)/python -m pytest -p no:xdist -m "quiet and not slow" --with-results build/beside.json $(REAL)

lint: .venv/.dev ## ruff and mypy
	$(RUN)/ruff check $(SOURCES)
	$(RUN)/ruff format --check $(SOURCES)
	$(RUN)/mypy daemon/parprof

unit: .venv/.dev ## tests that need no root
	$(RUN)/python -m pytest $(BESIDE) $(UNIT)

kernel: .venv/.dev workloads bytecode ## tests with real BPF, as root
	$(RUN)/python -m pytest tests/kernel

e2e: .venv/.dev workloads bytecode ## tests of the commands on real programs, as root
	$(RUN)/python -m pytest tests/e2e

system: .venv/.dev ## boots systemd in namespaces, builds and installs the package, as root
	$(RUN)/python -m pytest tests/system

# Where PYTHONDONTWRITEBYTECODE is set, hundreds of commands that tests start would each compile what was edited.
bytecode: .venv/.dev
	@$(RUN)/python -m compileall -q daemon/parprof

workloads: .venv/.dev
	@$(MAKE) --no-print-directory -s -C tests/workloads

kernels: .venv/.dev ## boot Debian's kernels under emulation and try parprof there: an hour, as root
	scripts/kernels.sh

bench: .venv/.dev workloads ## accuracy and overhead, minutes; results to standard output
	$(RUN)/python bench/accuracy.py
	$(RUN)/python bench/runtimes.py
	$(RUN)/python bench/unwind.py
	$(RUN)/python bench/activations.py
	$(RUN)/python bench/symbols.py
	$(RUN)/python bench/memory.py
	$(RUN)/python bench/report.py
	$(RUN)/python bench/overhead.py
	$(RUN)/python bench/interruptions.py
	$(RUN)/python bench/agents.py
	$(RUN)/python bench/scale.py
	$(RUN)/python bench/scale_prediction.py
	$(RUN)/python bench/gain.py
	$(RUN)/python bench/sleepers.py

proto: ## regenerate the protobuf code (Debian's protobuf-compiler 3.21)
	protoc -I parprof/pprof.proto=proto/profile.proto --python_out=daemon --pyi_out=daemon parprof/pprof.proto
	protoc -I parprof/service/control/control.proto=proto/control.proto --python_out=daemon --pyi_out=daemon parprof/service/control/control.proto
	protoc -I parprof/service/push/pyroscope.proto=proto/pyroscope_push.proto --python_out=daemon --pyi_out=daemon parprof/service/push/pyroscope.proto
	protoc -I parprof/service/push/parca.proto=proto/parca_store.proto --python_out=daemon --pyi_out=daemon parprof/service/push/parca.proto
	protoc -I parprof/timeline/perfetto.proto=proto/perfetto_trace.proto --python_out=daemon --pyi_out=daemon parprof/timeline/perfetto.proto
	sed -i '1i # mypy: disable-error-code="type-arg, var-annotated"' daemon/parprof/pprof_pb2.pyi daemon/parprof/service/*/*_pb2.pyi daemon/parprof/timeline/*_pb2.pyi

clean: ## remove what was built
	rm -rf build .venv tests/workloads/build demo.pb.gz
