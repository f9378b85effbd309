"""What grace_tf offers over a process group, between two workers; one line of JSON per worker."""

import json
import signal

import numpy as np
import tensorflow as tf
from this_keras import keras

from grace_tf.transports.world import world

caught = []
signal.signal(signal.SIGTERM, lambda *_: caught.append("the program's own handler"))
pg = world.init(timeout=60)
signal.raise_signal(signal.SIGTERM)
signal.signal(signal.SIGTERM, signal.SIG_DFL)
NUMBERS = (
    "float16 bfloat16 float32 float64 int8 uint8 int16 uint16 int32 uint32 int64 uint64 "
    "complex64 complex128 bool"
).split()


def raised(attempt):
    try:
        attempt()
    except (RuntimeError, TypeError, ValueError) as error:
        return f"{type(error).__name__}: {error}"
    return None


def random_bytes(dtype, shape, seed):
    count = int(np.prod(shape)) * dtype.size
    drawn = np.random.default_rng(seed).integers(0, 256, count, np.uint8)
    if dtype == tf.bool:
        drawn &= 1
    return drawn.view(dtype.as_numpy_dtype).reshape(shape)


def broadcast_all_dtypes(root):
    """Whether every variable has the root's bits afterwards, NaNs and all."""
    made, wanted = [], []
    for number, name in enumerate(NUMBERS):
        for shape in ((), (3, 5), (0,)):
            dtype, seed = tf.as_dtype(name), 100 * number + len(shape)
            made.append(tf.Variable(random_bytes(dtype, shape, [pg.rank, seed])))
            wanted.append(random_bytes(dtype, shape, [root, seed]).tobytes())
    world.broadcast(made, root)
    return [v.numpy().tobytes() == w for v, w in zip(made, wanted)]


def broadcast_large(root):
    """More than one piece of 16 MiB."""
    variable = tf.Variable(random_bytes(tf.uint8, (35_000_001,), pg.rank))
    world.broadcast([variable], root)
    return bool((variable.numpy() == random_bytes(tf.uint8, (35_000_001,), root)).all())


def broadcast_model():
    keras.utils.set_random_seed(1 + pg.rank)
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3), keras.layers.Dropout(0.5)])
    optimizer = keras.optimizers.Adam(0.1 * (1 + pg.rank))
    optimizer.build(model.trainable_variables)
    optimizer.iterations.assign(1 + pg.rank)
    before = pg.handshake([digest(model.variables), digest(list_of(optimizer))])
    world.broadcast(model.variables)
    world.broadcast(list_of(optimizer))
    after = pg.handshake([digest(model.variables), digest(list_of(optimizer))])
    return [before.tolist(), after.tolist()]


def list_of(optimizer):
    return (
        optimizer.variables() if not isinstance(optimizer.variables, list) else optimizer.variables
    )


def digest(variables):
    return int(sum(np.abs(np.asarray(v)).astype(np.float64).sum() for v in variables) * 1e9)


def refusals():
    mine = [tf.Variable(tf.zeros([2 + pg.rank])), tf.Variable(0.0)]
    return {
        "string": raised(lambda: world.broadcast([tf.Variable("text")])),
        "tensor": raised(lambda: world.broadcast([tf.zeros([2])])),
        "root": raised(lambda: world.broadcast(mine, 2)),
        "shapes": raised(lambda: world.broadcast(mine)),
        "same bytes": raised(
            lambda: world.broadcast([tf.Variable(tf.zeros([2, 3][:: 1 - 2 * pg.rank]))])
        ),
        "count": raised(lambda: world.broadcast(mine[: 1 + pg.rank])),
        "roots": raised(lambda: world.broadcast(mine[1:], pg.rank)),
        "calls": raised(world.barrier if pg.rank == 0 else lambda: pg.handshake([])),
        "words": raised(lambda: pg.handshake([0] * (1 + pg.rank))),
        "other arguments": raised(lambda: world.init(timeout=61)),
        "other group": raised(lambda: world.init(workers=["localhost:1"], rank=0)),
    }


def shards():
    numbers = tf.data.Dataset.range(7)
    unknown = numbers.filter(lambda x: x >= 0)
    counted = unknown.apply(tf.data.experimental.assert_cardinality(7))
    return {
        "examples": list(map(int, world.shard(numbers))),
        "batches": [batch.numpy().tolist() for batch in world.shard(numbers.batch(2))],
        "counted": list(map(int, world.shard(counted))),
        "infinite": list(map(int, world.shard(numbers.repeat()).take(3))),
        "unknown": raised(lambda: world.shard(unknown)),
        "few": raised(lambda: world.shard(numbers.take(1))),
    }


world.barrier()
answer = {
    "again": world.init() is pg and world.init(timeout=60) is pg and world.current() is pg,
    "caught": caught,
    "identity": [world.rank(), world.local_rank(), world.size()],
    "dtypes": [broadcast_all_dtypes(root) for root in (0, 1)],
    "large": broadcast_large(1),
    "model": broadcast_model(),
    "refusals": refusals(),
    "shards": shards(),
}
print(json.dumps(answer))
world.barrier()
