"""The CUDA kernels alone, on a machine with a GPU and PyTorch or CuPy; TensorFlow is not needed.

    make -C custom_ops gpu-test           # every kernel against the CPU's, bit for bit
    python benchmarks/gpu_kernels.py      # how fast they are, beside a copy in the GPU's memory

The second loads `grace_tf/libgrace_cuda.so`. For one tensor of --elements and for the shapes of
ResNet-50's variables it times each kernel and the copy in turn, and prints of the medians: the
bytes that the kernel must read and write at least per second, that as a share of what the copy
reads and writes, and the kernels that one call starts. The results of the first call are compared
with those of --emulated, the same kernels on the processor, where that library is given.
"""

from __future__ import annotations

import argparse
import ctypes
import datetime
import importlib.util
import json
import platform
import runpy
import statistics
import sys
from pathlib import Path
from typing import Any, Callable

import numpy as np
from gpu_lists import WORKERS, Case, Lists

ROOT = Path(__file__).resolve().parents[1]
LIBRARY = ROOT / "grace_tf" / "libgrace_cuda.so"
MODELS = ROOT / "grace_tf" / "cli" / "models.py"


class Torch:
    """The GPU's memory and clock through PyTorch."""

    def __init__(self) -> None:
        import torch

        if not torch.cuda.is_available():
            sys.exit("There is no GPU here: PyTorch finds none.")
        self._torch = torch
        self.name = torch.cuda.get_device_name()
        self.stream = torch.cuda.current_stream().cuda_stream

    def put(self, array: np.ndarray) -> Any:
        return self._torch.from_numpy(array).cuda()

    def get(self, memory: Any) -> np.ndarray:
        return memory.cpu().numpy()

    @staticmethod
    def pointer(memory: Any) -> int:
        return memory.data_ptr()

    def copy(self, to: Any, memory: Any) -> None:
        to.copy_(memory)

    def seconds(self, call: Callable[[], None]) -> float:
        began, ended = (self._torch.cuda.Event(enable_timing=True) for _ in range(2))
        began.record()
        call()
        ended.record()
        ended.synchronize()
        return began.elapsed_time(ended) / 1e3


class CuPy:
    """Likewise through CuPy."""

    def __init__(self) -> None:
        import cupy

        try:
            cupy.cuda.runtime.getDeviceCount()
        except cupy.cuda.runtime.CUDARuntimeError as error:
            sys.exit(f"There is no GPU here: CuPy says {error}.")
        self._cupy = cupy
        self.name = cupy.cuda.runtime.getDeviceProperties(0)["name"].decode()
        self.stream = cupy.cuda.get_current_stream().ptr

    def put(self, array: np.ndarray) -> Any:
        return self._cupy.asarray(array)

    def get(self, memory: Any) -> np.ndarray:
        return self._cupy.asnumpy(memory)

    @staticmethod
    def pointer(memory: Any) -> int:
        return memory.data.ptr

    def copy(self, to: Any, memory: Any) -> None:
        self._cupy.copyto(to, memory)

    def seconds(self, call: Callable[[], None]) -> float:
        began, ended = self._cupy.cuda.Event(), self._cupy.cuda.Event()
        began.record()
        call()
        ended.record()
        ended.synchronize()
        return self._cupy.cuda.get_elapsed_time(began, ended) / 1e3


class Host:
    """The processor's memory, for the emulated library."""

    stream = None

    @staticmethod
    def put(array: np.ndarray) -> np.ndarray:
        return array.copy()

    @staticmethod
    def get(memory: np.ndarray) -> np.ndarray:
        return memory

    @staticmethod
    def pointer(memory: np.ndarray) -> int:
        return memory.ctypes.data


