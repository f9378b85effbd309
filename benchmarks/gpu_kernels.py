"""The speed of CUDA kernels, on a machine with a GPU and PyTorch or CuPy; without TensorFlow.

    python benchmarks/gpu_kernels.py

Fourteen launchers of libgrace_cuda.so are timed, in fifteen calls. These pack signs and
vote on them, find the scales of tensors (absmax), quantise in two ways, decode and accumulate,
select the exact top-k of 1 % and scatter it, look for infinities, encode and decode rotated blocks
(`eden`), and multiply with factors of low rank and make them orthonormal (`powersgd`). Each call is
timed on one tensor of --elements, by default as many as ResNet-50 has, and on the 161 tensors of
ResNet-50. Encoders keep a residual, but for those of signs. The library is
that of --library; without it that of this checkout; and where this has none, that of the installed
package, which is not imported.

Calls and copies in the GPU's memory are timed in turn, --repeats times. The time is that of the GPU
alone, because the host starts the calls while the GPU is still busy with other copies. The lines
give of the medians:

    gb_per_second     the bytes that a call must at least read and write, by its time
    share_of_copy     the same as a share of what the copy reads and writes
    times_one_tensor  the time for 161 tensors divided by the time for one of as many elements,
                      which should be at most 1.2
    launches          the kernels that one call starts
    host_ahead        false where the GPU may have waited for the host: the time is an upper bound

With --emulated the results of these calls are compared with those of the same kernels on the
processor. Nothing else is compared here. The C++ tests compare all launchers with the CPU's
kernels: bit for bit, over a list of corner cases. They need nvcc, g++ and make on the machine with
the GPU:

    make -C custom_ops gpu-test
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
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from gpu_lists import WORKERS, Case, Lists
from gpu_memory import Clock, Host, gpu

ROOT = Path(__file__).resolve().parents[1]
LIBRARY = ROOT / "grace_tf" / "libgrace_cuda.so"
MODELS = ROOT / "grace_tf" / "cli" / "models.py"


class Library:
    """A library of launchers, and the memory that they work on."""

    def __init__(self, path: Path, memory: Any) -> None:
        self._library, self.memory = ctypes.CDLL(str(path)), memory
        self._library.grace_cuda_error.restype = ctypes.c_char_p
        self._library.grace_cuda_build.restype = ctypes.c_char_p
        self._library.grace_cuda_launches.restype = ctypes.c_int64
        self.build = self._library.grace_cuda_build().decode()

    def prepared(self, case: Case) -> Callable[[], None]:
        """The call, with its workspace."""
        launch = getattr(self._library, f"grace_cuda_{case.launcher}")
        needed = ctypes.c_size_t()
        stream = ctypes.c_void_p(self.memory.stream)
        self._check(launch(*case.arguments, None, ctypes.byref(needed), stream))
        workspace = self.memory.put(np.zeros(-(-needed.value // 4), np.int32))
        last = ctypes.c_void_p(self.memory.pointer(workspace)), ctypes.byref(needed), stream

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


def library_path(given: Path | None) -> Path:
    """The library to be timed; where there is none the program ends with one sentence."""
    if given:
        paths = [given]
    else:
        package = importlib.util.find_spec("grace_tf")  # does not import it, nor TensorFlow
        folders = package.submodule_search_locations if package else None
        paths = [LIBRARY, *(Path(folder) / LIBRARY.name for folder in folders or ())]
    for path in paths:
        if path.exists():
            return path.resolve()
    places = " nor ".join(dict.fromkeys(map(str, paths)))
    sys.exit(f"There is no {places}: install the package where nvcc is, or give --library.")


def resnet50() -> list[int]:
    """The lengths of ResNet-50's variables."""
    return [int(np.prod(shape)) for shape in runpy.run_path(str(MODELS))["resnet50"]()]


def differing(memory: Any, case: Case, expected: Case) -> int:
    """How many of a call's outputs have other bits than the emulation's."""
    pairs = zip(case.outputs, expected.outputs)
    return sum(memory.get(ours).tobytes() != theirs.tobytes() for ours, theirs in pairs)


