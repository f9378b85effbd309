"""What every Group does: checks that each of its workers calls at the same time.

`carries(group)` checks a step, `compares(group)` the processes.  They raise AssertionError.
"""

import numpy as np
import tensorflow as tf

PURPOSE = "the check of a contract"


def carries(group, keys, dtypes=("float32", "int32")):
    """The collectives; `keys` is an iterator over fresh keys, alike on all workers."""
    (me,), size = group.workers, group.size
    for dtype in dtypes:
        row = np.arange(3) + 10 * me
        rows = np.arange(3) + 10 * np.arange(size)[:, None]
        wanted = {
            "sum": (row, rows.sum(0)),
            "max": (row, rows.max(0)),
            "gather": (row, rows),
            "all_to_all": (row + 100 * np.arange(size)[:, None], rows + 100 * me),
        }
        with group.recorded() as record:
            for kind, (given, expected) in wanted.items():
                (found,) = getattr(group, kind)([tf.cast(tf.constant(given), dtype)], next(keys))
                assert found.dtype.name == dtype and found.shape == expected.shape, (kind, found)
                assert np.array_equal(tf.cast(found, tf.int32), expected), (kind, found)
        assert [handed.kind for handed in record] == list(wanted)
        assert [handed.elements for handed in record] == [3, 3, 3, 3 * size]
    words = tf.constant([0x7F812345, 1, -5], tf.int32) + me  # signalling NaNs as floats
    found = tf.bitcast(group.gather([tf.bitcast(words, tf.float32)], next(keys))[0], tf.int32)
    assert found.numpy().tolist() == [[0x7F812345 + w, 1 + w, -5 + w] for w in range(size)]
    rows = tf.tile(tf.bitcast(words, tf.float32)[None], [size, 1])
    found = tf.bitcast(group.all_to_all([rows], next(keys))[0], tf.int32)
    assert found.numpy().tolist() == [[0x7F812345 + w, 1 + w, -5 + w] for w in range(size)]
    names: dict[str, int] = {}
    values = tf.fill([1 + me, 2], 1.0 + me)
    lanes = [tf.IndexedSlices(values, tf.range(1 + me), tf.constant([9, 2]))]
    (totals,) = group.rows([lanes], lambda name: names.setdefault(name, next(keys)))
    dense = tf.convert_to_tensor(totals[0]).numpy()[:, 0]
    assert dense.tolist() == [sum(w + 1.0 for w in range(i, size)) for i in range(9)], dense
    message = tf.range(me + 2000 * (me == 1))
    longest = tf.constant(max(w + 2000 * (w == 1) for w in range(size)))
    (found,) = group.messages([message], longest, lambda name: names.setdefault(name, next(keys)))
    for w, row in enumerate(found.numpy()):
        count = w + 2000 * (w == 1)
        assert row[:count].tolist() == list(range(count)) and not row[count:].any(), row
    told = raised(ValueError, lambda: group.sum([tf.ones([2])] * 2, next(keys)))
    assert "1 buffers, one per worker of this process, but got 2" in told


def compares(group, others=0):
    """Handshake, barrier, broadcast and explain; `others` processes of the host are in no group."""
    rank, processes = group.rank, group.processes
    assert 0 <= group.local_rank <= rank + others and rank < processes and group.timeout > 0
    for count in (0, 1, 64):
        found = group.handshake(range(rank, rank + count), PURPOSE)
        assert found.dtype == np.int64
        assert found.tolist() == [list(range(p, p + count)) for p in range(processes)]
    assert group.handshake([-(2**63)], PURPOSE).tolist() == [[-(2**63)]] * processes
    assert "at most 64 words" in raised(ValueError, lambda: group.handshake(range(65)))
    traced = tf.function(lambda: tf.constant(group.handshake([rank], PURPOSE)))
    assert traced().numpy().tolist() == [[p] for p in range(processes)]
    group.barrier()
    told = raised(RuntimeError, lambda: group.handshake([], f"{PURPOSE} by worker {rank}"))
    assert "is not where worker" in told and "must make the same calls" in told
    if group.broadcasts:
        _broadcasts(group)
    _explains(group)
    group.barrier()


def _broadcasts(group):
    rank, root = group.rank, group.processes - 1

    def values(of):
        draw = np.random.default_rng(of)
        large = draw.integers(0, 256, [3, 7_000_001], np.uint8)  # more than one piece, and odd
        return [
            np.float32(of),
            draw.normal(size=[2, 3]).astype(np.float16),
            np.zeros([0, 4], np.int64),
            large,
            draw.integers(0, 2, [5]).astype(bool),
        ]

    variables = [tf.Variable(value) for value in values(rank)]
    group.broadcast(variables, root)
    for variable, value in zip(variables, values(root)):
        assert variable.numpy().tobytes() == np.asarray(value).tobytes(), variable.shape
    assert "There is no worker" in raised(ValueError, lambda: group.broadcast(variables, root + 1))
    assert "no variables" in raised(ValueError, lambda: group.broadcast([]))
    assert "list of variables" in raised(TypeError, lambda: group.broadcast([tf.zeros([2])]))
    mine = [tf.Variable(tf.zeros([2 + rank]))]
    assert "same variables and root" in raised(RuntimeError, lambda: group.broadcast(mine))


def _explains(group):
    """Only errors that mean a lost worker are explained as one."""
    own = [
        tf.errors.InvalidArgumentError(None, None, "Incompatible shapes: [2] vs. [3]"),
        tf.errors.InvalidArgumentError(None, None, "Collective ops is aborted by: bad input"),
        tf.errors.ResourceExhaustedError(None, None, "OOM in CollectiveReduceV2"),
        tf.errors.UnavailableError(None, None, "The bucket gs://data does not answer."),
        ValueError("Collective"),
    ]
    for error in own:
        try:
            group.explain(error)
        except Exception as raised_:
            assert raised_ is error, raised_
        else:
            raise AssertionError(f"{error} was told as a lost worker")


def raised(kind, call):
    """What an error of this kind says."""
    try:
        call()
    except kind as error:
        return str(error)
    raise AssertionError(f"no {kind.__name__}")
