"""A worker that was not started by our launcher; prints one line of JSON.

started.py [MASTER]      init() by the surroundings, or with this address of worker 0
started.py R N MASTER    init() by arguments alone
"""

import json
import sys

import tensorflow as tf

import grace_tf
from grace_tf.transports.base import PLAN_KEYS

arguments = sys.argv[1:]
keywords = {}
if arguments:
    keywords["master"] = arguments[-1]
if len(arguments) > 1:
    keywords.update(rank=int(arguments[0]), size=int(arguments[1]))
try:
    group = grace_tf.init(timeout=40, **keywords)
except (RuntimeError, ValueError) as error:
    print(json.dumps({"error": f"{type(error).__name__}: {error}"}), flush=True)
    sys.exit(1)
again = grace_tf.init() is group and grace_tf.init(**keywords) is group
try:
    grace_tf.init(rank=group.rank, size=group.size + 1, master="localhost:1")
except RuntimeError as error:
    told = str(error)
(total,) = group.sum([tf.constant([1.0 + group.rank])], PLAN_KEYS)
group.barrier()
answer = {"rank": group.rank, "size": group.size, "local": group.local_rank, "again": again}
hosts = sorted({address.rpartition(":")[0] for address in group.addresses})
print(json.dumps({**answer, "sum": float(total[0]), "hosts": hosts, "told": told}), flush=True)
