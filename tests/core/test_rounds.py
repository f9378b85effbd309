"""The lock-step driver: who sends what when, and in how many collectives."""

import dataclasses

import numpy as np
import pytest
import tensorflow as tf

import grace_tf
from grace_tf.core import registry, rounds
from grace_tf.core.context import Context
from grace_tf.core.rounds import AllToAll, Gather, Max, Sum, fuses
from grace_tf.line.exchange import composed
from grace_tf.line.round_driver import communicate
from grace_tf.memories.none import NoMemory
from grace_tf.memories.residual import Residual
from grace_tf.testing import Workers, cases
from grace_tf.transports.loopback import Loopback


class Counting(Loopback):
    """Notes every collective: its kind, dtype and key."""

    def __init__(self, size):
        super().__init__(size)
        self.calls = []

    def _note(self, kind, buffers):
        super()._note(kind, buffers)
        self.calls.append((kind, buffers[0].dtype.name, int(buffers[0].shape[-1])))


class Keyed(Counting):
    """Notes the keys too."""

    def sum(self, buffers, key):
        self.calls.append(key)
        return super().sum(buffers, key)


def context(worker):
    specs = tuple(tf.TensorSpec(s, tf.float32) for s in ((33,), (5, 7), (1,)))
    return Context(specs, (0, 1, 2), tf.constant(0, tf.int64), 0, 2, worker, needs_sent=False)


def grads(size, *shapes):
    return [
        [tf.constant(cases.normal(s, 10 * w + i)) for i, s in enumerate(shapes)]
        for w in range(size)
    ]


@pytest.fixture(autouse=True)
def own_registry(monkeypatch):
    monkeypatch.setattr(registry, "_COMPRESSORS", dict(registry._COMPRESSORS))
    monkeypatch.setattr(rounds, "_FUSED", dict(rounds._FUSED))


def collectives(spec, *shapes, size=2, **keywords):
    transport = Counting(size)
    Workers(size, spec, transport=transport, **keywords).step(grads(size, *shapes))
    return transport.calls


class CollectivesTest(tf.test.TestCase):
    def test_one_gather_carries_all_parts_of_all_lanes(self):
        # two lanes of 4 values and 2 words of indices each, and the flag
        calls = collectives("topk:ratio=0.1", (40,), (40,))
        self.assertEqual(calls, [("gather", "float32", 13)])

    def test_two_rounds_are_two_sums(self):
        # matrices of 20 x 10 at rank 1 and 1-D lanes in the buffer of the first round
        calls = collectives("powersgd:rank=1", (20, 10), (7,), (20, 10))
        self.assertEqual(calls, [("sum", "float32", 20 + 7 + 20 + 1), ("sum", "float32", 10 + 10)])

    def test_groups_of_different_methods_share_what_they_can(self):
        routes = {
            "0": "topk:ratio=0.1",
            "1": "signsgd",
            "2": "randomk:ratio=0.1",
            "3": "fp16",
            "4": "powersgd:rank=1",
        }
        calls = collectives(routes, (40,), (64,), (40,), (5,), (20, 10))
        # one more element somewhere is the flag
        self.assertEqual(sum(length for _, _, length in calls), (6 + 2) + (4 + 20) + 5 + 10 + 1)
        first_round = sorted((kind, dtype) for kind, dtype, _ in calls[:3])
        self.assertEqual(
            first_round, [("gather", "float32"), ("sum", "float16"), ("sum", "float32")]
        )
        self.assertEqual(calls[3:], [("sum", "float32", 10)])
        self.assertLen(calls, 4)

    def test_every_bucket_has_its_own_collectives(self):
        calls = collectives("fp16", (10,), (20,), (30,), bucket_bytes=200)
        self.assertEqual(calls, [("sum", "float16", 30 + 20 + 1), ("sum", "float16", 10 + 1)])

    def test_keys_name_bucket_and_round(self):
        transport = Keyed(2)
        workers = Workers(2, "powersgd:rank=1", transport=transport, bucket_bytes=800)
        workers.step(grads(2, (20, 10), (20, 10)))
        first = [call for call in transport.calls if isinstance(call, int)]
        self.assertLen(set(first), 4)
        transport.calls.clear()
        workers.step(grads(2, (20, 10), (20, 10)))
        self.assertEqual([call for call in transport.calls if isinstance(call, int)], first)


def toy(rounds_, **traits):
    """A registered compressor with these rounds."""

    def wire(self, spec):
        return {"values": tf.TensorSpec([spec.shape.num_elements()], tf.float32)}

    fields = {"rounds": rounds_, "wire": wire, "__doc__": "A toy.", **traits}
    return grace_tf.register("toy", family="toy", paper="-")(
        type("Toy", (grace_tf.Compressor,), fields)
    )()


