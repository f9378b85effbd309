"""What is known of each task without TensorFlow: its sizes, and what counts as as good."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

_SPARSE = "it would make the rows of the table dense, 256 MB a step"
_DENSE_ROWS = "it sends the rows of a table uncompressed, as none does"


@dataclasses.dataclass(frozen=True)
class Outline:
    """A task.

    Attributes:
      module: of benchmarks/suite/tasks, which has the model and the data.
      metric: what is measured on data that were not trained on, with its unit.
      higher: whether more is better.
      tolerance: how much worse than uncompressed training still counts as its accuracy; a share of
        the metric where `relative`.
      batch: of all workers together.
      steps, every: of a training; the metric is measured every so many steps.
      optimizer: its kind, "momentum", "adam" or "sgd".
      left_out: arms that are not run, with the reason.
      peers: engines of PEERS that have such a model.
    """

    name: str
    title: str
    module: str
    metric: str
    higher: bool
    tolerance: float
    batch: int
    steps: int
    every: int
    optimizer: str
    relative: bool = False
    left_out: Mapping[str, str] = dataclasses.field(default_factory=dict)
    peers: tuple[str, ...] = ("horovod",)

    @property
    def sign(self) -> int:
        return 1 if self.higher else -1

    def target(self, metric: float) -> float:
        """What a training must reach to be as good as one that ends with this metric."""
        slack = self.tolerance * abs(metric) if self.relative else self.tolerance
        return metric - self.sign * slack

    def reaches(self, metric: float | None, target: float) -> bool:
        return metric is not None and self.sign * (metric - target) >= 0


_ALL = (
    Outline(
        "vision",
        "5000 images of MNIST, CNN conv32-conv64-dense512 of 1.6 million weights",
        "vision",
        "test accuracy, %",
        True,
        0.3,
        batch=64,
        steps=300,
        every=20,
        optimizer="momentum",
        peers=("horovod", "ddp"),
    ),
    Outline(
        "batchnorm",
        "5000 images of MNIST, five convolutions with BatchNormalization, 75 thousand weights",
        "vision",
        "test accuracy, %",
        True,
        0.3,
        batch=64,
        steps=300,
        every=20,
        optimizer="momentum",
    ),
    Outline(
        "transformer",
        "characters, transformer of two layers, d = 192, 0.9 million weights",
        "language",
        "bits per character",
        False,
        0.01,
        batch=32,
        steps=400,
        every=25,
        optimizer="adam",
        relative=True,
    ),
    Outline(
        "lstm",
        "characters, LSTM of 512 units, 1.4 million weights",
        "language",
        "bits per character",
        False,
        0.01,
        batch=32,
        steps=300,
        every=25,
        optimizer="adam",
        relative=True,
    ),
    Outline(
        "neumf",
        "MovieLens 100K, NeuMF: products of 64 factors beside three dense layers",
        "recommendation",
        "HR@10 of 100",
        True,
        0.005,
        batch=1024,
        steps=600,
        every=50,
        optimizer="adam",
    ),
    Outline(
        "zipf",
        "documents of 20 words, an embedding of 1,000,000 × 64; word frequencies follow Zipf's law",
        "recommendation",
        "test accuracy, %",
        True,
        0.3,
        batch=512,
        steps=400,
        every=50,
        optimizer="sgd",
        left_out={
            "loco": _DENSE_ROWS,
            "powersgd": _DENSE_ROWS,
            "acpsgd": _DENSE_ROWS,
            "dgc": _SPARSE,
            "signsgd": _SPARSE,
        },
    ),
)
OUTLINES = {outline.name: outline for outline in _ALL}
