"""Payloads to flat buffers and back, and the bits that must never change.

`python tests/line/test_wire.py` writes tests/support/golden.json anew.  A change there needs a new
`wire.VERSION`.
"""

import dataclasses
import hashlib
import json
import pathlib

import numpy as np
import pytest
import tensorflow as tf

import grace_tf
from grace_tf.core import registry
from grace_tf.core.context import Context
from grace_tf.core.rounds import AllToAll, Gather, Max, Sum
from grace_tf.line import wire

GOLDEN = pathlib.Path(__file__).parents[1] / "support" / "golden.json"
SPECS = [spec for entry in registry.entries() for spec in (entry.name, *entry.examples)]
# Matrix products round differently on every machine: golden bits are for methods of one round.
PINNED = [spec for spec in SPECS if grace_tf.get(spec).one_round]
DTYPES = (tf.float32, tf.int32, tf.float16, tf.bfloat16)


def bits(tensor):
    return np.asarray(tensor).tobytes()


def part(dtype, *shape, seed=0):
    words = np.random.default_rng(seed).integers(-(2**31), 2**31, shape)
    return tf.cast(tf.constant(words % 1000 if dtype.is_floating else words), dtype)


def flagged(requests, flag):
    """The requests of one worker that has met a value that is not finite, or has not."""
    finite = tf.constant(not flag)
    return [r and dataclasses.replace(r, finite=finite) for r in requests]


def there_and_back(requests, flags=(False, False)):
    """Two workers' requests through gathers or sums; returns replies and flag of the first."""
    buffers = wire.layout(requests[0], flagged=True)
    replies = [[{} for _ in r.payloads] for r in requests[0]]
    raised = []
    for buffer in buffers:
        sent = [wire.fuse(buffer, flagged(mine, f)) for mine, f in zip(requests, flags)]
        assert all(s.shape[-1] == buffer.length for s in sent)
        raised.append(
            wire.split(buffer, tf.stack(sent) if buffer.kind == "gather" else sum(sent), replies)
        )
    return replies, [not finite for finite in raised if finite is not None]


class GatherTest(tf.test.TestCase):
    def test_every_dtype_and_length_comes_back_bit_for_bit(self):
        for length in (1, 2, 3, 31, 32, 33):
            payloads = [{d.name: part(d, length, seed=w) for d in DTYPES} for w in range(2)]
            replies, (flag,) = there_and_back([[Gather([p])] for p in payloads])
            for name, reply in replies[0][0].items():
                self.assertEqual(reply.shape, [2, length])
                for w in range(2):
                    self.assertEqual(bits(reply[w]), bits(payloads[w][name]))
            self.assertFalse(flag)

    def test_bits_that_are_no_numbers_travel_too(self):
        odd = tf.bitcast(tf.constant([-1, 1, 0x7F800001, -(2**31)], tf.int32), tf.float32)
        replies, _ = there_and_back([[Gather([{"odd": odd}])]] * 2)
        self.assertEqual(bits(replies[0][0]["odd"][1]), bits(odd))

    def test_halves_lie_two_to_a_word_and_little_endian(self):
        halves = tf.constant([1.0, 2.0, -1.0], tf.float16)
        request = [Gather([{"halves": halves}])]
        (buffer,) = wire.layout(request, flagged=True)
        words = wire.fuse(buffer, flagged(request, True)).numpy()
        self.assertAllEqual(words[:2].view(np.int32), [0x40003C00, 0x0000BC00])
        self.assertEqual(words[2], 1)

    def test_one_flag_raised_anywhere_is_seen(self):
        request = [Gather([{"x": part(tf.float32, 5)}])]
        for flags, seen in (((False, False), False), ((True, False), True), ((True, True), True)):
            self.assertEqual(bool(there_and_back([request, request], flags)[1][0]), seen)

    def test_64_bit_parts_are_two_words(self):
        parts = [part(tf.float64, 3), part(tf.int64, 2), part(tf.float64, 1, seed=1)]
        names = ("a", "b", "a")
        request = [Gather([{name: x} for name, x in zip(names, parts)])]
        (buffer,) = wire.layout(request, flagged=True)
        sent = wire.fuse(buffer, flagged(request, True))
        self.assertEqual(sent.shape, [2 * (3 + 2 + 1) + 1])
        for rows in (sent, tf.stack([sent, sent])):
            replies = [[{}, {}, {}]]
            wire.split(buffer, rows, replies)
            for reply, name, x in zip(replies[0], names, parts):
                self.assertEqual(bits(tf.reshape(reply[name], [-1, len(x)])[0]), bits(x))

    def test_8_bit_parts_are_refused(self):
        request = [Gather([{"x": tf.zeros([4], tf.int8)}])]
        (buffer,) = wire.layout(request, flagged=False)
        with self.assertRaisesRegex(ValueError, "has 16, 32 or 64 bits an element, not int8"):
            wire.fuse(buffer, flagged(request, False))

    def test_rows_of_an_all_to_all_are_packed_each_for_itself(self):
        rows = part(tf.float16, 3, 5)
        request = [AllToAll([{"rows": rows, "more": part(tf.float32, 3, 2)}])]
        (buffer,) = wire.layout(request, flagged=True)
        sent = wire.fuse(buffer, flagged(request, True))
        self.assertEqual(sent.shape, [3, 3 + 2 + 1])
        replies = [[{}]]
        self.assertFalse(wire.split(buffer, sent, replies))
        self.assertEqual(bits(replies[0][0]["rows"]), bits(rows))