class Library:
    """A library of launchers, and the memory that they work on."""

    def __init__(self, path: Path, memory: Any) -> None:
        self._library, self._memory = ctypes.CDLL(str(path)), memory
        self._library.grace_cuda_error.restype = ctypes.c_char_p
        self._library.grace_cuda_build.restype = ctypes.c_char_p
        self._library.grace_cuda_launches.restype = ctypes.c_int64
        self.build = self._library.grace_cuda_build().decode()

    def prepared(self, case: Case) -> Callable[[], None]:
        """The call, with its workspace."""
        launch = getattr(self._library, f"grace_cuda_{case.launcher}")
        needed = ctypes.c_size_t()
        stream = ctypes.c_void_p(self._memory.stream)
        self._check(launch(*case.arguments, None, ctypes.byref(needed), stream))
        workspace = self._memory.put(np.zeros(-(-needed.value // 4), np.int32))
        last = ctypes.c_void_p(self._memory.pointer(workspace)), ctypes.byref(needed), stream

        def call() -> None:
            self._check(launch(*case.arguments, *last))
            call.workspace = workspace  # lives as long as the call

        return call

    def launches(self, call: Callable[[], None]) -> int:
        """How many kernels a call starts."""
        before = self._library.grace_cuda_launches()
        call()
        return self._library.grace_cuda_launches() - before

    def _check(self, error: int) -> None:
        if error:
            sys.exit(f"CUDA says: {self._library.grace_cuda_error(error).decode()}.")


def gpu() -> Torch | CuPy:
    """Returns access to the GPU through PyTorch or CuPy.

    Where there is no GPU, or neither of them is installed, the program ends with one sentence.
    """
    for module, kind in (("torch", Torch), ("cupy", CuPy)):
        if importlib.util.find_spec(module):
            return kind()
    sys.exit("There is neither PyTorch nor CuPy here, one of which gives the memory of a GPU.")


def differing(memory: Any, case: Case, expected: Case) -> int:
    """How many of a call's outputs have other bits than the emulation's."""
    pairs = zip(case.outputs, expected.outputs)
    return sum(memory.get(ours).tobytes() != theirs.tobytes() for ours, theirs in pairs)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--elements", type=int, default=25_000_000)
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--emulated", type=Path, help="libgrace_cuda_emulated.so, to compare with")
    parser.add_argument("--out", type=Path, help="a file of JSON lines to be written")
    args = parser.parse_args()
    if not LIBRARY.exists():
        sys.exit(f"There is no {LIBRARY}: install the package where nvcc is.")
    memory = gpu()
    library = Library(LIBRARY, memory)
    emulated = Library(args.emulated, Host()) if args.emulated else None
    shapes = runpy.run_path(str(MODELS))["resnet50"]()
    lists = {
        "one tensor": [args.elements],
        "ResNet-50": [int(np.prod(shape)) for shape in shapes],
    }
    lines = [
        {
            "kind": "machine",
            "gpu": memory.name,
            "library": library.build,
            "python": platform.python_version(),
            "elements": args.elements,
            "repeats": args.repeats,
            "workers": WORKERS,
            "date": datetime.date.today().isoformat(),
        }
    ]
    print(json.dumps(lines[0]))
    for name, lengths in lists.items():
        for line in measured(name, lengths, memory, library, emulated, args.repeats):
            print(json.dumps(line), flush=True)
            lines.append(line)
    if args.out:
        args.out.write_text("".join(json.dumps(line) + "\n" for line in lines))


def measured(name, lengths, memory, library, emulated, repeats):
    """A line for each kernel."""
    lists, theirs = Lists(memory, lengths), Lists(Host(), lengths) if emulated else None
    cases, expected = lists.cases(), theirs.cases() if theirs else {}
    gradient = memory.put(np.zeros(sum(lengths), np.float32))
    target = memory.put(np.zeros(sum(lengths), np.float32))
    for kernel, case in cases.items():
        call = library.prepared(case)
        line = {"list": name, "kernel": kernel, "launches": library.launches(call)}
        if emulated:
            emulated.prepared(expected[kernel])()
            line["outputs"] = len(case.outputs)
            line["differing"] = differing(memory, case, expected[kernel])
        times, copies = [], []
        for _ in range(repeats):  # in turn, so that both meet the same clocks
            times.append(memory.seconds(call))
            copies.append(memory.seconds(lambda: memory.copy(target, gradient)))
        taken, copied = statistics.median(times), statistics.median(copies)
        line["microseconds"] = round(1e6 * taken, 1)
        line["copy_microseconds"] = round(1e6 * copied, 1)
        line["gb_per_second"] = round(1e-9 * case.traffic / taken, 1)
        line["share_of_copy"] = round(case.traffic / taken * copied / (8 * sum(lengths)), 3)
        yield line


if __name__ == "__main__":
    main()
