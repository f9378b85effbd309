"""The spellings that other code counts on."""

import inspect
import re

import pytest
import tensorflow as tf
from this_keras import keras

import grace_tf

KEYWORDS = {
    "memory": "auto",
    "granularity": "auto",
    "exchange": "auto",
    "hierarchical": False,
    "min_elements": 1024,
    "exclude": (),
    "bucket_bytes": None,
    "seed": 0,
    "check_every": 100,
    "average_logs": True,
}
REQUIRED = inspect.Parameter.empty
NAMES = """
    wrap unwrap Aggregator all_reduce CompressedAllReduce
    init rank local_rank size barrier broadcast shard keras
    get available register recipe Compressor Context Memory from_params explain
""".split()


def parameters(function):
    """{name: default} of the parameters by position, of those by keyword only, and the ** name."""
    by_kind = {}
    for p in inspect.signature(function).parameters.values():
        by_kind.setdefault(p.kind, {})[p.name] = p.default
    positional = by_kind.get(inspect.Parameter.POSITIONAL_OR_KEYWORD, {})
    keyword_only = by_kind.get(inspect.Parameter.KEYWORD_ONLY, {})
    return positional, keyword_only, list(by_kind.get(inspect.Parameter.VAR_KEYWORD, {}))


def test_every_name_is_there_and_announced():
    for name in NAMES:
        assert hasattr(grace_tf, name), name
        assert name in grace_tf.__all__, name
    for name in grace_tf.__all__:
        assert hasattr(grace_tf, name), name


def test_wrap():
    positional, keyword_only, rest = parameters(grace_tf.wrap)
    assert positional == {"optimizer": REQUIRED, "compressor": "qsgd"}
    assert keyword_only == KEYWORDS
    assert rest == ["hyperparameters"]
    optimizer = keras.optimizers.SGD(0.1)
    assert grace_tf.wrap(optimizer) is optimizer
    assert grace_tf.unwrap(optimizer) is optimizer
    assert type(optimizer) is keras.optimizers.SGD


@pytest.mark.parametrize(
    "door, own",
    [
        (lambda **keywords: grace_tf.Aggregator("topk", **keywords), ["reduce"]),
        (lambda **keywords: grace_tf.CompressedAllReduce("topk", **keywords), ["inner"]),
    ],
)
def test_the_other_doors_take_the_same_keywords(door, own):
    door(**KEYWORDS, ratio=0.5)
    with pytest.raises(TypeError):
        door(ratio_=0.5)
    for keyword in own:
        door(**{keyword: {"reduce": "mean", "inner": None}[keyword]})


def test_aggregator():
    positional, keyword_only, _ = parameters(grace_tf.Aggregator.__init__)
    assert list(positional)[1:] == ["compressor", "variables"]
    assert positional["variables"] is None
    assert keyword_only["reduce"] == "auto"
    assert list(parameters(grace_tf.Aggregator.__call__)[0])[1:] == ["grads", "variables"]
    variable = tf.Variable(tf.ones([8]))
    aggregate = grace_tf.Aggregator("none", [variable], reduce="mean")
    (total,) = aggregate([tf.fill([8], 2.0)], [variable])
    assert total.numpy().tolist() == [2.0] * 8
    tf.train.Checkpoint(aggregator=aggregate)


def test_all_reduce():
    positional, _, rest = parameters(grace_tf.all_reduce)
    assert list(positional) == ["grads", "variables", "compressor"]
    assert rest
    variable = tf.Variable(tf.ones([8]))
    totals = grace_tf.all_reduce(
        [tf.fill([8], 2.0)], [variable], "topk", reduce="mean", min_elements=1, ratio=0.5
    )
    assert [t.numpy().tolist() for t in totals] == [[2.0] * 4 + [0.0] * 4]


def test_compressed_all_reduce():
    positional, _, _ = parameters(grace_tf.CompressedAllReduce.__init__)
    assert list(positional)[1:3] == ["compressor", "inner"]
    assert positional["inner"] is None
    assert issubclass(grace_tf.CompressedAllReduce, tf.distribute.CrossDeviceOps)


