"""Gradients whose static shape is not known, as layers, loops and data make them, at every door."""

import contextlib

import numpy as np
import pytest
import tensorflow as tf
from models import KERAS_3, replicas_of
from replicas import mirrored
from this_keras import keras

import grace_tf

layers = keras.layers
LENGTH, WIDTH, CLASSES, ROWS = 6, 8, 4, 8


class Looped(layers.Layer):
    """Multiplies by one kernel, as often as the batch has rows."""

    def build(self, shape):
        self.kernel = self.add_weight(shape=(WIDTH, WIDTH), initializer="orthogonal", name="kernel")

    def call(self, x):
        def again(i, x):
            return i + 1, tf.matmul(x, tf.convert_to_tensor(self.kernel))

        rows = tf.shape(x)[0]
        return tf.while_loop(
            lambda i, _: i < rows,
            again,
            (0, x),
            shape_invariants=(tf.TensorShape([]), tf.TensorShape([None, None, WIDTH])),
        )[1]


def stacked(*middle):
    return keras.Sequential(
        [layers.Input((None, WIDTH)), *middle, layers.GlobalAveragePooling1D(), last()]
    )


def last():
    return layers.Dense(CLASSES)


def attention():
    x = layers.Input((None, WIDTH))
    y = layers.MultiHeadAttention(num_heads=2, key_dim=4)(x, x)
    return keras.Model(x, last()(layers.GlobalAveragePooling1D()(y)))


def float8():
    made = stacked(layers.Dense(WIDTH))
    made.layers[0].quantize("float8")
    return made


MODELS = {
    "dense on three dimensions": lambda: stacked(layers.Dense(WIDTH, "relu"), layers.Dense(WIDTH)),
    "attention": attention,
    "lstm": lambda: keras.Sequential([layers.Input((None, WIDTH)), layers.LSTM(WIDTH), last()]),
    "gru": lambda: keras.Sequential([layers.Input((None, WIDTH)), layers.GRU(WIDTH), last()]),
    "while_loop": lambda: stacked(Looped()),
    **({"float8": float8} if KERAS_3 else {}),
}


def generated(batches=2):
    """Batches of whose shapes only the width is known."""
    draw = np.random.default_rng(0)

    def generator():
        for _ in range(batches):
            x = draw.normal(size=[ROWS, LENGTH, WIDTH]).astype(np.float32)
            yield x, draw.integers(0, CLASSES, size=[ROWS])

    shapes = (tf.TensorShape([None, None, WIDTH]), tf.TensorShape([None]))
    return tf.data.Dataset.from_generator(generator, (tf.float32, tf.int64), shapes)


def compressing(method):
    ops = grace_tf.CompressedAllReduce(method, min_elements=1)
    return tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"], cross_device_ops=ops)


def plain(method):
    return keras.optimizers.SGD(0.1)


def wrapped(method):
    return grace_tf.wrap(plain(method), method, min_elements=1)


DOORS = {
    "wrap": (lambda method: None, wrapped),
    "wrap under a strategy": (lambda method: mirrored(2), wrapped),
    "CompressedAllReduce": (compressing, plain),
}


@pytest.mark.rotated
@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize(
    "method, name", [("none", next(iter(MODELS))), *(("qsgd", name) for name in MODELS)]
)
def test_a_gradient_has_the_shape_of_its_variable(method, name, door):
    make_strategy, optimizer = DOORS[door]
    strategy = make_strategy(method)
    with strategy.scope() if strategy else contextlib.nullcontext():
        keras.utils.set_random_seed(1)
        made = MODELS[name]()
        made.compile(
            optimizer(method),
            keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            jit_compile=False,  # not the gradient of a loop of unknown length
        )
    before = made.get_weights()
    data = generated()
    made.fit(data, verbose=0)
    assert not all(map(np.array_equal, before, made.get_weights()))
    for variable in made.trainable_variables:
        if not getattr(variable, "overwrite_with_gradient", False):
            first, *others = replicas_of(variable)
            assert np.isfinite(first).all()
            assert all(np.array_equal(first, other) for other in others), variable.name


@pytest.mark.parametrize("name", MODELS)
def test_an_aggregator_in_a_loop_of_unknown_shapes(name):
    made, aggregate = MODELS[name](), grace_tf.Aggregator("topk:ratio=1.0", min_elements=1)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)

    def gradients(x, y):
        with tf.GradientTape() as tape:
            value = loss(y, made(x, training=True))
        return tape.gradient(value, made.trainable_variables)

    @tf.function(
        input_signature=[
            tf.TensorSpec([None, None, WIDTH]),
            tf.TensorSpec([None], tf.int64),
        ]
    )
    def both(x, y):
        grads = gradients(x, y)
        return grads, aggregate(grads, made.trainable_variables)

    for x, y in generated():
        for own, aggregated in zip(*both(x, y)):
            assert np.array_equal(own, aggregated)  # all elements of one worker: nothing is lost
    assert aggregate.state.step == 2


def test_what_overwrites_its_variable_is_no_gradient():
    variable, scale = tf.Variable(tf.zeros([4])), tf.Variable(1.0)
    scale.overwrite_with_gradient = True  # as Keras marks the scales of float8 layers
    aggregate = grace_tf.Aggregator("signsgd", min_elements=1)
    total, following = aggregate([tf.constant([3.0] * 4), tf.constant(5.0)], [variable, scale])
    assert np.array_equal(total, [1.0] * 4)
    assert following == 5.0
    assert aggregate([None, tf.constant(5.0)], [variable, scale])[0] is None


