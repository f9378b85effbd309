"""Compressors that are wrong beyond one call: kept state, graphs, rounds, several workers."""

import random

import numpy as np
import tensorflow as tf
from lying_compressors import Honest, lie

import grace_tf
from grace_tf.core.rounds import Gather, Sum

# What it keeps.


@lie("keeps nothing", "A step changes self._last")
class StashedGradient(Honest):
    """Decodes from the gradient that it kept."""

    commutes_with_sum = False

    def compress(self, x, ctx):
        object.__setattr__(self, "_last", x)
        return super().compress(x, ctx)

    def decompress(self, payload, ctx):
        return 0.5 * self._last


@lie("keeps nothing", "A step changes KeepsAList.seen")
class KeepsAList(Honest):
    """Notes every gradient in a list of the class, which fills while graphs are traced."""

    seen = []

    def compress(self, x, ctx):
        self.seen.append(x)
        return super().compress(x, ctx)


_CALLS = {}


@lie("keeps nothing", "A step changes the global _CALLS")
class CountsInAGlobal(Honest):
    """Counts calls in the module."""

    def compress(self, x, ctx):
        _CALLS[len(_CALLS)] = ctx.elements
        return super().compress(x, ctx)


@lie("keeps nothing", "The same call gives other payloads")
class HiddenMomentum(Honest):
    """Keeps a momentum in a closure."""

    kept = (lambda cell: lambda x: cell.append(x) or cell[-2:][0])([tf.zeros([])])

    def compress(self, x, ctx):
        return super().compress(x + 0.1 * tf.reduce_mean(type(self).kept(x)), ctx)


@lie("keeps nothing", "random numbers come from elsewhere")
class GlobalRandomness(Honest):
    """Draws from TensorFlow's global generator."""

    def compress(self, x, ctx):
        return super().compress(x * tf.random.uniform([]), ctx)


@lie("keeps nothing", "random numbers come from elsewhere")
class PythonRandomness(Honest):
    """Draws from Python's generator."""

    def compress(self, x, ctx):
        return super().compress(x * random.random(), ctx)


@lie("keeps nothing", "random numbers come from elsewhere")
class NumpyRandomness(Honest):
    """Draws from NumPy's generator."""

    def compress(self, x, ctx):
        return super().compress(x * np.random.rand(), ctx)


# How it runs.


@lie("traces", r"compress \(lying_workers.py, line \d+\) raises OperatorNotAllowedInGraph")
class PythonBranch(Honest):
    """Asks a tensor in Python."""

    def compress(self, x, ctx):
        return super().compress(x if tf.reduce_sum(x) > 0 else 0.5 * x, ctx)


@lie("traces", r"compress \(lying_workers.py, line \d+\) raises .*'?numpy")
class ThroughNumpy(Honest):
    """Leaves TensorFlow."""

    def compress(self, x, ctx):
        return super().compress(tf.constant(x.numpy()), ctx)


@lie("graph equals eager", "differ between eager and graph execution")
class OtherwiseEagerly(Honest):
    """Computes something else eagerly."""

    def compress(self, x, ctx):
        return super().compress(x if tf.executing_eagerly() else 0.5 * x, ctx)


@lie(
    "non finite is agreed",
    r"compress \(lying_workers.py, .* raises InvalidArgumentError: no NaN",
)
class RaisesOnNaN(Honest):
    """Stops where a gradient is not finite, instead of leaving it to the line."""

    def compress(self, x, ctx):
        return super().compress(tf.debugging.check_numerics(x, "no NaN please"), ctx)


# State and rounds.


class OwnRounds(Honest):
    """Nothing is kept, rounds are as they are."""

    def rounds(self, xs, states, ctx):
        totals, sent, states = yield from super().rounds(xs, states, ctx)
        return self.altered(xs, totals, sent, states, ctx)


@lie("state starts alike", "public context has no private random stream")
class PrivateStart(Honest):
    """Starts from the worker's own random numbers."""

    def init_state(self, spec, ctx):
        return {"noise": grace_tf.ops.uniform(spec.shape.num_elements(), ctx.key())}


@lie("state starts alike", "Two calls of init_state give different states")
class RandomStart(Honest):
    """Starts from random numbers that no other worker draws."""

    def init_state(self, spec, ctx):
        return {"noise": tf.random.uniform(spec.shape)}


@lie("same on all workers", "is not the same on every worker")
class PrivateState(OwnRounds):
    """Keeps its own gradient, which no other worker has."""

    def init_state(self, spec, ctx):
        return {"last": tf.zeros(spec.shape)}

    def altered(self, xs, totals, sent, states, ctx):
        return totals, sent, [{"last": x} for x in xs]


@lie("state keeps its form", "State leaves .'last'. become .'last', 'more'.")
class GrowingState(PrivateState):
    """A leaf more after every step."""

    def altered(self, xs, totals, sent, states, ctx):
        return totals, sent, [{"last": tf.reshape(t, [-1]), "more": t} for t in totals]


@lie("same on all workers", "two workers get different aggregates")
class OwnAggregate(OwnRounds):
    """Each worker adds its own number."""

    def altered(self, xs, totals, sent, states, ctx):
        return [t + tf.cast(ctx.worker, tf.float32) * 1e-3 for t in totals], sent, states


