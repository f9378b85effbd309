"""The benchmark on small tensors: what it records, not how fast it is."""

import io
import json
from contextlib import redirect_stdout
from unittest import mock

import tensorflow as tf

import grace_tf
from grace_tf.__main__ import main
from grace_tf.cli import models
from grace_tf.cli.bench import codecs, step
from grace_tf.ops.backend import native

SIZE = 6000


class BenchTest(tf.test.TestCase):
    def test_every_registered_method_is_measured(self):
        methods = grace_tf.available()
        records = codecs.measure(methods, SIZE, workers=2, repeats=1)
        self.assertEqual([r["method"] for r in records], methods)
        for record in records:
            method = grace_tf.get(record["method"])
            spec = tf.TensorSpec(record["shape"], tf.float32)
            self.assertEqual(spec.shape.num_elements(), SIZE)
            self.assertEqual(record["wire_bytes"], method.nbytes(spec))
            stages = {stage for stage in codecs.STAGES if f"{stage}_ms" in record}
            if not method.one_round:
                self.assertEqual(stages, {"step"})
            elif method.commutes_with_sum:
                self.assertEqual(stages, {"compress", "decompress", "step"})
            else:
                self.assertEqual(stages, set(codecs.STAGES))
            for stage in stages:
                ratio = record[f"{stage}_ms"] / record["read_ms"]
                self.assertAllClose(record[f"{stage}_reads"], ratio)

    def test_the_error_is_of_what_was_sent(self):
        methods = ["none", "fp16", "topk:ratio=1.0", "topk:ratio=0.5", "signsgd"]
        records = codecs.measure(methods, SIZE, workers=3, repeats=1)
        none, fp16, all_kept, half, signs = [r["relative_error"] for r in records]
        self.assertEqual((none, all_kept), (0.0, 0.0))
        self.assertBetween(fp16, 1e-5, 2**-11)
        self.assertBetween(half, 0.01, 0.5)
        self.assertBetween(signs, 0.1, 1.0)  # at its best scale

    def test_progress_is_told_as_often_as_announced(self):
        """The bar's total is counted before; it must end full."""
        for against in (None, "reference"):
            with mock.patch.object(codecs, "progress") as progress, redirect_stdout(io.StringIO()):
                options = ["--methods", "qsgd", "topk", "--sizes", "1e3,2e3", "--repeats", "2"]
                main(["bench", *options, *(["--against", against] if against else [])])
            shown = progress.return_value.__enter__.return_value
            self.assertEqual(shown.advance.call_count, progress.call_args[0][1])
            self.assertEqual(shown.say.call_args_list[-1][0][0], "2,000 elements: done.")

    def test_the_tensor_is_a_matrix_as_square_as_can_be(self):
        shapes = [codecs._shape(n) for n in (1_000_000, 12, 7)]
        self.assertEqual(shapes, [(1000, 1000), (4, 3), (7, 1)])


def test_json_lines_begin_with_the_machine(tmp_path, capsys):
    file = tmp_path / "lines.jsonl"
    arguments = ["bench", "--methods", "signsgd", "--sizes", "1e3,2e3", "--repeats", "2"]
    assert main([*arguments, "--against", "reference", "--json", str(file)]) == 0
    header, *cases = [json.loads(line) for line in file.read_text().splitlines()]
    assert header["kind"] == "machine"
    assert (header["tensorflow"], header["repeats"]) == (tf.__version__, 2)
    implementations = ["native", "reference"] if native.available() else ["reference"]
    assert header["operations"] == implementations[0]
    wanted = [(n, o) for n in (1000, 2000) for o in implementations]
    assert [(c["elements"], c["operations"]) for c in cases] == wanted
    assert header["read"] in capsys.readouterr().out


class StepTest(tf.test.TestCase):
    def test_a_whole_step_is_measured_with_its_state_and_its_nodes(self):
        shapes = [(40, 30), (2000,), (7,)]
        with mock.patch.dict(step.MODELS, {"toy": lambda: shapes}):
            records = step.measure(["qsgd", "topk"], "toy", repeats=2)
        for record, memory in zip(records, ("none", "residual")):
            self.assertEqual((record["elements"], record["memory"]), (3207, memory))
            self.assertAllClose(record["step_reads"], record["step_ms"] / record["read_ms"])
            self.assertGreater(record["nodes_per_variable"], 2)
            self.assertGreater(record["bytes_per_step"], 28)

    def test_nodes_of_called_functions_count(self):
        inner = tf.function(lambda x: x + x * x)
        outer = tf.function(lambda x: inner(x)).get_concrete_function(tf.constant(1.0))
        self.assertGreaterEqual(step.count_nodes(outer.graph), 2 + 2)

    def test_a_resnet50_has_its_shapes(self):
        shapes = models.resnet50()
        self.assertLen(shapes, 161)
        self.assertEqual(sum(tf.TensorShape(s).num_elements() for s in shapes), 25_557_032)

    def test_a_bert_base_has_its_shapes(self):
        shapes = models.bert_base()
        self.assertLen(shapes, 206)
        self.assertEqual(sum(tf.TensorShape(s).num_elements() for s in shapes), 110_106_428)
