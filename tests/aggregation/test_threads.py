"""What threads and nesting must not spoil for each other."""

import threading

import numpy as np
import tensorflow as tf

import grace_tf
from grace_tf import ops

WAIT = 60.0


def together(*functions):
    """Runs the functions in a thread each; raises what one of them raised."""
    errors = []

    def guarded(function):
        try:
            function()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=guarded, args=(f,)) for f in functions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT)
    if errors:
        raise errors[0]


class MeetingGroup:
    """A group of one worker whose comparisons wait for each other."""

    size = 1

    def __init__(self, parties):
        self._meeting = threading.Barrier(parties)

    def handshake(self, words, purpose):
        self._meeting.wait(WAIT)
        return np.array([words])


class ThreadsTest(tf.test.TestCase):
    def test_equal_plans_of_two_threads_have_their_own_keys(self):
        group = MeetingGroup(2)
        plans = []

        def plan():
            variable = tf.Variable(tf.zeros([77]), name="of_two_threads")
            aggregate = grace_tf.Aggregator("qsgd", min_elements=1)
            aggregate.join([variable])
            plans.append(aggregate._plan([tf.zeros([77])], [variable], group))

        together(plan, plan)
        self.assertEqual(plans[0].digest, plans[1].digest)
        self.assertEmpty(set(plans[0].keys) & set(plans[1].keys))
        self.assertNotEqual(
            plans[0].key(0, 0, "sum", "float32"), plans[1].key(0, 0, "sum", "float32")
        )

    def test_two_threads_of_one_aggregator_get_the_same_plan(self):
        variable = tf.Variable(tf.zeros([79]), name="of_one_aggregator")
        aggregate = grace_tf.Aggregator("qsgd", min_elements=1)
        aggregate.join([variable])
        started = threading.Barrier(2)
        plans, compared = [], []

        class Group:
            size = 1

            def handshake(self, words, purpose):
                compared.append(words)
                return np.array([words])

        def plan():
            started.wait(WAIT)
            plans.append(aggregate._plan([tf.zeros([79])], [variable], Group()))

        together(plan, plan)
        self.assertIs(*plans)
        self.assertLen(compared, 1)

    def test_a_forced_implementation_holds_for_its_own_thread(self):
        first_in, second_in, first_out = (threading.Event() for _ in range(3))
        seen = {}

        def chosen():
            return ops.chosen().__name__.rpartition(".")[2]

        def first():
            with ops.using("reference"):
                first_in.set()
                assert second_in.wait(WAIT)
                seen["first"] = chosen()
            first_out.set()

        def second():
            assert first_in.wait(WAIT)
            seen["before"] = chosen()
            with ops.using("native"):
                second_in.set()
                assert first_out.wait(WAIT)
                seen["second"] = chosen()
                with ops.using("reference"):
                    seen["nested"] = chosen()
                seen["after"] = chosen()

        together(first, second)
        wanted = dict(before="native", first="reference", second="native")
        self.assertEqual(seen, {**wanted, "nested": "reference", "after": "native"})