@lie("aggregates the sum", "the aggregate is .* off the sum of what was sent")
class SaysMoreThanItSent(OwnRounds):
    """Says that it sent the whole gradient, so that no residual is kept."""

    def altered(self, xs, totals, sent, states, ctx):
        return totals, list(xs), states


@lie("lanes stand alone", "rounds returns one aggregate, one sent and one state per lane: 4")
class FirstLaneOnly(OwnRounds):
    """Knows groups of one lane only."""

    def altered(self, xs, totals, sent, states, ctx):
        return totals[:1], sent[:1], states[:1]


@lie("lanes stand alone", r"Beside other lanes a gradient of shape \(5,\) is sent differently")
class LanesMix(Honest):
    """Scales by the maximum of all lanes."""

    def rounds(self, xs, states, ctx):
        scale = tf.reduce_max([tf.reduce_max(tf.abs(x)) for x in xs])
        values = [0.5 * tf.reshape(x, [-1]) / scale for x in xs]
        replies = yield Sum([{"values": tf.cast(v, tf.float16)} for v in values])
        shapes = [spec.shape for spec in ctx.specs]
        totals = [tf.cast(tf.reshape(r["values"], s), tf.float32) for r, s in zip(replies, shapes)]
        return totals, [0.5 * x / scale for x in xs], list(states)


@lie("rounds agree", "1 of 2 workers ask for round 2, the others have ended")
class MoreRoundsForOne(Honest):
    """Worker 0 asks once more."""

    def rounds(self, xs, states, ctx):
        result = yield from super().rounds(xs, states, ctx)
        if ctx.worker == 0:
            yield Gather([{"more": tf.zeros([1])} for _ in xs])
        return result


@lie("rounds agree", r"worker 0 asks for Gather\(values .*\), worker 1 for Sum\(values")
class AnotherRequestForOne(Honest):
    """Worker 0 gathers where the others add."""

    def rounds(self, xs, states, ctx):
        payloads = [self.compress(x, ctx.lane(i)) for i, x in enumerate(xs)]
        yield Gather(payloads) if ctx.worker == 0 else Sum(payloads)
        return list(xs), list(xs), list(states)


@lie("rounds agree", "rounds yields requests .* not dict")
class YieldsPayloads(Honest):
    """Yields a payload without saying how it travels."""

    def rounds(self, xs, states, ctx):
        yield self.compress(xs[0], ctx.lane(0))
        return list(xs), list(xs), list(states)


# Aggregates.


class OwnAggregation(Honest):
    """Aggregates by itself."""

    commutes_with_sum = False

    def decoded(self, payloads, ctx):
        return [self.decompress({"values": v}, ctx) for v in tf.unstack(payloads["values"])]


@lie("aggregates the sum", "the aggregate is .* off the sum")
class PartialSum(OwnAggregation):
    """Forgets the last worker."""

    def aggregate(self, payloads, ctx):
        return sum(self.decoded(payloads, ctx)[:-1])


@lie("aggregates the sum", "the aggregate is .* off the sum")
class Averages(OwnAggregation):
    """Divides by the number of workers, which the line does."""

    def aggregate(self, payloads, ctx):
        return sum(self.decoded(payloads, ctx)) / ctx.size


@lie("any order of workers", "In another order of workers")
class FirstWorkerCounts(OwnAggregation):
    """A consensus of the first worker alone."""

    aggregates = "consensus"

    def aggregate(self, payloads, ctx):
        return self.decoded(payloads, ctx)[0]


@lie("consensus is among the sent", "neither summed nor divided")
class SummedConsensus(OwnAggregation):
    """Calls a sum a consensus."""

    aggregates = "consensus"


@lie("consensus is among the sent", "neither summed nor divided")
class DividedConsensus(OwnAggregation):
    """Divides its consensus by the number of workers."""

    aggregates = "consensus"

    def aggregate(self, payloads, ctx):
        return sum(self.decoded(payloads, ctx)) / ctx.size**2


# In two hops.


class Blocks(OwnAggregation):
    """Any slice decodes alone, so that a chunk can be added up and sent again."""

    block = 1
    recompressible = True


@lie("sums go on", "Sent again, an aggregate of 2 workers loses")
class SentAgainAsMean(Blocks):
    """Divides by the number of workers before it compresses again."""

    def recompress_list(self, totals, ctx):
        return super().recompress_list([total / ctx.size for total in totals], ctx)


@lie("sums go on", "Sent again, an aggregate of 2 workers loses")
class DrawsToDecode(Blocks):
    """Flips random signs and draws them again to decode.  In two hops the second draw differs."""

    def turned(self, x, ctx):
        return x * tf.sign(grace_tf.ops.uniform(ctx.elements, ctx.shared_key()) - 0.5)

    def encode(self, x, ctx):
        return self.turned(0.5 * x, ctx)

    def decompress(self, payload, ctx):
        values = self.turned(tf.cast(payload["values"], tf.float32), ctx)
        return tf.reshape(values, ctx.spec.shape)


@lie("hops agree", "out of bounds|not in range|out of range")
class OneRowAWorker(Blocks):
    """Takes for granted that there is a row for each worker."""

    def aggregate(self, payloads, ctx):
        rows = [{"values": payloads["values"][w]} for w in range(ctx.size)]
        return sum(self.decompress(row, ctx) for row in rows)
