"""`countsketch`: a table of hashed sums finds the largest elements of the sum over workers."""

import tensorflow as tf

from grace_tf import ops
from grace_tf.core.compressor import Compressor
from grace_tf.core.hyperparameters import check_fraction, check_integer, check_number
from grace_tf.core.registry import register
from grace_tf.core.rounds import Sum


@register(
    "countsketch",
    family="sparsification",
    paper="arXiv:1903.04488",
    examples=("countsketch:ratio=0.02,rows=3", "countsketch:ratio=0.05,columns=2.0,candidates=1"),
)
class CountSketch(Compressor):
    """Sends a table of hashed sums, and then the candidates for the largest sums exactly.

    Each of `rows` rows gives an element a random cell of c = ⌈columns·k⌉ and a random sign, drawn
    alike by all workers and anew in each step; a cell is the sum of its elements times their signs.
    Tables add up, so all workers see the table of the sum over workers.  An element's estimate is
    the median over the rows of its cells times its signs.  The workers add up the exact values of
    the candidates·k elements of largest estimate, and the aggregate is the k = max(1, ⌊ratio·n⌋)
    largest of these sums.  A worker's own values of these k elements count as sent; the residual
    keeps its other elements.  No index travels, and the bytes do not grow with the number of
    workers.
    Use chunktopk, which is summed on the way too, or topk: of the largest 1 % of a worker alone the
    table finds 15 % where elements are normal, 30 % of Laplace's and 48 % of Student's t with three
    degrees of freedom, for 29 % of the bytes of the dense tensor.
    Shapes: any float32 tensor; it travels dense if that is no longer.
    Wire: table float32[rows·c], values float32[candidates·k], each all-reduced: 4k(rows·columns +
    candidates) bytes.  A step takes 4·rows·n bytes of memory for a while.
    Raises: ValueError or TypeError for a ratio outside (0, 1], rows that are even or outside 1 to
    15, candidates outside 1 to 64, or columns not above 0.
    Paper: Ivkin et al. 2019, Communication-efficient Distributed SGD with Sketching, algorithm 2
    with the second round for exact values: rows = 5, candidates = 4.
    Differs: cells and signs are random numbers of a stream, independent of each other, where hash
    functions of two-wise and four-wise independence do.  The error stays in each worker's residual
    and not in a table.
    """

    ratio: float = 0.01
    rows: int = 5
    columns: float = 5.0
    candidates: int = 4

    nonexpansive = True
    homogeneous = True

    def __post_init__(self):
        check_fraction("countsketch", "ratio", self.ratio)
        check_integer("countsketch", "rows", self.rows, 1, 15)
        if self.rows % 2 == 0:
            raise ValueError(f"countsketch: rows is odd, not {self.rows}, as it takes a median.")
        check_number("countsketch", "columns", self.columns)
        if self.columns <= 0:
            raise ValueError(f"countsketch: columns is above 0, not {self.columns!r}.")
        check_integer("countsketch", "candidates", self.candidates, 1, 64)

    def count(self, spec):
        """The number of elements that are sent."""
        return max(1, int(self.ratio * spec.shape.num_elements()))

    def _cells(self, spec):
        return -int(-self.columns * self.count(spec) // 1)

    def _looked_at(self, spec):
        return min(spec.shape.num_elements(), self.candidates * self.count(spec))

    def wants(self, spec):
        return self.nbytes(spec) < 4 * spec.shape.num_elements()

    def wire(self, spec):
        return {
            "table": tf.TensorSpec([self.rows * self._cells(spec)], tf.float32),
            "values": tf.TensorSpec([self._looked_at(spec)], tf.float32),
        }

    def rounds(self, xs, states, ctx):
        lanes = [ctx.lane(i) for i in range(len(ctx))]
        hashes = [self._hashes(lane) for lane in lanes]
        flat = [tf.reshape(x, [-1]) for x in xs]
        tables = [
            tf.math.unsorted_segment_sum(
                tf.reshape(x * signs, [-1]), tf.reshape(places, [-1]), self._table(lane)
            )
            for x, (places, signs), lane in zip(flat, hashes, lanes)
        ]
        replies = yield Sum([{"table": table} for table in tables])
        looked_at = []
        for reply, (places, signs), lane in zip(replies, hashes, lanes):
            estimates = tf.sort(tf.gather(reply["table"], places) * signs, axis=0)
            median = tf.abs(estimates[self.rows // 2])
            looked_at.append(tf.math.top_k(median, self._looked_at(lane.spec)).indices)
        mine = [tf.gather(x, places) for x, places in zip(flat, looked_at)]
        replies = yield Sum([{"values": values} for values in mine])
        totals, sent = [], []
        for reply, values, places, lane in zip(replies, mine, looked_at, lanes):
            best = tf.math.top_k(tf.abs(reply["values"]), self.count(lane.spec)).indices
            places = tf.gather(places, best)[:, tf.newaxis]
            for found, each in ((totals, reply["values"]), (sent, values)):
                dense = tf.scatter_nd(places, tf.gather(each, best), [lane.elements])
                found.append(tf.reshape(dense, lane.spec.shape))
        return totals, sent, list(states)

    def _table(self, lane):
        return self.rows * self._cells(lane.spec)

    def _hashes(self, lane):
        """Each element's cells and signs, [rows, n], alike on all workers."""
        words = ops.random_words(self.rows * lane.elements, lane.shared_key())
        words = tf.reshape(words, [self.rows, lane.elements])
        signs = tf.cast(1 - 2 * (words & 1), tf.float32)
        cells = self._cells(lane.spec)
        own = tf.bitwise.right_shift(words & tf.int32.max, 1) % cells
        return own + cells * tf.range(self.rows)[:, tf.newaxis], signs
