"""Processes on two hosts, as `hierarchical=True` sees them; prints lines of JSON.

hosts.py group       four processes: collectives, aggregates of each method, rows, NaN, a refusal
hosts.py sockets     collectives of four processes, of which the last has no memory to share
hosts.py killed      four processes, of which the last kills itself between two steps
hosts.py horovod     as group, under Horovod; with `fixed` the sentence where it takes no new sets
hosts.py uneven      three workers on the first host and one on the second: the sentence
hosts.py strategy    two processes of a MultiWorkerMirroredStrategy with two devices each

All processes run on this machine.  The first ones call it 127.0.0.1, the others 127.0.0.2.
"""

import json
import os
import pathlib
import signal
import sys

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "support"))

import numpy as np
import tensorflow as tf

import grace_tf
from grace_tf.transports.hosts import Hosts
from grace_tf.transports.loopback import Loopback
from grace_tf.transports.shared_memory import SharedMemory
from grace_tf.transports.world import world

METHODS = ["none", "qsgd", "topk:ratio=0.1", "powersgd:rank=2", "signsgd", "bf16", "onebit", "dgc"]
SHAPES = [(40, 30), (7,), (33, 5)]
STEPS = 4
HOW = sys.argv[1]

strategy = None
if HOW == "strategy":
    from tensorflow.python.distribute import collective_all_reduce_strategy as theirs

    # Without this the strategy has one device a process, unless there are GPUs.
    theirs.CollectiveAllReduceExtended._initialize_local_devices = lambda self, cluster, device: (
        tuple(f"{device}/device:CPU:{i}" for i in range(2)),
        "CPU",
    )
    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
    strategy = tf.distribute.MultiWorkerMirroredStrategy()  # before anything else runs
    LOCAL, rank = 2, strategy.cluster_resolver.task_id