class SumTest(tf.test.TestCase):
    def test_parts_keep_their_dtype_and_only_one_buffer_is_flagged(self):
        requests = [[Sum([{d.name: part(d, 3, seed=w)} for d in DTYPES])] for w in range(2)]
        buffers = wire.layout(requests[0], flagged=True)
        self.assertEqual([(b.kind, b.dtype) for b in buffers], [("sum", d.name) for d in DTYPES])
        self.assertEqual([b.flagged for b in buffers], [True, False, False, False])
        for flags, seen in (((False, False), False), ((True, True), True)):
            replies, (flag,) = there_and_back(requests, flags)
            self.assertEqual(bool(flag), seen)
            for i, dtype in enumerate(DTYPES):
                total = sum(r[0].payloads[i][dtype.name] for r in requests)
                self.assertEqual(bits(replies[0][i][dtype.name]), bits(total))

    def test_groups_of_a_kind_share_a_buffer_in_their_order(self):
        requests = [
            Sum([{"a": tf.ones([2])}, {"b": 2 * tf.ones([1])}]),
            None,
            Max([{"c": tf.ones([1])}]),
            Sum([{"d": 3 * tf.ones([1])}]),
        ]
        first, second = wire.layout(requests, flagged=True)
        self.assertAllEqual(wire.fuse(first, flagged(requests, False)), [1, 1, 2, 3, 0])
        self.assertEqual((second.kind, second.length), ("max", 1))
        self.assertEqual(
            [(s.group, s.part, s.lanes, s.sizes) for s in first.slots],
            [(0, "a", (0,), (2,)), (0, "b", (1,), (1,)), (3, "d", (0,), (1,))],
        )

    def test_a_round_without_parts_still_carries_the_flag(self):
        (buffer,) = wire.layout([Sum([{}])], flagged=True)
        self.assertEqual((buffer.kind, buffer.dtype, buffer.length), ("sum", "float32", 1))
        self.assertAllEqual(wire.fuse(buffer, flagged([Sum([{}])], True)), [1])
        self.assertEqual(wire.layout([Sum([{}])], flagged=False), [])


def golden_payload(spec):
    """The payload of a fixed gradient of 1000 elements, which no library's random numbers touch."""
    words = (np.arange(1000, dtype=np.uint64) * 2654435761 + 12345) % 2**32
    x = ((words >> np.uint64(8)).astype(np.float32) - 2**23) * np.float32(2.0**-23)
    x *= np.exp2(-(words % 7).astype(np.float32))
    context = Context((tf.TensorSpec([1000], tf.float32),), (3,), 5, 11, 2, 1)
    payload = grace_tf.get(spec).compress(tf.constant(x.astype(np.float32)), context)
    raw = {name: payload[name].numpy().tobytes() for name in sorted(payload)}
    return {
        "digest": hashlib.sha256(b"".join(raw.values())).hexdigest(),
        "parts": {name: [len(data), data[:16].hex()] for name, data in raw.items()},
    }


@pytest.mark.parametrize("spec", PINNED)
def test_payloads_are_the_golden_ones(spec):
    golden = json.loads(GOLDEN.read_text())
    assert golden["version"] == wire.VERSION
    assert golden_payload(spec) == golden["payloads"][spec]


def test_golden_payloads_are_of_registered_methods():
    assert sorted(json.loads(GOLDEN.read_text())["payloads"]) == sorted(PINNED)


if __name__ == "__main__":
    made = {
        "version": wire.VERSION,
        "payloads": {spec: golden_payload(spec) for spec in sorted(PINNED)},
    }
    GOLDEN.write_text(json.dumps(made, indent=1) + "\n")