def graph_of(signature):
    variable, aggregate = tf.Variable(tf.zeros([2, 3])), grace_tf.Aggregator("none")

    @tf.function(input_signature=[signature])
    def step(grad):
        return aggregate([grad], [variable])

    return step.get_concrete_function().graph


def test_a_known_shape_costs_no_operation():
    def types(shape):
        return {op.type for op in graph_of(tf.TensorSpec(shape)).get_operations()}

    assert "EnsureShape" not in types([2, 3])
    assert "EnsureShape" in types([None, 3])


def test_slices_of_unknown_size_become_dense():
    table, aggregate = tf.Variable(tf.zeros([5, 2])), grace_tf.Aggregator("topk", min_elements=1)

    @tf.function(input_signature=[tf.TensorSpec([None], tf.int32)])
    def step(rows):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.gather(table, rows))
        return aggregate(
            [tape.gradient(loss, table)],
            [table],
        )[0]

    assert step(tf.constant([1, 1, 4])).shape == (5, 2)


def test_a_variable_without_a_shape_is_refused_in_a_sentence():
    shapeless = tf.Variable(tf.zeros([2, 3]), shape=tf.TensorShape(None), name="loose")
    aggregate = grace_tf.Aggregator("qsgd", min_elements=1)
    step = tf.function(
        lambda grad: aggregate([grad], [shapeless]), input_signature=[tf.TensorSpec(None)]
    )
    with pytest.raises(ValueError, match="The variable loose.* has no static shape"):
        step(tf.zeros([2, 3]))
    scattered = tf.Variable(tf.zeros([2, 3]), shape=tf.TensorShape([None, 3]), name="loose")
    with pytest.raises(ValueError, match="The variable loose.* has no static shape"):
        tf.function(
            lambda grad: aggregate([grad], [scattered]), input_signature=[tf.TensorSpec([None, 3])]
        )(tf.zeros([2, 3]))


def misused(table):
    """Gradients that none of the doors may take for this variable of 6 rows of 4 elements."""
    rows = tf.IndexedSlices(tf.ones([2, 4]), tf.constant([-1, 2]))
    narrow = tf.IndexedSlices(tf.ones([2, 3]), tf.constant([1, 2]))
    ragged = tf.RaggedTensor.from_row_lengths(tf.ones([24]), [4] * 6)
    return [
        (tf.ones([24]), ValueError, r"has the shape \(24,\), but the variable has \(6, 4\): give"),
        (tf.ones([4, 6]), ValueError, r"has the shape \(4, 6\), but the variable has \(6, 4\)"),
        (narrow, ValueError, r"has rows of the shape \(3,\), but the variable has \(6, 4\)"),
        (rows, tf.errors.InvalidArgumentError, f"{table}.* has a row number outside 0 to 5"),
        (ragged, TypeError, f"The gradient of {table}.* is a RaggedTensor, but gradients are"),
        (tf.fill([6, 4], "x"), TypeError, "has the dtype string, but gradients are numbers"),
        (tf.fill([6, 4], True), TypeError, "has the dtype bool, but gradients are numbers"),
    ]


@pytest.mark.parametrize("method", ["none", "qsgd"])
def test_rows_may_be_arrays_of_numpy(method):
    table, other = (tf.Variable(tf.zeros([40, 30])) for _ in range(2))
    aggregate = grace_tf.Aggregator(method, min_elements=1)
    values, numbers = np.full([2, 30], 0.5, np.float32), np.array([3, 5])
    (mine,) = aggregate([tf.IndexedSlices(values, numbers)], [table])
    again = grace_tf.Aggregator(method, min_elements=1)
    (wanted,) = again([tf.IndexedSlices(tf.constant(values), tf.constant(numbers))], [other])
    np.testing.assert_array_equal(mine.values, wanted.values)
    np.testing.assert_array_equal(mine.indices, numbers)


@pytest.mark.parametrize("compressor", ["none", "qsgd"])
def test_what_is_no_gradient_of_its_variable_is_refused(compressor):
    variable = tf.Variable(tf.ones([6, 4]), name="of_misuse")
    aggregate = grace_tf.Aggregator(compressor, min_elements=1)
    # A graph refuses a row number as it runs, all else as it is traced.
    traced = tf.function(lambda grad: aggregate([grad], [variable]), autograph=False)
    for grad, kind, words in misused("of_misuse"):
        with pytest.raises(kind, match=words):
            aggregate([grad], [variable])
        with pytest.raises(kind, match=words):
            traced(grad)
    aggregate([tf.ones([6, 4])], [variable])


def test_under_a_strategy_a_row_outside_its_table_is_refused_without_compression_too():
    strategy = mirrored(2)
    with strategy.scope():
        variable = tf.Variable(tf.ones([6, 4]), name="of_replicas")
    aggregate = grace_tf.Aggregator("none")

    @tf.function(autograph=False)
    def step(index):
        def replica():
            rows = tf.IndexedSlices(tf.ones([1, 4]), index)
            return tf.convert_to_tensor(aggregate([rows], [variable])[0])

        return strategy.run(replica)

    step(tf.constant([5]))
    with pytest.raises(tf.errors.InvalidArgumentError, match="row number outside 0 to 5"):
        step(tf.constant([-1]))
