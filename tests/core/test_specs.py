"""The spec language by itself: texts to names with values, and back."""

import pytest

import grace_tf
from grace_tf.compressors.topk import TopK
from grace_tf.core import registry
from grace_tf.core.specs import name_of, parse, spec_of, with_stages
from grace_tf.memories.residual import Residual


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("topk", ("topk", {}, [])),
        (" topk : ratio = 0.1 ", ("topk", {"ratio": 0.1}, [])),
        ("a:x=None,y=TRUE,z=false", ("a", {"x": None, "y": True, "z": False}, [])),
        ("a:x=3,y=3.0,z=1e-3,w=max", ("a", {"x": 3, "y": 3.0, "z": 1e-3, "w": "max"}, [])),
        ("a:x=1|p=b:y=2| q =c", ("a", {"x": 1}, [("p", "b:y=2"), ("q", "c")])),
        ("", ("", {}, [])),
    ],
)
def test_what_a_text_says(text, found):
    assert parse(text) == found
    types = [type(value) for value in parse(text)[1].values()]
    assert types == [type(value) for value in found[1].values()]  # 3 is no 3.0
    assert name_of(text) == found[0]


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("a:", "A spec is written name:key=value,key=value, not 'a:'"),
        ("a:x", "A spec is written name:key=value,key=value, not 'a:x'"),
        ("a:=3", "A spec is written name:key=value,key=value, not 'a:=3'"),
        ("a:x=1,x=1", "'x' is given twice in 'a:x=1,x=1'"),
        ("a|b", "A stage is written part=spec, as in values=qsgd:bits=4, not 'b'"),
    ],
)
def test_texts_of_another_form(text, sentence):
    with pytest.raises(ValueError, match=sentence):
        parse(text)


def test_instances_are_spelled_by_what_differs_from_the_defaults():
    assert spec_of(TopK(0.25)) == "topk:ratio=0.25"
    assert spec_of(Residual()) == "residual"
    assert with_stages("a:x=1", [("p", "b:y=2"), ("q", TopK())]) == "a:x=1|p=b:y=2|q=topk"


def test_a_composite_grows_by_specs_and_instances():
    by_one = TopK(0.1).then(values="qsgd:rounding=nearest").then(indices=grace_tf.get("none"))
    at_once = TopK(0.1).then(values=grace_tf.get("qsgd", rounding="nearest"), indices="none")
    assert by_one == at_once
    assert str(by_one) == "topk:ratio=0.1|values=qsgd:rounding=nearest|indices=none"
    with pytest.raises(ValueError, match="is refined twice: values, values"):
        TopK(0.1).then(values="fp16").then(values="fp16")
    with pytest.raises(TypeError, match="is an instance, a name, a spec"):
        TopK(0.1).then(values=3)


def test_a_memory_has_no_stages():
    with pytest.raises(ValueError, match="A memory has no parts to compress, as 'residual|values"):
        registry.get_memory("residual|values=fp16")