def test_the_process_group_of_one():
    for function in (grace_tf.rank, grace_tf.local_rank, grace_tf.size, grace_tf.barrier):
        assert parameters(function) == ({}, {}, [])
    assert parameters(grace_tf.broadcast)[0] == {"variables": REQUIRED, "root": 0}
    assert parameters(grace_tf.shard)[0] == {"dataset": REQUIRED}
    assert REQUIRED not in parameters(grace_tf.init)[0].values()
    assert (grace_tf.rank(), grace_tf.local_rank(), grace_tf.size()) == (0, 0, 1)
    grace_tf.barrier()
    grace_tf.broadcast([tf.Variable(1.0)])
    assert int(grace_tf.shard(tf.data.Dataset.range(5)).cardinality()) == 5


def test_callback():
    assert isinstance(grace_tf.keras.Callback(), keras.callbacks.Callback)
    assert isinstance(grace_tf.keras.Callback(root=1), grace_tf.keras.Callback)


def test_the_registry():
    assert str(grace_tf.get("topk:ratio=0.05")) == "topk:ratio=0.05"
    assert grace_tf.get("topk", ratio=0.05) == grace_tf.get("topk:ratio=0.05")
    assert isinstance(grace_tf.get("topk"), grace_tf.Compressor)
    assert {"none", "topk", "qsgd"} <= set(grace_tf.available())
    assert list(parameters(grace_tf.register)[0])[0] == "name"
    assert list(parameters(grace_tf.recipe)[0])[0] == "name"
    inner = grace_tf.get("qsgd:bits=4,rounding=nearest")
    composite = grace_tf.get("topk:ratio=0.01|values=qsgd:bits=4,rounding=nearest")
    assert grace_tf.get("topk:ratio=0.01").then(values=inner) == composite


def test_from_params_takes_graces_dictionary():
    theirs = {"compressor": "topk", "compress_ratio": 0.3, "memory": "residual"}
    keywords = grace_tf.from_params({**theirs, "communicator": "allgather"})
    assert keywords == {"compressor": "topk", "ratio": 0.3, "memory": "residual"}
    grace_tf.wrap(keras.optimizers.SGD(), **keywords)


def test_every_spelling_of_a_compressor_is_taken():
    for compressor in [
        "qsgd",
        "topk:ratio=0.01",
        "topk:ratio=0.01|values=fp16",
        grace_tf.get("qsgd"),
        {".*kernel": "topk:ratio=0.1", ".*": grace_tf.get("fp16")},
    ]:
        grace_tf.wrap(keras.optimizers.SGD(), compressor)
    assert grace_tf.get("qsgd:block=None").block is None
    assert grace_tf.get("qsgd:block=none").block is None


def test_hyperparameters_beside_a_mapping_are_refused():
    with pytest.raises(TypeError, match="mapping"):
        grace_tf.wrap(keras.optimizers.SGD(), {".*": "topk"}, ratio=0.1)


PUBLIC = [getattr(grace_tf, name) for name in grace_tf.__all__]
PUBLIC += [getattr(of, name) for of in (grace_tf.keras, grace_tf.testing) for name in of.__all__]
PUBLIC += [
    grace_tf.Aggregator.__call__,
    grace_tf.Aggregator.join,
    grace_tf.testing.Workers.__call__,
]
CONTRACTS = (grace_tf.Compressor, grace_tf.Context, grace_tf.Memory)  # what others subclass or get
RESULTS = (grace_tf.testing.Check, grace_tf.testing.Report)
DOCUMENTED = {
    made.__qualname__: made
    for made in PUBLIC
    if callable(made) and made not in (*CONTRACTS, *RESULTS)
}


@pytest.mark.parametrize("made", DOCUMENTED.values(), ids=DOCUMENTED)
def test_public_docstrings_are_full(made):
    told = inspect.getdoc(made)
    signature = inspect.signature(made)
    names = [name for name in signature.parameters if name not in ("self", "keywords")]
    for name in names:
        assert re.search(rf"\b{name}\b", told.partition("Args:")[2]), name
    if signature.return_annotation not in (inspect.Signature.empty, "None"):
        assert re.search("[Rr]eturns|The names of all", told)


@pytest.mark.parametrize("made", [*CONTRACTS, *RESULTS], ids=lambda made: made.__name__)
def test_public_classes_say_what_they_have(made):
    told = inspect.getdoc(made)
    fields = vars(made).get("__annotations__", {})
    assert fields
    for name in fields:
        assert name == "name" or re.search(rf"^  {name}\b", told, re.MULTILINE), name
