"""What is kept between steps, and how it passes from workers to workers."""

import warnings

import numpy as np
import tensorflow as tf

from grace_tf.aggregation.state.state import State
from grace_tf.line.plan import make_plan
from grace_tf.line.settings import settings

SPECS = [tf.TensorSpec([4, 3]), tf.TensorSpec([5])]


def plan_of(compressor, **keywords):
    return make_plan(settings(compressor, min_elements=1, **keywords), ["a", "b"], SPECS, [0, 1])


def made(size, workers, compressor="topk:ratio=0.5", **keywords):
    state = State()
    state.place(size, workers, [None] * len(workers))
    plan = plan_of(compressor, **keywords)
    for group in plan.groups:
        state.slots_for([group], plan.seed)
    return state


def filled(size, workers, compressor="topk:ratio=0.5"):
    """A state in which worker w's residuals are w + 1 and nine steps are done."""
    state = made(size, workers, compressor)
    for name, leaf in state._leaves.items():
        for worker, variable in zip(workers, leaf.variables):
            value = 9 if name == "step" else 0.5 if "/compressor/" in name else worker + 1
            variable.assign(tf.cast(tf.fill(variable.shape, value), variable.dtype))
    return state


class StateTest(tf.test.TestCase):
    def passed(self, old, size, workers, through):
        """A state of other workers that takes in an old one, by our files or by checkpoints."""
        if through == "arrays, before":
            new = State()
            new.restore(old.arrays())
        elif through == "arrays, after":
            new = made(size, workers)
            new.restore(old.arrays())
            return new
        else:
            path = tf.train.Checkpoint(state=old).save(self.get_temp_dir() + "/c")
            new = State() if through.endswith("before") else made(size, workers)
            tf.train.Checkpoint(state=new).restore(path)
            if not through.endswith("before"):
                return new
        new.place(size, workers, [None] * len(workers))
        for group in plan_of("topk:ratio=0.5").groups:
            new.slots_for([group], 0)
        return new

    WAYS = ("arrays, before", "arrays, after", "checkpoint, before", "checkpoint, after")

    def residuals(self, state):
        rows = state.arrays()["0/memory/residual"]
        self.assertAllEqual(rows, np.broadcast_to(rows[:, :1, :1], rows.shape))
        return rows[:, 0, 0].tolist()

    def test_the_same_workers_get_their_own(self):
        for through in self.WAYS:
            new = self.passed(filled(2, [0, 1]), 2, [0, 1], through)
            self.assertEqual(self.residuals(new), [1, 2], through)
            self.assertEqual(new.step, 9, through)

    def test_another_number_of_workers_keeps_the_mean(self):
        for through in self.WAYS:
            for size in (1, 3):
                new = self.passed(filled(2, [0, 1]), size, list(range(size)), through)
                self.assertEqual(self.residuals(new), [1.5] * size, through)
                self.assertEqual(new.step, 9, through)

    def test_what_another_process_saved(self):
        for through in self.WAYS:
            with warnings.catch_warnings(record=True) as said:
                warnings.simplefilter("always")
                new = self.passed(filled(2, [1]), 2, [0], through)
            self.assertEqual(self.residuals(new), [0], through)
            self.assertEqual(new.step, 9)
            self.assertLen([w for w in said if "residuals start from zero" in str(w.message)], 1)

    def test_each_rank_gets_its_own_file_back(self):
        for through in self.WAYS:
            new = self.passed(filled(2, [1]), 2, [1], through)
            self.assertEqual(self.residuals(new), [2], through)

    def test_what_all_workers_hold_alike_passes_to_any_of_them(self):
        old = filled(2, [1], "powersgd:rank=1")
        new = made(3, [0], "powersgd:rank=1")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            new.restore(old.arrays())
        names = [name for name in new.arrays() if "/compressor/" in name]
        self.assertNotEmpty(names)
        for name in names:
            self.assertAllEqual(new.arrays()[name], np.full_like(new.arrays()[name], 0.5))

    def estimates(self, size, workers, old=None, warns=0):
        """A state of EF21 with the estimates 1, 2, …; or what one has that takes in another."""
        state = made(size, workers, memory="ef21")
        if old is None:
            for name, leaf in state._leaves.items():
                for worker, variable in zip(workers, leaf.variables):
                    value = (size + 1) / 2 if name.endswith("server") else worker + 1
                    variable.assign(tf.cast(tf.fill(variable.shape, value), variable.dtype))
            return state
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            state.restore(old.arrays())
        self.assertLen(said, warns)
        rows = state.arrays()
        return [rows[f"0/memory/{leaf}"][:, 0, 0].tolist() for leaf in ("own", "server")]

    def test_estimates_and_their_mean_stay_together(self):
        whole, part = self.estimates(2, [0, 1]), self.estimates(2, [1])
        self.assertEqual(self.estimates(2, [0, 1], whole), [[1, 2], [1.5, 1.5]])
        self.assertEqual(self.estimates(3, [0, 1, 2], whole), [[1.5] * 3, [1.5] * 3])
        self.assertEqual(self.estimates(2, [1], part), [[2], [1.5]])
        # Without all estimates their mean means nothing.
        self.assertEqual(self.estimates(2, [0, 1], part, warns=1), [[0, 0], [0, 0]])
        self.assertEqual(self.estimates(3, [0], part, warns=1), [[0], [0]])

    def test_estimates_start_anew_where_only_some_workers_have_theirs(self):
        state = self.estimates(2, [0, 1])
        alike = [leaf.name for leaf in state._leaves.values() if leaf.alike and leaf.owner.ordinals]
        self.assertEqual(alike, ["server", "server"])
        # They share a variable, apart from the workers' own estimates; the other counts steps.
        sizes = [variable.shape.num_elements() for variable in state.alike_variables]
        self.assertEqual(sorted(sizes), [1, 4 * 3 + 5])
        with self.assertWarnsRegex(UserWarning, "their state of the memory ef21 and others have"):
            state.realign()
        for name, rows in state.arrays().items():
            if "/memory/" in name:
                self.assertAllEqual(rows, np.zeros_like(rows))
        residuals = filled(2, [0, 1])
        residuals.realign()
        self.assertEqual(self.residuals(residuals), [1, 2])

    def test_what_is_not_yet_used_is_not_lost(self):
        new = State()
        new.restore(filled(2, [0, 1]).arrays())
        for name, rows in filled(2, [0, 1]).arrays().items():
            self.assertAllEqual(new.arrays()[name], rows, name)

    def test_what_is_lost_starts_anew_and_is_told_once(self):
        for state, later in ((filled(2, [0, 1]), False), (State(), True)):
            with warnings.catch_warnings(record=True) as said:
                warnings.simplefilter("always")
                state.lose("The file")
                state.place(2, [0, 1], [None, None])
                for group in plan_of("topk:ratio=0.5").groups:
                    state.slots_for([group], 0)
            self.assertLen(said, 1, later)
            self.assertRegex(str(said[0].message), "^The file holds no compression state: resid")
            self.assertEqual(self.residuals(state), [0, 0])
            self.assertEqual(state.step, 0)

    def test_what_was_not_saved_starts_anew(self):
        for through in ("arrays, after", "checkpoint, after"):
            for first in (State(), made(2, [0, 1], "powersgd:rank=1")):
                state = filled(2, [0, 1])
                if through.startswith("arrays"):
                    state.restore(first.arrays())
                else:
                    path = tf.train.Checkpoint(state=first).save(self.get_temp_dir() + "/c")
                    tf.train.Checkpoint(state=state).restore(path)
                self.assertEqual(self.residuals(state), [0, 0], through)
                self.assertEqual(state.step, 0, through)

    def test_nothing_is_told_where_a_later_file_brings_the_state(self):
        state = State()
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            state.lose("The file")
            state.restore(filled(2, [0, 1]).arrays())
            state.place(2, [0, 1], [None, None])
            for group in plan_of("topk:ratio=0.5").groups:
                state.slots_for([group], 0)
        self.assertEmpty(said)
        self.assertEqual(self.residuals(state), [1, 2])

    def test_variables_are_plain_and_on_their_workers_device(self):
        state = State()
        with tf.distribute.MirroredStrategy(["CPU:0"]).scope():
            state.place(2, [0, 1], ["CPU:0", "CPU:1"])
        self.assertEqual([v.device[-5:] for v in state.variables], ["CPU:0", "CPU:1"])
        self.assertFalse(any(hasattr(v, "_distributed_container") for v in state.variables))

    def test_refusals(self):
        state = made(2, [0, 1])
        with self.assertRaisesRegex(
            ValueError, r"belongs to workers \[0, 1\] of 2, but is now used by \[0\] of 1"
        ):
            state.place(1, [0], [None])
        with self.assertRaisesRegex(ValueError, "no saved state of grace_tf"):
            state.restore({"0": np.zeros(1)})
        saved = filled(2, [0, 1]).arrays()
        for header in ([-2, 0, 1], [2, 0, -1], [2, 0, 0], [2, 0, 2], [2, 0], [2, 0, 1, 2], []):
            with self.assertRaisesRegex(ValueError, "This saved state is damaged: .* rows of the"):
                state.restore({**saved, "grace": np.array([2, *header])})
        for table in (b'{"variables": [', b'{"variables": []}', b"[]", b"\xff", b""):
            with self.assertRaisesRegex(ValueError, "damaged: its table of variables cannot be"):
                state.restore({**saved, "grace/table": np.frombuffer(table, np.uint8)})
        other = {**filled(2, [0, 1]).arrays(), "0/memory/residual": np.zeros([2, 7])}
        with self.assertRaisesRegex(
            ValueError, r"0/memory/residual has the shape \(7,\), this one \(4, 3\)"
        ):
            state.restore(other)
        with self.assertRaisesRegex(ValueError, "format 8"):
            state.restore({"grace": np.array([8, 1])})
