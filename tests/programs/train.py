"""Small trainings, for one process or one of several: prints one line of JSON per result.

train.py fit METHOD…          20 steps with each method, twice; SHA of the weights
train.py fit_once METHOD…     the same, once
train.py callback             unequal weights, BatchNorm and metrics, kept alike by fit
train.py bytes STEPS STEPS    exchanges of large gradients, and what the loopback device carried
train.py nan                  a NaN gradient on worker 1 at step 5, with and without loss scaling;
                              then `fit` under mixed_float16, where worker 1 overflows in step 5
train.py no_init | wrapped_once     what must end in one sentence
"""

from __future__ import annotations

import hashlib
import json
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "support"))

import numpy as np  # noqa: E402
import tensorflow as tf  # noqa: E402
from models import loss_scaled, scale_of, scaled_loss  # noqa: E402
from this_keras import KERAS_3, keras  # noqa: E402

import grace_tf  # noqa: E402
from grace_tf.line.settings import settings  # noqa: E402

STEPS = 20
# Each pair is a method, and the dtype of the gradient that `train.py bytes` exchanges with it.
EXCHANGED = [
    ("qsgd", tf.float32),
    ("qsgd", tf.float16),
    ("qsgd", tf.bfloat16),
    ("fp16", tf.float16),
    ("fp16", tf.float32),
    ("bf16", tf.bfloat16),
    ("bf16", tf.float32),
    ("none", tf.float16),
    ("none", tf.bfloat16),
]


def spec_of(method: str) -> dict:
    """The keywords of a method for this small model; `method@adam` is under Adam instead of SGD,
    `method>two_hop` with that exchange."""
    name, _, base = method.partition("@")
    name, _, exchange = name.partition(">")
    has_momentum = any(memory.has_momentum for _, _, memory in settings(name).routes)
    base = plain(base, without_momentum=has_momentum)
    return {
        "compressor": name,
        "min_elements": 64,
        "base": base,
        "exchange": exchange or "auto",
    }


def plain(base: str = "", without_momentum: bool = False):
    """The optimizer to wrap."""
    if base == "adam":
        return keras.optimizers.Adam(0.01)
    return keras.optimizers.SGD(0.05, 0.0 if without_momentum else 0.9)


def data(worker: int, workers: int) -> tf.data.Dataset:
    """The worker's share of batches that MirroredStrategy would split alike."""
    rng = np.random.default_rng(7)
    x = rng.normal(size=[STEPS, workers, 8, 24]).astype(np.float32)
    y = rng.integers(0, 5, size=[STEPS, workers, 8])
    return tf.data.Dataset.from_tensor_slices((x[:, worker], y[:, worker]))


def all_data(workers: int) -> tf.data.Dataset:
    """The same batches with every worker's share in one."""
    rng = np.random.default_rng(7)
    x = rng.normal(size=[STEPS, workers, 8, 24]).astype(np.float32)
    y = rng.integers(0, 5, size=[STEPS, workers, 8])
    return tf.data.Dataset.from_tensor_slices((x.reshape([STEPS, -1, 24]), y.reshape([STEPS, -1])))


def model(seed: int = 3) -> keras.Model:
    rng = np.random.default_rng(seed)
    net = keras.Sequential(
        [keras.layers.Input([24]), keras.layers.Dense(32, "relu"), keras.layers.Dense(5)]
    )
    net.set_weights([rng.normal(size=w.shape).astype(np.float32) / 5 for w in net.get_weights()])
    return net


def compiled(net: keras.Model, optimizer) -> keras.Model:
    net.compile(
        optimizer=optimizer,
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        **({"jit_compile": False} if KERAS_3 else {}),
    )
    return net


def sha(net: keras.Model) -> str:
    told = hashlib.sha256()
    for variable in net.trainable_variables:
        told.update(np.ascontiguousarray(variable.numpy()).tobytes())
    return told.hexdigest()[:16]


def optimizer(base=None, **keywords):
    return grace_tf.wrap(base or plain(), **keywords)


def say(**result) -> None:
    print(json.dumps(result), flush=True)


def fit(methods: list[str], times: int = 2) -> None:
    grace_tf.init(timeout=60)
    share = data(grace_tf.rank(), grace_tf.size())
    for method in methods:
        shas = []
        for _ in range(times):
            net = compiled(model(), optimizer(**spec_of(method)))
            net.fit(share, epochs=1, shuffle=False, verbose=0)
            shas.append(sha(net))
        taken = grace_tf.keras.aggregator_of(net.optimizer).bytes_per_step
        say(method=method, shas=shas, bytes=taken)


def nan() -> None:
    """Says what a NaN gradient on worker 1 at step 5 leaves behind."""
    grace_tf.init(timeout=60)
    for scaled in (False, True):
        base = optimizer(compressor="topk", ratio=0.25, min_elements=64)
        used = loss_scaled(base, initial_scale=16.0) if scaled else base
        net, state = model(), grace_tf.keras.aggregator_of(base).state
        step = training_step(net, used, scaled)
        for number, (x, y) in enumerate(data(grace_tf.rank(), grace_tf.size()).take(7)):
            before = [v.numpy() for v in state.variables], sha(net), state.step
            if number == 5 and grace_tf.rank() == 1:
                x = x * np.float32("nan")
            step(x, y)
            if number == 5:
                after = [v.numpy() for v in state.variables]
                say(
                    scaled=scaled,
                    state_untouched=all(map(np.array_equal, before[0], after)),
                    leaves=len(after),
                    steps=[before[2], state.step],
                    weights_untouched=before[1] == sha(net),
                    weights_finite=all(np.isfinite(w.numpy()).all() for w in net.weights),
                )
        say(scaled=scaled, end=state.step, sha=sha(net))
    overflow()


