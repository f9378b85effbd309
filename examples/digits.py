"""Trains one small CNN on real handwritten digits, dense and with every method of the registry.

    python -m grace_tf run -np 2 examples/digits.py      # two worker processes
    python examples/digits.py                            # alone: the same codecs, nobody to talk to

The data are scikit-learn's bundled 8 × 8 digits: 1437 images to train on, shared by the workers,
and 360 to test on.  Every method starts from the same weights and takes the same number of epochs.
At the end worker 0 prints what each method reached and what it sent, and draws both into a picture.
With several `--seeds`, which also draw the test images, the figures are means.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from pathlib import Path
from typing import Any

import keras
import tensorflow as tf
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

import grace_tf
from grace_tf.cli.describe import announced_bytes, bytes_text
from grace_tf.cli.tables import Progress, print_table, progress

BATCH = 32  # images per worker and step
MIN_ELEMENTS = 256  # so that all but the small biases and the output layer's travel compressed

# Sparse methods keep more than 1 %: a run this short would end before every weight has moved.
SPECS = {
    "adaq": "adaq:ratio=0.05",
    "chunktopk": "chunktopk:ratio=0.05,chunk=64",
    "countsketch": "countsketch:ratio=0.02,rows=3",
    "dgc": "dgc:ratio=0.05",
    "randomk": "randomk:ratio=0.1",
    "topk": "topk:ratio=0.05",
}
COMPOSITES = ["topk:ratio=0.05|values=qsgd:bits=4,rounding=nearest"]

# (learning rate, momentum) where the default does not fit.  A vote has entries of -1, 0 and 1,
# whatever the gradient's size: its learning rate is the update.  What waits in randomk's residual
# for its turn arrives at once, and momentum would repeat it; without it the rate may be larger.
# The memory of dgc has its own momentum.
STEPS = {"signsgd": (0.003, 0.0), "randomk": (0.2, 0.0), "dgc": (0.05, 0.0)}
DEFAULT_STEP = (0.05, 0.9)


def methods() -> list[str]:
    """Specs of all methods, the dense one first."""
    names = sorted(grace_tf.available(), key=lambda name: (name != "none", name))
    return [SPECS.get(name, name) for name in names] + COMPOSITES


def digits(seed: int) -> tuple[tf.data.Dataset, tuple]:
    """This worker's share of the training images in batches, and all test images."""
    images, labels = load_digits(return_X_y=True)
    images = (images / 16.0).astype("float32").reshape(-1, 8, 8, 1)
    x, x_test, y, y_test = train_test_split(
        images, labels, test_size=360, random_state=seed, stratify=labels
    )
    mine = grace_tf.shard(tf.data.Dataset.from_tensor_slices((x, y)))
    return mine.shuffle(len(x), seed=seed).batch(BATCH, drop_remainder=True), (x_test, y_test)


def build() -> keras.Model:
    """Two convolutions and two dense layers, 85 thousand weights."""
    return keras.Sequential(
        [
            keras.Input((8, 8, 1)),
            keras.layers.Conv2D(32, 3, padding="same", activation="relu"),
            keras.layers.Conv2D(64, 3, padding="same", activation="relu"),
            keras.layers.MaxPooling2D(),
            keras.layers.Flatten(),
            keras.layers.Dense(64, activation="relu"),
            keras.layers.Dense(10),
        ]
    )


class Watch(keras.callbacks.Callback):
    """Tells how far the training is, and takes the time of the steps after the first epoch."""

    def __init__(self, method: str, epochs: int, shown: Progress):
        super().__init__()
        self.method, self.epochs, self.shown = method, epochs, shown
        self.seconds, self.steps = 0.0, 0

    def on_epoch_begin(self, epoch, logs=None):
        self._began = time.perf_counter()

    def on_train_batch_end(self, batch, logs=None):
        self._last, self._batches = time.perf_counter(), batch + 1

    def on_epoch_end(self, epoch, logs=None):
        if epoch > 0 or self.epochs == 1:  # the first epoch traces the graph
            self.seconds += self._last - self._began
            self.steps += self._batches
        self.shown.advance(f"{self.method}: accuracy {logs['val_accuracy']:.3f}")


