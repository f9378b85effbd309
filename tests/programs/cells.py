"""All cells of one engine in one set of processes; prints a line of JSON a cell and method.

cells.py ENGINE FOLDER [--methods METHOD…] [--cells CELL…]
ENGINE is alone, mirrored (two replicas), mwms, mwms_of_two (devices each), group or horovod, with
as many workers as processes run it.  FOLDER is where their files go.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import sys

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "support"))

parser = argparse.ArgumentParser()
parser.add_argument("engine")
parser.add_argument("folder")
parser.add_argument("--methods", nargs="+", help="none, mixed or plain")
parser.add_argument("--cells", nargs="+")
asked = parser.parse_args()

if asked.engine == "horovod":
    import horovod.tensorflow as hvd

    hvd.init()

import replicas  # noqa: E402  (four virtual CPUs)
import tensorflow as tf  # noqa: E402
from tensorflow.python.distribute import collective_all_reduce_strategy  # noqa: E402


def two_cpus(extended, resolver, worker):
    """The devices of a worker: TensorFlow gives it all its GPUs, but never more than one CPU."""
    return tuple(f"{worker}/device:CPU:{i}" for i in range(2)), "CPU"


strategy = None
if asked.engine == "mwms_of_two":
    extended = collective_all_reduce_strategy.CollectiveAllReduceExtended
    extended._initialize_local_devices = two_cpus
if asked.engine.startswith("mwms"):
    strategy = tf.distribute.MultiWorkerMirroredStrategy()  # before anything else runs
elif asked.engine == "mirrored":
    strategy = replicas.mirrored(2)

import cell_engine  # noqa: E402
import cell_features  # noqa: E402

import grace_tf  # noqa: E402


def engine():
    """Who this process is among the workers."""
    if strategy is not None:
        resolver = strategy.cluster_resolver
        rank = resolver.task_id if asked.engine.startswith("mwms") else 0
        count = strategy.num_replicas_in_sync
        return cell_engine.Engine(strategy, rank, count, asked.folder)
    if asked.engine == "alone":
        return cell_engine.Engine(None, 0, 1, asked.folder)
    group = grace_tf.init()
    return cell_engine.Engine(None, group.rank, group.size, asked.folder)


def facts(cell, here, method):
    """What a cell finds, or the sentence by which it is refused."""
    try:
        return cell(here, method)
    except tf.errors.OpError:
        raise
    except (TypeError, ValueError, RuntimeError) as error:
        return {"refused": f"{type(error).__name__}: {error}", **here.untouched()}


def main():
    here = engine()
    for name in asked.cells or cell_features.CELLS:
        cell = cell_features.CELLS[name]
        for method in asked.methods or here.methods(name):
            told = facts(cell, here, method)
            told = {"cell": name, "method": method, **told}
            print(json.dumps(told, default=float), flush=True)


main()
