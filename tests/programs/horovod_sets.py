"""Some of Horovod's processes only: its process sets, and parts of a group.

horovod_sets.py sets     of three processes 0 and 2 train one model, 1 another one
horovod_sets.py parts    four processes, divided in several ways
horovod_sets.py static   a part where Horovod takes no new process sets
horovod_sets.py fault    process 2 fails, of the set {0, 2}
"""

import itertools
import json
import pathlib
import sys

import horovod.tensorflow as hvd
import numpy as np
import tensorflow as tf

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "support"))
import group_contract  # noqa: E402
import train  # noqa: E402
from group_contract import raised  # noqa: E402

import grace_tf  # noqa: E402
from grace_tf.transports.base import PLAN_KEYS  # noqa: E402

keys = itertools.count(PLAN_KEYS)


def say(**result):
    print(json.dumps(result), flush=True)


def start():
    """The group of this process, in the set {0, 2} or {1}, and what is refused on the way."""
    pair, single, unknown = (hvd.ProcessSet(ranks) for ranks in ([0, 2], [1], [0, 1]))
    refused = {"early": raised(RuntimeError, lambda: grace_tf.init(process_set=pair))}
    hvd.init(process_sets=[pair, single])
    mine, other = (single, pair) if hvd.rank() == 1 else (pair, single)
    refused["type"] = raised(TypeError, lambda: grace_tf.init(process_set=[0, 2]))
    refused["unknown"] = raised(RuntimeError, lambda: grace_tf.init(process_set=unknown))
    refused["foreign"] = raised(RuntimeError, lambda: grace_tf.init(process_set=other))
    refused["more"] = raised(ValueError, lambda: grace_tf.init(process_set=mine, size=1))
    group = grace_tf.init(process_set=mine, timeout=60)
    assert grace_tf.init(process_set=mine) is group and grace_tf.init() is group
    everyone = hvd.global_process_set
    refused["second"] = raised(RuntimeError, lambda: grace_tf.init(process_set=everyone))
    return group, refused


def sets():
    group, refused = start()
    group_contract.carries(group, keys, ("bfloat16", "float32", "int32"))
    if group.size > 1:
        group_contract.compares(group, others=1)
    say(refused=refused, who=[grace_tf.rank(), grace_tf.local_rank(), grace_tf.size()])
    own = [0, 1, 0][hvd.rank()]  # one model a set; the single worker takes fewer steps
    net = train.compiled(train.model(3 + own), train.optimizer(compressor="qsgd", min_elements=64))
    share = train.data(group.rank, group.size)
    net.fit(share, epochs=[8, 1][own], shuffle=False, verbose=0)
    say(sha=train.sha(net), steps=int(net.optimizer.iterations.numpy()))


def parts():
    hvd.init(process_sets="dynamic")
    group = grace_tf.init(timeout=60)
    assert hvd.size() == 4
    me = group.rank
    divisions = [
        [[0, 1], [2, 3]],
        [[0, 2], [1, 3]],
        [[0], [1, 2, 3]],
        [[0, 1, 2, 3]],
        [[0, 1], [2, 3]],
    ]
    found = [group.part(next(part for part in parts if me in part)) for parts in divisions]
    for division, part in zip(divisions, found):
        (own,) = (ranks for ranks in division if me in ranks)
        assert (part.size, part.workers) == (len(own), (own.index(me),))
        key = next(keys)
        group_contract.carries(part, itertools.chain(range(key, key + 40)))
    both_at_once(group, *found[:2])
    overlapping = [0, 1] if me < 2 else [1, 2, 3]
    refused = {
        "without me": raised(ValueError, lambda: group.part([(me + 1) % 4])),
        "descending": raised(ValueError, lambda: group.part([3, 2, 1, 0])),
        "overlapping": raised(RuntimeError, lambda: group.part(overlapping)),
    }
    say(refused=refused)


def both_at_once(group, rows, columns):
    """Parts that cross each other and the whole carry under one key in one step."""
    key = next(keys)

    @tf.function
    def step(x):
        sums = [each.sum([x], key)[0] for each in (rows, columns, group)]
        return tf.stack([*sums, rows.sum([columns.sum([x], key + 1)[0]], key + 1)[0]])

    me = group.rank
    beside, across, everyone = 2 * me + (1 if me % 2 == 0 else -1), 2 * (me % 2) + 2, 6
    for _ in range(3):
        found = step(tf.fill([4096], float(me)))
        assert np.array_equal(found[:, 0], [beside, across, everyone, everyone]), found[:, 0]


def static():
    hvd.init(process_sets=[hvd.ProcessSet([0, 1]), hvd.ProcessSet([2, 3])])
    group = grace_tf.init(timeout=60)
    known = [[0, 1], [2, 3]][group.rank // 2]
    (found,) = group.part(known).gather([tf.constant([group.rank])], next(keys))
    assert found.numpy().tolist() == [[rank] for rank in known]
    crosswise = [group.rank % 2, group.rank % 2 + 2]
    say(refused=raised(RuntimeError, lambda: group.part(crosswise)))


def fault():
    group, _ = start()
    if hvd.rank() == 2:
        raise ValueError("boom")
    if group.size == 1:
        hvd.allgather(tf.zeros([1]), name="in which nobody else takes part")
    group.barrier()


{"sets": sets, "parts": parts, "static": static, "fault": fault}[sys.argv[1]]()
