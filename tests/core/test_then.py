"""Composition."""

import logging

import numpy as np
import pytest
import tensorflow as tf

import grace_tf
from grace_tf.core import registry
from grace_tf.core.context import Context
from grace_tf.core.then import Then
from grace_tf.testing import cases

TRAITS = ("unbiased", "nonexpansive", "commutes_with_sum", "lossless", "homogeneous", "fixed_size")


def context(shape, worker=None, size=2):
    return Context((tf.TensorSpec(shape, tf.float32),), (0,), 4, 1, size, worker)


@pytest.mark.parametrize("outer", ["topk", "randomk", "threshold"])
@pytest.mark.parametrize(
    "inner",
    ["none", "fp16", "qsgd:rounding=stochastic", "qsgd:rounding=nearest", "topk:ratio=0.5"],
)
def test_a_composite_has_the_traits_of_all_its_stages(outer, inner):
    composite = grace_tf.get(outer).then(values=grace_tf.get(inner))
    for trait in TRAITS:
        both = getattr(grace_tf.get(outer), trait) and getattr(grace_tf.get(inner), trait)
        assert getattr(composite, trait) == both, trait


KEEPING = [
    f"{outer}|values={stage}"
    for outer in ("topk", "threshold", "randomk", "dgc")
    for stage in ("qsgd", "qsgd:bits=2,norm=l2", "natural", "u8bit", "fp16", "efsignsgd")
]


@pytest.mark.parametrize("spec", KEEPING)
def test_a_selection_whose_values_are_refined_keeps_what_it_does_not_send(spec, caplog):
    compressor, memory = registry.resolve(spec)
    assert compressor.nonexpansive
    assert registry.get_memory(memory).needs_sent
    assert compressor == grace_tf.get(str(compressor)) == grace_tf.get(spec)
    with caplog.at_level(logging.WARNING, "grace_tf"):
        grace_tf.Aggregator(spec)
    assert not caplog.records


@pytest.mark.parametrize("scheduled", ["", "@0;topk@9"])
@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ("topk|values=qsgd:rounding=stochastic", 'rounding="nearest", for norms'),
        ("randomk|values=qsgd:norm=minmax", 'rounding="nearest", for norms'),
        ("threshold|values=terngrad", "another stage, such as values=qsgd"),
        ("sketch:ratio=0.1|means=fp16", "sketch:ratio=0.1 without this stage"),
    ],
)
def test_a_selection_that_cannot_keep_it_says_so_once_and_names_a_way_out(
    spec, words, scheduled, caplog
):
    with caplog.at_level(logging.WARNING, "grace_tf"):
        grace_tf.Aggregator(spec + scheduled)
    (record,) = caplog.records
    assert record.getMessage().startswith(f"{grace_tf.get(spec)}: what ")
    assert "is lost" in record.getMessage() and words in record.getMessage()


@pytest.mark.parametrize(
    "spec",
    ["topk", "qsgd:rounding=stochastic", "terngrad", "randomk:scaled=true|values=qsgd"],
)
def test_what_loses_nothing_on_average_or_by_wish_says_nothing(spec, caplog):
    with caplog.at_level(logging.WARNING, "grace_tf"):
        grace_tf.Aggregator(spec, memory="none")
    assert not caplog.records


def test_a_stage_rounds_at_random_where_the_composite_is_unbiased():
    assert grace_tf.get("randomk:scaled=true|values=qsgd").unbiased
    assert str(grace_tf.get("randomk:scaled=true|values=qsgd")).endswith("values=qsgd")
    explicit = grace_tf.get("topk|values=qsgd:rounding=stochastic")
    assert str(explicit) == "topk|values=qsgd:rounding=stochastic"


@pytest.mark.parametrize(
    "spec",
    [
        "sketch|means=efsignsgd",
        "efsignsgd:block=512|scales=efsignsgd",
        "qsgd:rounding=nearest|scales=efsignsgd",
    ],
)
def test_what_stands_for_many_elements_is_refined_without_a_residual(spec):
    x = np.full([100_001 if "sketch" in spec else 513], 1e-6, np.float32)
    x[-1] = 1.0
    composite, ctx = grace_tf.get(spec), context(x.shape, 0)
    sent = composite.decompress(composite.compress(tf.constant(x), ctx), ctx.public())
    assert np.linalg.norm(sent - x) > 2 * np.linalg.norm(x)
    assert not composite.nonexpansive
    with pytest.raises(ValueError, match="nonexpansive"):
        grace_tf.Aggregator(spec, memory="residual")