elif HOW == "horovod":
    # As horovodrun would say of two hosts.
    LOCAL, rank = 2, int(os.environ["HOROVOD_RANK"])
    place = {"LOCAL_RANK": rank % 2, "LOCAL_SIZE": 2, "CROSS_RANK": rank // 2, "CROSS_SIZE": 2}
    os.environ.update({f"HOROVOD_{name}": str(value) for name, value in place.items()})
    os.environ["HOROVOD_HOSTNAME"] = f"127.0.0.{1 + rank // 2}"
    import horovod.tensorflow as hvd

    hvd.init(process_sets=[] if sys.argv[2:] == ["fixed"] else "dynamic")
else:
    config = json.loads(os.environ["TF_CONFIG"])
    ports = [address.rpartition(":")[2] for address in config["cluster"]["worker"]]
    LOCAL, rank = 3 if HOW == "uneven" else 2, config["task"]["index"]
    addresses = [f"127.0.0.{1 + i // LOCAL}:{port}" for i, port in enumerate(ports)]
    grace_tf.init(timeout=60, workers=addresses, rank=rank)
    if HOW == "sockets" and rank == 3:
        del os.memfd_create
HOSTS = 2


def say(**told):
    print(json.dumps(told), flush=True)


def calls():
    hosts = Hosts.of(world.current())
    host, place = divmod(rank, LOCAL)
    told = {"size": hosts.size, "workers": hosts.workers, "gradients": hosts.gradients}
    told["memory"] = isinstance(hosts.inside, SharedMemory) != (HOW == "sockets")
    for n in (1, 7, 64):
        mine = tf.range(n, dtype=tf.float32) + 100.0 * host  # alike on all processes of a host
        both = [np.arange(n) + 100.0 * h for h in range(HOSTS)]
        rows = tf.stack([mine, mine + 1000.0])
        key = 1000 + 10 * n  # a key belongs to one length
        found = {
            "sum": (hosts.sum([mine], key), sum(both)),
            "max": (hosts.max([mine], key + 1), both[-1]),
            "gather": (hosts.gather([mine], key + 2), np.stack(both)),
            "all_to_all": (hosts.all_to_all([rows], key + 3), np.stack(both) + 1000.0 * host),
            "inside": (hosts.inside.sum([mine + place], key + 4), LOCAL * mine.numpy() + 1),
        }
        for name, ((got,), wanted) in found.items():
            told[f"{name} {n}"] = bool(np.array_equal(got.numpy(), wanted))
    say(**told)


def gradients(step, worker):
    draw = np.random.default_rng([step, worker])
    return [draw.normal(size=shape).astype(np.float32) for shape in SHAPES]


def sums_of_a_host(step, host):
    own = [gradients(step, host * LOCAL + i) for i in range(LOCAL)]
    return [sum(each) for each in zip(*own)]


def of_one_worker_a_host(method):
    """What one worker a host gets of the means of its gradients, on a loopback."""
    variables = [tf.Variable(tf.zeros(shape)) for shape in SHAPES]
    aggregate = grace_tf.Aggregator(method, min_elements=1)
    for step in range(STEPS):
        # As under a strategy, where gradients are divided by the number of workers.
        grads = [
            [tf.constant(each / (HOSTS * LOCAL)) for each in sums_of_a_host(step, host)]
            for host in range(HOSTS)
        ]
        devices = [None] * HOSTS
        totals = aggregate.aggregate_replicas(Loopback(HOSTS), grads, variables, devices)
    if totals is None:  # nothing is compressed
        return [sum(each) for each in zip(*grads)]
    return totals[0]


def equal(found, wanted):
    return all(np.array_equal(a, b) for a, b in zip(found, wanted))


def made(method, shapes=SHAPES, **keywords):
    """A traced step of an Aggregator, and that."""
    variables = [tf.Variable(tf.zeros(shape)) for shape in shapes]
    aggregate = grace_tf.Aggregator(method, min_elements=1, hierarchical=True, **keywords)
    return tf.function(lambda grads: aggregate(grads, variables)), aggregate


def steps():
    for method in METHODS:
        step, aggregate = made(method)
        for i in range(STEPS):
            last = step([tf.constant(grad) for grad in gradients(i, rank)])
        wanted = of_one_worker_a_host(method)
        say(method=method, equal=equal(last, wanted), workers=list(aggregate.state.workers))


def narrow():
    """The gradients of a host are added up as bfloat16."""
    variables = [tf.Variable(tf.zeros(shape)) for shape in SHAPES]
    aggregate = grace_tf.Aggregator("none", min_elements=1, hierarchical="bf16")
    found = aggregate([tf.constant(grad) for grad in gradients(0, rank)], variables)
    wanted = 0.0
    for host in range(HOSTS):
        own = [[tf.cast(g, tf.bfloat16) for g in gradients(0, host * LOCAL + i)] for i in (0, 1)]
        sums = [tf.cast(a + b, tf.float32) * 0.25 for a, b in zip(*own)]
        wanted = sums if host == 0 else [a + b for a, b in zip(wanted, sums)]
    say(narrow=equal(found, wanted))


def rows():
    """Each worker has one row of a table, that of its rank."""
    step, _ = made("bf16", [(8, 4)], memory="none")
    own = tf.IndexedSlices(tf.ones([1, 4]), tf.constant([rank]), tf.constant([8, 4]))
    (total,) = step([own])
    say(rows=[total.indices.numpy().tolist(), total.values.numpy()[:, 0].tolist()])


def not_finite():
    """NaN in the last worker's gradient; then a finite step."""
    step, aggregate = made("topk:ratio=0.1")
    for i in range(3):
        before = aggregate.state.arrays()
        grads = gradients(i, rank)
        if i == 1 and rank == HOSTS * LOCAL - 1:
            grads[0][3, 3] = np.nan
        step([tf.constant(grad) for grad in grads])
        if i == 1:
            after = aggregate.state.arrays()
            say(untouched=all(np.array_equal(before[k], after[k]) for k in before))


def other_states():
    """Worker 0 alone has the residuals of an earlier training."""
    step, aggregate = made("topk:ratio=0.1")
    step([tf.constant(grad) for grad in gradients(0, rank)])
    saved = aggregate.state.arrays()
    if rank:
        saved = {k: np.zeros_like(v) if "residual" in k else v for k, v in saved.items()}
    step, aggregate = made("topk:ratio=0.1")
    aggregate.state.restore(saved)
    say(refused=told(lambda: step([tf.constant(grad) for grad in gradients(0, rank)])))


def killed():
    """The others wait for the last worker in the sum of the first bucket."""
    step, _ = made("none", bucket_bytes=1000)
    grads = [tf.constant(grad) for grad in gradients(0, rank)]
    step(grads)
    if rank == HOSTS * LOCAL - 1:
        os.kill(os.getpid(), signal.SIGKILL)
    step(grads)


def told(call):
    try:
        call()
    except RuntimeError as error:
        return str(error)
    return None


def refused():
    step, _ = made("qsgd")
    say(refused=told(lambda: step([tf.constant(grad) for grad in gradients(0, rank)])))


def under_strategy():
    for method in METHODS[1:]:
        with strategy.scope():
            variables = [tf.Variable(tf.zeros(shape)) for shape in SHAPES]
            aggregate = grace_tf.Aggregator(
                method, min_elements=1, hierarchical=True, reduce="mean"
            )

        @tf.function
        def step(grads, aggregate=aggregate, variables=variables):
            def own():
                number = tf.distribute.get_replica_context().replica_id_in_sync_group
                return aggregate([each[number] for each in grads], variables)

            return [strategy.experimental_local_results(v) for v in strategy.run(own)]

        for i in range(STEPS):
            each = [gradients(i, worker) for worker in range(HOSTS * LOCAL)]
            last = step([tf.constant(np.stack(grads)) for grads in zip(*each)])
        wanted = of_one_worker_a_host(method)
        say(method=method, replicas=[equal(replica, wanted) for replica in zip(*last)])


if HOW == "strategy":
    under_strategy()
elif HOW == "sockets":
    calls()
elif HOW == "killed":
    killed()
elif HOW == "uneven" or sys.argv[2:] == ["fixed"]:
    refused()
else:
    calls()
    steps()
    narrow()
    rows()
    not_finite()
    other_states()