class RequestsTest(tf.test.TestCase):
    def test_max_is_the_maximum_over_workers(self):
        def rounds_(self, xs, states, ctx):
            replies = yield Max([{"values": tf.reshape(x, [-1])} for x in xs])
            return [r["values"] for r in replies], xs, list(states)

        mine = grads(3, (33,))
        results = Workers(3, toy(rounds_, aggregates="consensus"))(mine)
        self.assertAllEqual(results[2][0], np.max([g[0] for g in mine], 0))

    def test_all_to_all_swaps_rows_with_workers(self):
        seen = []

        def rounds_(self, xs, states, ctx):
            rows = tf.reshape(xs[0], [ctx.size, -1])
            (reply,) = yield AllToAll([{"rows": rows}])
            seen.append(reply["rows"])
            (back,) = yield Gather([{"values": tf.reduce_sum(reply["rows"], 0)}])
            return [tf.reshape(back["values"], [-1])], xs, list(states)

        mine = grads(3, (33,))
        results = Workers(3, toy(rounds_)).step(mine)
        for w in range(3):
            for sender in range(3):
                self.assertAllEqual(seen[w][sender], mine[sender][0][11 * w : 11 * w + 11])
            self.assertAllClose(results[w][0], np.mean([g[0] for g in mine], 0))

    def test_three_rounds_of_different_kinds(self):
        def rounds_(self, xs, states, ctx):
            (largest,) = yield Max([{"scale": tf.reduce_max(tf.abs(xs[0]))[None]}])
            (total,) = yield Sum([{"values": xs[0] / largest["scale"]}])
            (all_,) = yield Gather([{"half": tf.cast(largest["scale"], tf.float16)}])
            self_check = tf.reduce_max(all_["half"]) - tf.reduce_min(all_["half"])
            return (
                [total["values"] * largest["scale"] + tf.cast(self_check, tf.float32)],
                xs,
                list(states),
            )

        transport = Counting(3)
        mine = grads(3, (33,))
        results = Workers(3, toy(rounds_), transport=transport).step(mine)
        self.assertEqual(
            [c[:2] for c in transport.calls],
            [("max", "float32"), ("sum", "float32"), ("gather", "float32")],
        )
        self.assertAllClose(results[1][0], np.mean([g[0] for g in mine], 0), rtol=1e-5)

    def test_the_gathered_sum_runs_in_worker_order(self):
        compressor = grace_tf.get("topk:ratio=1.0")
        ctx = Context((tf.TensorSpec([4], tf.float32),), (0,), 0, 0, 3)
        rows = tf.constant([[1e8] * 4, [1.0] * 4, [-1e8] * 4])
        payloads = {"values": rows, "indices": tf.fill([3, 1], 0b1111)}  # all four
        self.assertAllEqual(compressor.aggregate(payloads, ctx), (rows[0] + rows[1]) + rows[2])


class FusionTest(tf.test.TestCase):
    def test_a_fused_replacement_is_found_by_the_pair_of_types(self):
        class Half(type(grace_tf.get("topk"))):
            """A top-k of another type."""

        half = grace_tf.register("half", family="toy", paper="-")(Half)(ratio=0.25)
        mine = grads(2, (40,), (8, 5))
        plain = [[t.numpy() for t in w] for w in Workers(2, half).step(mine)]
        called = []

        @fuses(Half, Residual)
        def fused(compressor, memory, xs, memories, states, ctx):
            called.append(len(ctx))
            return composed(compressor, memory, xs, memories, states, ctx)

        again = Workers(2, half)
        for w, results in enumerate(again.step(mine)):
            for a, b in zip(results, plain[w]):
                self.assertAllEqual(a, b)
        self.assertEqual(called, [2, 2])
        Workers(2, half, memory="none").step(mine)  # another pair of types
        Workers(2, "topk:ratio=0.25").step(mine)
        self.assertEqual(called, [2, 2])
        Workers(2, half, granularity="model").step(mine)  # a merged group is one lane
        self.assertEqual(called, [2, 2, 1, 1])
        self.assertIsNone(rounds.fused(grace_tf.get("none"), Residual(), []))

    def test_the_composition_runs_where_the_predicate_says_no(self):
        class Small(type(grace_tf.get("topk"))):
            """A top-k of another type."""

        small = grace_tf.register("small", family="toy", paper="-")(Small)(ratio=0.25)
        asked = []

        def when(compressor, xs):
            asked.append(compressor)
            return False

        @fuses(Small, Residual, when=when, composites=True)
        def fused(compressor, memory, xs, memories, states, ctx):
            raise AssertionError("This form was not wanted.")

        Workers(2, small).step(grads(2, (40,), (8, 5)))
        self.assertEqual(asked, [small, small])
        composite = small.then(values=grace_tf.get("fp16"))
        Workers(2, composite).step(grads(2, (40,)))
        self.assertEqual(asked[2:], [composite, composite])