class AlgebraTest(tf.test.TestCase):
    def test_stages_that_change_nothing_change_nothing(self):
        x, ctx = tf.constant(cases.normal((257,))), context((257,), worker=1)
        plain = grace_tf.get("topk:ratio=0.1")
        refined = plain.then(values=grace_tf.get("none"), indices=grace_tf.get("none"))
        payload = refined.compress(x, ctx)
        self.assertEqual(set(payload), {"values.values", "indices.values"})
        sent = plain.decompress(plain.compress(x, ctx), ctx.public())
        self.assertAllEqual(refined.decompress(payload, ctx.public()), sent)

    def test_a_part_is_decoded_by_its_stage_and_then_by_the_outer_method(self):
        x, ctx = tf.constant(cases.normal((257,))), context((257,), worker=1)
        outer, stage = grace_tf.get("topk:ratio=0.1"), grace_tf.get("fp16")
        sent = outer.compress(x, ctx)
        by_hand = outer.decompress(
            {**sent, "values": tf.cast(tf.cast(sent["values"], tf.float16), tf.float32)},
            ctx.public(),
        )
        composite = outer.then(values=stage)
        self.assertAllEqual(composite.decompress(composite.compress(x, ctx), ctx.public()), by_hand)

    def test_the_wire_holds_the_parts_of_the_stages(self):
        composite = grace_tf.get("topk:ratio=0.1|values=qsgd:bits=4")
        wire = composite.wire(tf.TensorSpec([1000], tf.float32))
        self.assertEqual(
            {k: v.shape[0] for k, v in wire.items()},
            {"indices": 17, "values.levels": 16, "values.scales": 1},
        )

    def test_stages_draw_from_streams_of_their_own(self):
        ctx = context((64,), worker=0)
        draws = {
            ctx.draw,
            ctx.stage(0).draw,
            ctx.stage(1).draw,
            ctx.stage(0).stage(0).draw,
            ctx.stage(0).stage(1).draw,
        }
        self.assertLen(draws, 5)
        with self.assertRaisesRegex(ValueError, "at most four stages"):
            ctx.stage(4)
        with self.assertRaisesRegex(ValueError, "nest at most three deep"):
            ctx.stage(3).stage(3).stage(3).stage(3)
        # What memories store has a draw that no stage reaches.
        with self.assertRaisesRegex(ValueError, "nest at most three deep"):
            ctx.stage(0).stage(0).stage(0).stage(0)
        self.assertGreater(ctx.stored().draw, ctx.stage(3).stage(3).stage(3).draw)

    def test_then_of_then_is_one_composite(self):
        none = grace_tf.get("none")
        one = grace_tf.get("topk").then(values=none).then(indices=none)
        self.assertEqual(one, grace_tf.get("topk").then(values=none, indices=none))
        self.assertEqual(grace_tf.get(str(one)), one)


def test_a_stage_may_be_a_spec():
    wanted = grace_tf.get("topk|values=qsgd:bits=4")
    assert grace_tf.get("topk").then(values="qsgd:bits=4") == wanted
    assert grace_tf.get("topk|indices=none").then(values="qsgd:bits=4") == grace_tf.get(
        "topk|indices=none|values=qsgd:bits=4"
    )
    with pytest.raises(ValueError, match="Unknown compressor 'qsdg'"):
        grace_tf.get("topk").then(values="qsdg")
    with pytest.raises(TypeError, match="A compressor is an instance, a name, a spec"):
        grace_tf.get("topk").then(values=4)
    with pytest.raises(ValueError, match="Composites do not nest"):
        grace_tf.get("topk").then(values="topk|values=fp16")


@pytest.mark.parametrize(
    ("spec", "sentence"),
    [
        ("topk|indices=fp16", "fp16 is lossy, but the part 'indices' of topk must stay exact"),
        ("threshold|count=qsgd", "must stay exact"),
        ("topk|signs=fp16", "topk has no payload part 'signs'; it has: values, indices"),
        ("powersgd|p=fp16", "only methods of one round compose"),
        ("topk|values=powersgd", "only methods of one round compose"),
        ("topk|values=signsgd", "signsgd gives a consensus and cannot refine a part"),
        ("qsgd|levels=fp16", "fp16 compresses float32 parts, but 'levels' is int32"),
        ("fp16|values=topk", "topk compresses float32 parts, but 'values' is float16"),
        ("topk|values=fp16|values=fp16", "A part of topk is refined twice"),
    ],
)
def test_refusals(spec, sentence):
    with pytest.raises(ValueError, match=sentence):
        grace_tf.get(spec)


def test_composites_do_not_nest():
    composite = grace_tf.get("topk|values=fp16")
    with pytest.raises(ValueError, match="Composites do not nest"):
        grace_tf.get("topk").then(values=composite)
    with pytest.raises(ValueError, match="Composites do not nest"):
        Then(composite, (("indices", grace_tf.get("none")),))