def overflow() -> None:
    """Says how `fit` ends if a float16 gradient of worker 1 is infinite in step 5."""
    keras.mixed_precision.set_global_policy("mixed_float16")
    net = compiled(model(), optimizer(compressor="fp16", min_elements=64))
    large = 1e4 if grace_tf.rank() == 1 else 1.0
    share = data(grace_tf.rank(), grace_tf.size()).enumerate()
    share = share.map(lambda i, batch: (batch[0] * tf.where(i == 5, large, 1.0), batch[1]))
    net.fit(share, verbose=0)
    say(
        policy=net.layers[-1].compute_dtype,
        scale=scale_of(net.optimizer),
        end=grace_tf.keras.aggregator_of(net.optimizer).state.step,
        weights_finite=all(np.isfinite(w.numpy()).all() for w in net.weights),
        sha=sha(net),
    )


def training_step(net, used, scaled: bool):
    weights = net.trainable_variables

    @tf.function
    def step(x, y):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(
                keras.losses.sparse_categorical_crossentropy(y, net(x), from_logits=True)
            )
            if scaled:
                loss = scaled_loss(used, loss)
        grads = tape.gradient(loss, weights)
        if scaled and not KERAS_3:
            grads = used.get_unscaled_gradients(grads)
        used.apply_gradients(zip(grads, weights))

    return step


def callback() -> None:
    """Workers start with different weights; `fit` makes weights, BatchNorm and metrics equal."""
    group = grace_tf.init(timeout=60)
    keras.utils.set_random_seed(group.rank)
    net = keras.Sequential(
        [
            keras.layers.Input([24]),
            keras.layers.Dense(32, "relu"),
            keras.layers.BatchNormalization(momentum=0.5),
            keras.layers.Dense(5),
        ]
    )
    compiled(net, optimizer(compressor="qsgd", min_elements=64))

    class Own(keras.callbacks.Callback):
        """What this worker saw before the mean was taken."""

        def on_train_batch_end(self, batch, logs=None):
            if batch == STEPS - 1:
                loss, moving = float(logs["loss"]), net.layers[1].moving_mean.numpy()
                say(own=loss, moving=moving.tolist(), sha=sha(net))

    history = net.fit(
        data(group.rank, group.size),
        epochs=2,
        shuffle=False,
        verbose=0,
        callbacks=[Own(), grace_tf.keras.Callback(root=1)],
    )
    say(
        losses=history.history["loss"],
        moving=net.layers[1].moving_mean.numpy().tolist(),
        sha=sha(net),
    )


def link(*steps: int) -> None:
    """Exchanges a gradient of 2 M elements by each of `EXCHANGED`, and says after each of these
    numbers of steps what the loopback device has carried."""
    group = grace_tf.init(timeout=60)
    for spec, dtype in EXCHANGED:
        variable = tf.Variable(tf.zeros([2_000_000], dtype))
        aggregate = grace_tf.Aggregator(spec)
        step = tf.function(lambda grad, of=aggregate, to=variable: of([grad], [to])[0])
        grad = tf.random.stateless_normal([2_000_000], [group.rank, 1], dtype=dtype)
        for before, after in zip((0, *steps), steps):
            for _ in range(after - before):
                step(grad)
            group.barrier()  # so that no worker is still sending, nor has begun the next step
            sent = grace_tf.explain(aggregate).as_dict()["step"]["sent"]
            told = dict(bytes=aggregate.bytes_per_step, sent=sent, carried=loopback_bytes())
            say(spec=spec, dtype=dtype.name, **told)
            group.barrier()


def loopback_bytes() -> int:
    (line,) = [x for x in open("/proc/self/net/dev") if x.strip().startswith("lo:")]
    return int(line.split()[9])


def no_init() -> None:
    compiled(model(), optimizer(compressor="qsgd", min_elements=64)).fit(
        data(0, 2), shuffle=False, verbose=0
    )
    say(trained=True)


def wrapped_once() -> None:
    group = grace_tf.init(timeout=30)
    plain = keras.optimizers.SGD(0.05)
    used = grace_tf.wrap(plain, "qsgd", min_elements=64) if group.rank == 0 else plain
    compiled(model(), used).fit(data(group.rank, group.size), shuffle=False, verbose=0)
    say(trained=True)


if __name__ == "__main__":
    {
        "fit": lambda: fit(sys.argv[2:]),
        "fit_once": lambda: fit(sys.argv[2:], times=1),
        "nan": nan,
        "callback": callback,
        "bytes": lambda: link(*map(int, sys.argv[2:])),
        "no_init": no_init,
        "wrapped_once": wrapped_once,
    }[sys.argv[1]]()