class Halves(grace_tf.Compressor):
    """Sends the first half of one variable and the second half of the next, by turns: as ACP-SGD
    does with its factors, one payload for the group, and every step as long as the other."""

    commutes_with_sum = True

    def _cuts(self, specs, step):
        for i, spec in enumerate(specs):
            n = spec.shape.num_elements()
            yield (0, n - n // 2) if (i + step) % 2 == 0 else (n - n // 2, n)

    def wire(self, spec):
        return {"half": tf.TensorSpec([-(-spec.shape.num_elements() // 2)], tf.float32)}

    def wires(self, specs):
        longest = max(sum(b - a for a, b in self._cuts(specs, step)) for step in range(2))
        return [{"halves": tf.TensorSpec([longest], tf.float32)}]

    def rounds(self, xs, states, ctx):
        (spec,) = self.wires(ctx.specs)
        (length,) = spec["halves"].shape
        flat = [tf.reshape(x, [-1]) for x in xs]

        def cut(step):
            cuts = self._cuts(ctx.specs, step)
            run = tf.concat([x[a:b] for x, (a, b) in zip(flat, cuts)], 0)
            return tf.pad(run, [[0, length - run.shape[0]]])

        def placed(run, step):
            parts, at = [], 0
            for x, (a, b) in zip(flat, self._cuts(ctx.specs, step)):
                parts.append(tf.pad(run[at : at + b - a], [[a, x.shape[0] - b]]))
                at += b - a
            return [tf.reshape(p, x.shape) for p, x in zip(parts, xs)]

        def of_step(function, *given):
            both = [function(*given, step) for step in range(2)]
            return tf.nest.map_structure(lambda a, b: tf.where(ctx.step % 2 == 0, a, b), *both)

        mine = of_step(cut)
        (reply,) = yield Sum([{"halves": mine}])
        return of_step(placed, reply["halves"]), of_step(placed, mine), list(states)


class LaneGroupTest(tf.test.TestCase):
    def test_a_group_may_have_one_payload_split_unevenly(self):
        halves = grace_tf.register("halves", family="toy", paper="-", memory="residual")(Halves)()
        type(halves).nonexpansive = True
        shapes = (7,), (4, 5), (2,)
        transport = Counting(2)
        workers = Workers(2, halves, transport=transport)
        given = np.zeros(20)
        arrived = np.zeros(20)
        for step in range(4):
            mine = [
                [cases.normal(s, 100 * step + 10 * w + i) for i, s in enumerate(shapes)]
                for w in range(2)
            ]
            given += sum(m[1].ravel().astype(np.float64) for m in mine)
            arrived += 2 * workers.step(mine)[1][1].numpy().ravel()
        rest = workers.state.arrays()["1/memory/residual"].astype(np.float64).sum(0).ravel()
        self.assertAllClose(given, arrived + rest, atol=1e-5)
        self.assertGreater(np.abs(arrived).max(), 1)
        specs = [tf.TensorSpec(s, tf.float32) for s in reversed(shapes)]
        announced = halves.group_nbytes(specs)
        self.assertEqual(announced, 4 * 15)  # 1 + 10 + 4, and 1 + 10 + 3
        self.assertEqual(transport.calls, [("sum", "float32", 16)] * 4)
        self.assertEqual(workers.bytes_per_step, announced + 4)

    def test_one_payload_is_the_same_bits_as_one_a_lane(self):
        def together(self, xs, states, ctx):
            (reply,) = yield Gather([self.compress_list(xs, ctx)])
            totals = [0] * len(xs)
            for w in range(ctx.size):
                rows = {name: part[w] for name, part in reply.items()}
                decoded = self.decompress_list(rows, ctx.public())
                totals = [a + b for a, b in zip(totals, decoded)]
            return totals, None, list(states)

        class Recording(Loopback):
            def _gather(self, buffers, key):
                sent.append([b.numpy() for b in buffers])
                return super()._gather(buffers, key)

        for spec in ("qsgd", "topk:ratio=0.3|values=fp16"):
            alone = grace_tf.get(spec)
            other = type("Together", (type(alone),), {"rounds": together})
            fields = {f.name: getattr(alone, f.name) for f in dataclasses.fields(alone)}
            sent = []
            for compressor in (alone, other(**fields)):
                generators = [
                    composed(compressor, NoMemory(), xs, [{}] * 3, [{}] * 3, context(w))
                    for w, xs in enumerate(grads(2, (33,), (5, 7), (1,)))
                ]
                asked = [[next(g)] for g in generators]
                communicate(asked, Recording(2), lambda kind, dtype: 1, flagged=True)
            np.testing.assert_array_equal(sent[0], sent[1])

    def test_methods_see_the_lanes_of_a_bucket_together(self):
        sizes = []

        def rounds_(self, xs, states, ctx):
            sizes.append((len(xs), ctx.variables))
            replies = yield Sum([{"values": tf.reshape(x, [-1])} for x in xs])
            return (
                [tf.reshape(r["values"], x.shape) for r, x in zip(replies, xs)],
                list(xs),
                list(states),
            )

        workers = Workers(1, toy(rounds_))
        workers.step(grads(1, (3,), (2, 2), ()))
        self.assertEqual(sizes, [(3, (2, 1, 0))])  # backward order
