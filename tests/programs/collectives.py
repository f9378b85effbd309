"""Every collective of a process group, eager and in tf.function; one line of JSON per worker."""

import functools
import hashlib
import itertools
import json

import numpy as np
import tensorflow as tf
from this_keras import keras  # noqa: F401  before init(), as users' programs have it

from grace_tf.transports.base import PLAN_KEYS
from grace_tf.transports.process_group import runtime_started
from grace_tf.transports.world import world

started_by_import = runtime_started()
pg = world.init(timeout=60)
DTYPES = ("float16", "bfloat16", "float32", "float64", "int32", "int64")
keys = itertools.count(PLAN_KEYS)


def both_ways(collectives):
    """The eager results as lists, after seeing that the traced ones are the same bits."""
    eager = collectives()
    traced = tf.function(collectives)()
    for name, result in eager.items():
        assert result.dtype == traced[name].dtype
        assert result.numpy().tobytes() == traced[name].numpy().tobytes()
    return {name: tf.cast(result, tf.float64).numpy().tolist() for name, result in eager.items()}


def digest(tensor):
    return hashlib.sha256(tensor.numpy().tobytes()).hexdigest()


def exact():
    """Small integers, whose sums are exact in every dtype."""
    found = {}
    for dtype in DTYPES:
        row = tf.cast(tf.range(5) + 10 * pg.rank, dtype)
        rows = row[None] + tf.cast(100 * tf.range(pg.size)[:, None], dtype)
        found[dtype] = both_ways(
            functools.partial(all_four, row, rows, [next(keys) for _ in range(4)])
        )
    return found


def all_four(row, rows, four):
    return {
        "sum": pg.sum([row], four[0])[0],
        "max": pg.max([row], four[1])[0],
        "gather": pg.gather([row], four[2])[0],
        "all_to_all": pg.all_to_all([rows], four[3])[0],
    }


def rounded():
    """Digests of sums whose bits depend on the order of addition."""
    found = {}
    for dtype, length in itertools.product(("float16", "bfloat16", "float32"), (1, 2, 1001)):
        noise = tf.random.stateless_normal([length], [pg.rank, length]) * 100
        found[f"{dtype} {length}"] = digest(pg.sum([tf.cast(noise, dtype)], next(keys))[0])
    return found


def bits():
    """NaNs with a payload and denormals, gathered as float32 and as bfloat16."""
    words = tf.constant([0x7FC12345, 0x7F812345, 1, -5], tf.int32) + pg.rank
    found = {}
    for dtype in (tf.int32, tf.float32, tf.uint32):
        rows = pg.gather([tf.bitcast(words, dtype)], next(keys))[0]
        found[dtype.name] = tf.bitcast(rows, tf.int32).numpy().tolist()
    halves = tf.bitcast(tf.constant([0x7FA5, 0x0001], tf.uint16), tf.bfloat16)
    found["bfloat16"] = (
        tf.cast(tf.bitcast(pg.gather([halves], next(keys))[0], tf.uint16), tf.int32)
        .numpy()
        .tolist()
    )
    return found


def repeated():
    """Static keys: in a loop of the graph, in nested functions, on a second trace."""
    key, again = next(keys), next(keys)
    one = tf.ones([3])

    @tf.function
    def loop():
        total = tf.zeros([3])
        for _ in tf.range(4):
            total += pg.sum([one + total], key)[0]
        return total

    @tf.function
    def inner(scale):
        return pg.sum([one * scale], again)[0]

    @tf.function
    def outer(scale):
        return inner(scale) + inner(scale + 1)

    return {
        "loop": loop().numpy().tolist(),
        "nested": [outer(1.0).numpy().tolist(), outer(2.0).numpy().tolist()],
        "traces": inner.experimental_get_tracing_count(),
    }


def handshakes():
    seen = []

    @tf.function
    def traced():
        seen.append(pg.handshake([pg.rank, -(2**63)]).tolist())
        return pg.sum([tf.ones([2])], key)[0]

    key = next(keys)
    result = traced().numpy().tolist()
    rapid = [pg.handshake([n + pg.rank]).sum() for n in range(50)]
    return {"traced": seen, "result": result, "rapid": int(np.sum(rapid))}


def refused():
    key = next(keys)
    pg.sum([tf.ones([2])], key)
    sentences = []
    for attempt in (
        lambda: pg.sum([tf.ones([3])], key),
        lambda: pg.sum([tf.ones([2], tf.uint8)], next(keys)),
        lambda: pg.gather([tf.ones([2], tf.bool)], next(keys)),
        lambda: pg.all_to_all([tf.ones([pg.size + 1, 2])], next(keys)),
        lambda: pg.handshake(range(65)),
        tf.function(lambda: pg.sum([tf.ones([2])], next(keys)), jit_compile=True),
    ):
        try:
            attempt()
        except (TypeError, ValueError, RuntimeError) as error:
            sentences.append(str(error))
    return sentences


with pg.recorded() as record:
    exact_answers = exact()
answer = {
    "started_by_import": started_by_import,
    "identity": [pg.rank, pg.size, pg.local_rank, list(pg.workers), world.expected_size()],
    "exact": exact_answers,
    "recorded": [[handed.kind, handed.nbytes] for handed in record if handed.kind == "sum"][:4],
    "rounded": rounded(),
    "bits": bits(),
    "empty": pg.sum([tf.zeros([0])], next(keys))[0].shape.as_list()
    + pg.gather([tf.zeros([0])], next(keys))[0].shape.as_list(),
    "repeated": repeated(),
    "handshakes": handshakes(),
    "refused": refused(),
}
print(json.dumps(answer))
world.barrier()