def main() -> None:
    args = arguments()
    path = library_path(args.given)
    memory = gpu()
    library = Library(path, memory)
    emulated = Library(args.emulated, Host()) if args.emulated else None
    lengths = resnet50()
    elements = args.elements or sum(lengths)
    lists = {"one tensor": [elements], "ResNet-50": lengths}
    lines = [
        {
            "kind": "machine",
            "gpu": memory.name,
            "library": library.build,
            "python": platform.python_version(),
            "elements": elements,
            "repeats": args.repeats,
            "workers": WORKERS,
            "date": datetime.date.today().isoformat(),
        }
    ]
    print(json.dumps(lines[0]))
    for line in measured(lists, library, emulated, Clock(memory), args.repeats):
        print(json.dumps(line), flush=True)
        lines.append(line)
    if args.out:
        args.out.write_text("".join(json.dumps(line) + "\n" for line in lines))


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    given = {"dest": "given", "metavar": "LIBRARY", "type": Path}
    parser.add_argument("--library", **given, help="libgrace_cuda.so, where it is elsewhere")
    parser.add_argument("--elements", type=int, help="of the one tensor; as many as ResNet-50 has")
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--emulated", type=Path, help="libgrace_cuda_emulated.so, to compare with")
    parser.add_argument("--out", type=Path, help="a file of JSON lines to be written")
    return parser.parse_args()


def measured(
    lists: dict[str, list[int]],
    library: Library,
    emulated: Library | None,
    clock: Clock,
    repeats: int,
) -> Iterator[dict]:
    """A line for each kernel and list."""
    ours = {name: Lists(library.memory, lengths) for name, lengths in lists.items()}
    theirs = {name: Lists(Host(), lengths) for name, lengths in lists.items() if emulated}
    cases = {name: gradients.cases() for name, gradients in ours.items()}
    expected = {name: gradients.cases() for name, gradients in theirs.items()}
    elements = {name: sum(lengths) for name, lengths in lists.items()}
    copies = {n: copy(library.memory, n) for n in elements.values()}
    for kernel in cases[next(iter(lists))]:
        lines, calls = [], {}
        for name in lists:
            case = cases[name][kernel]
            call = library.prepared(case)
            line = {"list": name, "kernel": kernel, "launches": library.launches(call)}
            if emulated:
                emulated.prepared(expected[name][kernel])()
                line["outputs"] = len(case.outputs)
                line["differing"] = differing(library.memory, case, expected[name][kernel])
            lines.append(line)
            calls[name], calls[name, "copy"] = call, copies[elements[name]]
        times = medians(clock, calls, repeats)
        for line in lines:
            name = line["list"]
            line.update(speeds(name, cases[name][kernel].traffic, elements, times))
            yield line


def copy(memory: Any, elements: int) -> Callable[[], None]:
    """A copy of so many floats."""
    gradient, target = (memory.put(np.zeros(elements, np.float32)) for _ in range(2))
    return lambda: memory.copy(target, gradient)


def medians(clock: Clock, calls: dict, repeats: int) -> dict[Any, tuple[float, bool]]:
    """The seconds of each call, and whether the GPU never had to wait for the host."""
    times = {key: [] for key in calls}
    for _ in range(repeats):  # in turn, so that all meet the same clock rates of the GPU
        for key, call in calls.items():
            times[key].append(clock.seconds(call))
    return {
        key: (statistics.median(seconds for seconds, _ in some), all(ahead for _, ahead in some))
        for key, some in times.items()
    }


def speeds(name: str, traffic: float, elements: dict[str, int], times: dict) -> dict:
    """What is printed of the times of a call on the list of this name."""
    (taken, ahead), (copied, copy_ahead) = times[name], times[name, "copy"]
    line = {
        "microseconds": round(1e6 * taken, 1),
        "copy_microseconds": round(1e6 * copied, 1),
        "gb_per_second": round(1e-9 * traffic / taken, 1),
        "share_of_copy": round(traffic / taken * copied / (8 * elements[name]), 3),
        "host_ahead": ahead and copy_ahead,
    }
    first = next(iter(elements))
    if name != first and elements[name] == elements[first]:
        line["times_one_tensor"] = round(taken / times[first][0], 3)
    return line


if __name__ == "__main__":
    main()