def train(method: str, epochs: int, seed: int, shown: Progress) -> dict[str, Any]:
    """One training run; what it reached and what it cost."""
    keras.backend.clear_session()
    keras.utils.set_random_seed(seed)
    data, test = digits(seed)
    model = build()
    rate, momentum = STEPS.get(grace_tf.get(method).name, DEFAULT_STEP)
    schedule = keras.optimizers.schedules.CosineDecay(rate, epochs * int(data.cardinality()))
    optimizer = keras.optimizers.SGD(schedule, momentum)
    model.compile(
        optimizer=grace_tf.wrap(optimizer, method, min_elements=MIN_ELEMENTS, seed=seed),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    watch = Watch(method, epochs, shown)
    history = model.fit(
        data,
        epochs=epochs,
        validation_data=test,
        callbacks=[watch],
        shuffle=False,  # the data are
        verbose=0,
    ).history
    aggregator = grace_tf.keras.aggregator_of(model.optimizer)
    announced = announced_bytes(aggregator.settings, model.trainable_variables)
    dense = sum(4 * int(tf.size(v)) for v in model.trainable_variables)
    accuracy = history["val_accuracy"][-1]
    if grace_tf.rank() == 0:
        shown.say(f"{method}: test accuracy {accuracy:.4f}")
    return {
        "method": method,
        "workers": grace_tf.size(),
        "accuracy": round(accuracy, 4),
        "curve": [round(accuracy, 4) for accuracy in history["val_accuracy"]],
        "bytes_per_step": aggregator.bytes_per_step,
        "announced_bytes": announced,
        "ratio": aggregator.bytes_per_step / dense,
        "seconds_per_step": watch.seconds / watch.steps,
    }


def mean_of(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """One method's runs from several seeds as one result: means, and each seed's accuracy."""
    accuracies = [r["accuracy"] for r in runs]
    return {
        **runs[0],
        "accuracy": round(statistics.mean(accuracies), 4),
        "accuracies": accuracies,
        "curve": [round(statistics.mean(epoch), 4) for epoch in zip(*(r["curve"] for r in runs))],
        "seconds_per_step": statistics.median(r["seconds_per_step"] for r in runs),
    }


def report(results: list[dict[str, Any]]) -> None:
    """The table of all runs."""
    rows = [
        [
            r["method"],
            f"{r['accuracy']:.4f}",
            bytes_text(r["bytes_per_step"]),
            f"1/{1 / r['ratio']:.1f}",
            f"{1000 * r['seconds_per_step']:.1f} ms",
        ]
        for r in results
    ]
    columns = ["method", "test accuracy", "bytes per step", "of fp32", "time per step"]
    print_table(f"Handwritten digits, {grace_tf.size()} worker(s)", columns, rows)


def draw(results: list[dict[str, Any]], path: str) -> None:
    """Accuracy over bytes sent, and accuracy over epochs, as a PNG."""
    import matplotlib

    Path(path).parent.mkdir(parents=True, exist_ok=True)
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, (cost, curves) = plt.subplots(1, 2, figsize=(11, 4.2), layout="constrained")
    for i, r in enumerate(results):
        style = {"color": plt.cm.tab20(i % 20), "label": r["method"]}
        marker = "osD^vP"[i % 6]  # some lie on one spot
        sent = r["bytes_per_step"] / 1024
        cost.scatter(sent, r["accuracy"], s=70, alpha=0.8, marker=marker, **style)
        curves.plot(range(1, len(r["curve"]) + 1), r["curve"], **style)
    cost.set(xlabel="KiB sent per worker and step", ylabel="test accuracy", xscale="log")
    cost.set_ylim(min(0.9, *(r["accuracy"] for r in results)), 1.0)
    cost.xaxis.set_major_formatter("{x:g}")
    cost.set_title("What each method costs and reaches")
    curves.set(xlabel="epoch", ylabel="test accuracy", ylim=(0.6, 1.0))
    curves.set_title("On the way")
    for axes in (cost, curves):
        axes.grid(alpha=0.3)
    named = cost.get_legend_handles_labels()
    figure.legend(*named, loc="outside lower center", ncols=4, fontsize=8)
    figure.savefig(path, dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--methods", nargs="+", metavar="SPEC", help="only these")
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1], help="a run for each")
    parser.add_argument("--out", default="digits.png", help="the picture")
    parser.add_argument("--json", help="the numbers, one line a method")
    options = parser.parse_args()

    grace_tf.init()
    wanted = options.methods or methods()
    with progress("digits", len(wanted) * len(options.seeds) * options.epochs) as shown:
        results = [
            mean_of([train(method, options.epochs, seed, shown) for seed in options.seeds])
            for method in wanted
        ]
    if grace_tf.rank() == 0:
        report(results)
        draw(results, options.out)
        print(f"The picture is in {options.out}.")
        if options.json:
            with open(options.json, "w", encoding="utf-8") as file:
                file.writelines(json.dumps(r) + "\n" for r in results)


if __name__ == "__main__":
    main()
