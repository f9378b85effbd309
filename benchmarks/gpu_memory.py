"""The memory of a GPU through PyTorch or CuPy, and a clock for it, for gpu_kernels.py."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np


class NoGpu(Exception):
    """A module is installed but finds no GPU. The text is the reason, as part of a sentence."""


class Torch:
    """The GPU's memory and events through PyTorch."""

    module = "torch"
    title = "PyTorch"

    def __init__(self) -> None:
        import torch

        if not torch.cuda.is_available():
            raise NoGpu("PyTorch finds none")
        self._torch = torch
        self.name = torch.cuda.get_device_name()
        self.stream = torch.cuda.current_stream().cuda_stream

    def put(self, array: np.ndarray) -> Any:
        if array.dtype == np.uint32:  # which PyTorch before 2.3 does not know
            array = array.view(np.int32)
        return self._torch.from_numpy(array).cuda()

    def get(self, memory: Any) -> np.ndarray:
        return memory.cpu().numpy()

    @staticmethod
    def pointer(memory: Any) -> int:
        return memory.data_ptr()

    def copy(self, to: Any, memory: Any) -> None:
        to.copy_(memory)

    def record(self) -> Any:
        event = self._torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def reached(self, event: Any) -> bool:
        return event.query()

    def elapsed(self, began: Any, ended: Any) -> float:
        ended.synchronize()
        return began.elapsed_time(ended) / 1e3


class CuPy:
    """Likewise through CuPy."""

    module = "cupy"
    title = "CuPy"

    def __init__(self) -> None:
        import cupy

        try:
            cupy.cuda.runtime.getDeviceCount()
        except cupy.cuda.runtime.CUDARuntimeError as error:
            raise NoGpu(f"CuPy says {one_line(error)}") from error
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

    def record(self) -> Any:
        event = self._cupy.cuda.Event()
        event.record()
        return event

    def reached(self, event: Any) -> bool:
        return event.done

    def elapsed(self, began: Any, ended: Any) -> float:
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


def gpu() -> Torch | CuPy:
    """Returns access to the GPU through PyTorch, or through CuPy if PyTorch finds no GPU.

    Where neither finds one, the program ends with one sentence that gives both reasons.
    """
    reasons = []
    for kind in (Torch, CuPy):
        try:
            return kind()
        except NoGpu as error:
            reasons.append(str(error))
        except (ImportError, OSError) as error:  # some versions need the driver to be imported
            if getattr(error, "name", None) != kind.module:
                cause = one_line(error.__cause__ or error)
                reasons.append(f"{kind.title} cannot be imported ({cause})")
    if reasons:
        raise SystemExit(f"There is no GPU here for this program: {', and '.join(reasons)}.")
    raise SystemExit("There is neither PyTorch nor CuPy here, one of which gives access to a GPU.")


def one_line(error: BaseException) -> str:
    """What an error says, without line breaks and without a full stop."""
    return " ".join(str(error).split()).rstrip(".")


class Clock:
    """The time that a GPU takes for calls, without the time that the host takes to make them.

    A GPU that has nothing else to do waits for the host, which needs longer to start a short kernel
    than the kernel runs. So the host first starts copies, and makes the calls while the GPU still
    copies. The number of copies is doubled until they last long enough.
    """

    calls = 10  # between two events
    copied = 1 << 25  # elements; their copy takes about 0.1 ms on a fast GPU
    most_copies = 256  # fewer than CUDA lets wait on a stream

    def __init__(self, memory: Any, copied: int = copied) -> None:
        self._memory, self._copies = memory, 4
        self._from, self._to = (memory.put(np.zeros(copied, np.float32)) for _ in range(2))

    def seconds(self, call: Callable[[], None]) -> tuple[float, bool]:
        """Seconds of one call, and whether the host was ahead of the GPU.

        Where it was not, the seconds may include time in which the GPU waited.
        """
        while True:
            for _ in range(self._copies):
                self._memory.copy(self._to, self._from)
            began = self._memory.record()
            for _ in range(self.calls):
                call()
            ended = self._memory.record()
            ahead = not self._memory.reached(began)
            taken = self._memory.elapsed(began, ended) / self.calls
            if ahead or self._copies == self.most_copies:
                return taken, ahead
            self._copies *= 2
