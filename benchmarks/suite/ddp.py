"""One worker of a peer: PyTorch's DistributedDataParallel, whole, with fp16, and with PowerSGD.

Started by the runner as benchmarks/suite/worker.py is, with the same arguments.  The model has the
shapes of the task "vision", and SGD with the same momentum.  Gradients travel over gloo, on the
same links: worker 0's host, and a port beside its own, are where the workers meet.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook

from benchmarks.suite.arms import LARGEST_NORM
from benchmarks.suite.plan import Cell, cell_of
from benchmarks.suite.results import append
from benchmarks.suite.tasks.outline import OUTLINES

UNTIMED, RANK_OF_POWERSGD, FIRST_COMPRESSED = 2, 4, 2
# The size of PyTorch's buckets in megabytes.  The whole gradient must fit into one.  For each
# bucket the PowerSGD hook keeps one of Gloo's two threads while it waits for an all-reduce.  With
# two buckets no thread would be left to run the all-reduces, and the training would hang.
ONE_BUCKET = 25


def built() -> nn.Module:
    """The CNN of tasks/vision.py."""
    return nn.Sequential(
        nn.Conv2d(1, 32, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(64 * 7 * 7, 512),
        nn.ReLU(),
        nn.Linear(512, 10),
    )


class Peer:
    """A model under DDP with the hook of an arm."""

    def __init__(self, arm: str) -> None:
        torch.manual_seed(0)
        buckets = {"bucket_cap_mb": ONE_BUCKET} if arm == "DDP PowerSGD" else {}
        self._model = nn.parallel.DistributedDataParallel(built(), **buckets)
        if arm == "DDP fp16":
            self._model.register_comm_hook(None, default_hooks.fp16_compress_hook)
        elif arm == "DDP PowerSGD":
            state = powerSGD_hook.PowerSGDState(
                None, RANK_OF_POWERSGD, start_powerSGD_iter=FIRST_COMPRESSED
            )
            self._model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
        self._sgd = torch.optim.SGD(self._model.parameters(), lr=0.01, momentum=0.9)
        batch = OUTLINES["vision"].batch // dist.get_world_size()
        self._x = torch.randn(batch, 1, 28, 28)
        self._y = torch.randint(0, 10, (batch,))

    def step(self) -> None:
        self._sgd.zero_grad()
        nn.functional.cross_entropy(self._model(self._x), self._y).backward()
        nn.utils.clip_grad_norm_(self._model.parameters(), LARGEST_NORM)
        self._sgd.step()


def milliseconds(peer: Peer, steps: int) -> float:
    for _ in range(UNTIMED):
        peer.step()
    dist.barrier()
    times = []
    for _ in range(steps):
        begun = time.perf_counter()
        peer.step()
        times.append(time.perf_counter() - begun)
    return 1000 * statistics.median(times)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cells", required=True)
    parser.add_argument("--out", required=True)
    parser.add_argument("--timed-steps", type=int, default=10)
    args = parser.parse_args()
    with open(args.cells, encoding="utf-8") as file:
        cells: list[Cell] = [cell_of(record) for record in json.load(file)]
    given = json.loads(os.environ["TF_CONFIG"])
    host, port = given["cluster"]["worker"][0].rsplit(":", 1)
    rank, size = given["task"]["index"], len(given["cluster"]["worker"])
    torch.set_num_threads(max(1, (os.cpu_count() or 1) // size))
    # What the launcher has reserved for worker 0 is free until somebody listens there.
    dist.init_process_group("gloo", f"tcp://{host}:{port}", rank=rank, world_size=size)
    peers: dict[str, Peer] = {}
    for cell in cells:
        if cell.arm not in peers:
            peers[cell.arm] = Peer(cell.arm)
            milliseconds(peers[cell.arm], FIRST_COMPRESSED)
        ms = milliseconds(peers[cell.arm], args.timed_steps)
        if rank == 0:
            append(
                args.out,
                {**cell.record(), "ms": float(np.round(ms, 3)), "bytes": None, "sent": None},
            )
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
