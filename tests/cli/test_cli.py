"""The command line, in this process: what each command prints and how it refuses."""

import io
import os
import re
import subprocess
import sys
from pathlib import Path
from unittest import mock

import pytest
import tensorflow as tf

import grace_tf
from grace_tf.__main__ import main
from grace_tf.cli import describe, tables

PACKAGE = str(Path(grace_tf.__file__).parents[1])


def test_list_has_every_registered_method(capsys):
    assert main(["list"]) == 0
    methods, memories = capsys.readouterr().out.split("Registered memories")
    lines = methods.splitlines()
    named = [line.split()[0] for line in lines if line and line.split()[0] in grace_tf.available()]
    assert named == grace_tf.available()
    rows = [re.split(" {2,}", line.strip()) for line in memories.splitlines()]
    assert ["residual", "error feedback", "32", "nonexpansive", "arXiv:1901.09847"] in rows
    assert [
        "residual:dtype=bf16",
        "error feedback",
        "16",
        "nonexpansive",
        "arXiv:1901.09847",
    ] in rows
    assert ["diana", "estimates", "64", "unbiased", "arXiv:1901.09269"] in rows
    assert {*grace_tf.core.registry.memories()} <= {row[0] for row in rows}


def test_list_as_markdown_has_a_link_for_every_paper(capsys):
    assert main(["list", "--markdown"]) == 0
    rows = capsys.readouterr().out.splitlines()
    assert len(rows) == 2 + len(grace_tf.available())
    assert "| `topk` | sparsification | 0.406 | residual |" in "\n".join(rows)
    # GradZip's paper is in the proceedings of a workshop, without a number.
    assert sum("](https://" in row for row in rows) == len(
        {*grace_tf.available()} - {"none", "gradzip"}
    )


def test_describe_prints_the_parts_and_the_bytes(capsys):
    assert main(["describe", "topk:ratio=0.01", "--shape", "1000,1000"]) == 0
    printed = capsys.readouterr().out
    cells = [line.split() for line in printed.splitlines()]
    assert ["values", "float32", "10,000", "40,000"] in cells
    assert ["indices", "int32", "2,676", "10,704"] in cells
    assert ["of", "fp32", "1/78.89"] in cells
    assert "a step     50,704 bytes from each of several workers" in printed
    assert "defaults   topk:ratio=0.01,row_ratio=0.25\n" in printed
    assert ["memory", "residual"] in cells


def test_describe_tells_a_step_of_a_model(capsys):
    assert main(["describe", "acpsgd:rank=4", "--model", "resnet50"]) == 0
    assert "resnet50   876,428 bytes a step, 1/116.6 of fp32" in capsys.readouterr().out


def test_describe_of_a_file(capsys, tmp_path):
    honest = tmp_path / "honest.py"
    honest.write_text(_LIAR.replace("liar", "honest"))
    with mock.patch.dict("grace_tf.core.registry._COMPRESSORS"):
        assert main(["describe", f"{honest}:Liar", "--shape", "10"]) == 0
    cells = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["values", "float32", "10", "40"] in cells


def test_describe_of_a_composite_names_the_inner_parts(capsys):
    assert main(["describe", "topk:ratio=0.1|values=qsgd:rounding=nearest"]) == 0
    assert "values.levels" in capsys.readouterr().out


def test_describe_of_a_schedule_has_a_row_for_each_stage(capsys):
    assert main(["describe", "topk:ratio=0.25@0/0.01@100,dense=10", "--shape", "1000"]) == 0
    cells = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["0", "none", "none", "4,000", "1/1"] in cells
    assert ["10", "topk:ratio=0.25", "residual", "1,128", "1/3.546"] in cells
    assert ["100", "topk", "residual", "52", "1/76.92"] in cells


@pytest.mark.parametrize(
    "arguments, told",
    [
        (["check", "topk@0;qsgd@5"], "changes with the step: name the compressor of one stage."),
        (["describe", "topkk"], "Unknown compressor 'topkk'; available:"),
        (["describe", "topkk:ratio=2"], "Unknown compressor 'topkk'"),
        (["describe", "topk ratio=0.1"], "; did you mean 'topk:ratio=0.1'?"),
        (["describe", "no_such_file.py:Class"], "no_such_file.py"),
        (["describe", "topk:ratio=2"], "ratio is a fraction"),
        (["describe", "topk:fraction=0.1"], "has no hyperparameter 'fraction'"),
        (["describe", "topk", "--shape", "3,x"], "--shape takes sizes"),
        (["describe", "topk", "--shape", "3,0"], "at least 1"),
        (["check", "no_such_file.py:Class"], "no_such_file.py"),
        (["bench", "--methods", "topkk"], "Unknown compressor 'topkk'"),
        (["bench", "--sizes", "many"], "--sizes takes numbers"),
        (["bench", "--repeats", "0"], "--repeats is at least 1"),
    ],
)
def test_a_wrong_argument_is_one_sentence(capsys, arguments, told):
    assert main(arguments) == 2
    captured = capsys.readouterr()
    assert told in captured.err
    assert captured.err.count("\n") == 1
    assert captured.out == ""


def test_an_unknown_command_lists_the_commands(capsys):
    with pytest.raises(SystemExit) as stopped:
        main(["train"])
    assert stopped.value.code == 2
    told = capsys.readouterr().err
    for command in ("list", "describe", "check", "bench", "run", "doctor"):
        assert command in told


def test_check_passes_an_honest_method_and_fails_a_liar(capsys, tmp_path):
    assert main(["check", "fp16", "--quick"]) == 0
    assert "FAILED" not in capsys.readouterr().out
    liar = tmp_path / "liar.py"
    liar.write_text(_LIAR)
    with mock.patch.dict("grace_tf.core.registry._COMPRESSORS"):
        assert main(["check", f"{liar}:Liar", "--quick"]) == 1
    assert "FAILED" in capsys.readouterr().out


_LIAR = '''
import tensorflow as tf
import grace_tf

@grace_tf.register("liar", family="cast", paper="-")
class Liar(grace_tf.Compressor):
    """Says that nothing is lost, and loses half of it.

    Wire: values float32[n].
    Paper: none.
    Differs: none.
    """

    lossless = True

    def wire(self, spec):
        return {"values": tf.TensorSpec([spec.shape.num_elements()], tf.float32)}

    def compress(self, x, ctx):
        return {"values": tf.reshape(x, [-1]) / 2}

    def decompress(self, payload, ctx):
        return tf.reshape(payload["values"], ctx.spec.shape)
'''


def test_run_returns_the_exit_code_of_the_workers(tmp_path):
    script = tmp_path / "end.py"
    script.write_text("import sys; sys.exit(3)\n")
    assert main(["run", "-np", "2", str(script)]) == 3


def test_a_plain_table_aligns_its_columns():
    told = tables.plain("Title", ["a", "column"], [["longer", "1"], ["x", "2"]]).splitlines()
    assert told == ["Title", "a       column", "longer  1", "x       2"]


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_a_pipe_gets_whole_plain_lines_and_a_terminal_rich_s_folded_ones():
    row = ["topk:ratio=0.1|values=qsgd:bits=4 [/red]", "of " * 100]
    for columns in ("20", "80"):
        with mock.patch.dict(os.environ, {"COLUMNS": columns, "TERM": "xterm"}):
            pipe, terminal = io.StringIO(), Terminal()
            for file in (pipe, terminal):
                tables.print_table("Title [1]", ["spec", "words"], [row], file=file)
            assert pipe.getvalue() == tables.plain("Title [1]", ["spec", "words"], [row]) + "\n"
            drawn = re.sub(r"\x1b\[[\d;]*m", "", terminal.getvalue()).splitlines()
            assert drawn[0].rstrip() == "Title [1]"
            assert max(map(len, drawn)) <= int(columns)
            assert "".join(drawn).count("of") == 100
    assert "[/red]" in "".join(drawn)


def test_without_rich_a_terminal_gets_plain_lines_too():
    with mock.patch.dict("sys.modules", {"rich.console": None}):
        terminal = Terminal()
        tables.print_table("Title", ["a"], [["1"]], file=terminal)
        assert terminal.getvalue() == "Title\na\n1\n"
        with mock.patch("sys.stderr", Terminal()), tables.progress("work", 2) as shown:
            shown.advance("first")
            shown.say("half done.")
            assert sys.stderr.getvalue() == "half done.\n"


def test_progress_is_a_bar_on_a_terminal_and_what_is_said_on_a_pipe(capsys):
    with tables.progress("work", 2) as shown:
        shown.advance("first")
        shown.say("half [/x] done.")
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("", "half [/x] done.\n")
    terminal = Terminal()
    with mock.patch.dict(os.environ, {"COLUMNS": "80", "TERM": "xterm"}):
        with mock.patch("sys.stderr", terminal), tables.progress("work", 2) as shown:
            shown.advance("first")
            shown.say("half [/x] done.")
            shown.advance("second [/y]")
    drawn = re.sub(r"\x1b\[[\d;?]*[A-Za-z]", "", terminal.getvalue())
    assert "half [/x] done.\n" in drawn
    for state in (r"work +\S+ 0/2", r"first +\S+ +\S* ?1/2", r"second \[/y\] +\S+ +2/2"):
        assert re.search(state, drawn), (state, drawn)


def test_help_and_run_import_no_tensorflow():
    script = (
        "import runpy, sys; sys.argv[1:] = {words}; sys.orig_argv = ['python', '-m', 'grace_tf']\n"
        "try:\n    runpy.run_module('grace_tf', run_name='__main__')\n"
        "except SystemExit as end:\n    assert not end.code, end.code\n"
        "assert not {{'tensorflow', 'keras', 'numpy'}} & set(sys.modules)"
    )
    for words in (["--help"], ["describe", "--help"], ["--version"], ["run", "-np", "2", "true"]):
        done = subprocess.run(
            [sys.executable, "-c", script.format(words=words)],
            env={**os.environ, "PYTHONPATH": PACKAGE},
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr


# Processors without AVX-512 get the second line alone.
START_UP = re.compile("oneDNN custom operations are on|optimized to use available CPU instructions")


@pytest.mark.slow
def test_the_command_prints_no_start_up_lines():
    """In a process of its own, where TensorFlow is imported with its log levels as they are."""
    path = os.pathsep.join(filter(None, [PACKAGE, os.environ.get("PYTHONPATH")]))
    environment = {**os.environ, "PYTHONPATH": path, "CUDA_VISIBLE_DEVICES": "-1"}
    environment.pop("TF_CPP_MIN_LOG_LEVEL", None)

    def python(*words):
        ended = subprocess.run(
            [sys.executable, *words],
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=120,
        )
        # Where TensorFlow is built for GPUs and finds none, it prints this error. The command does
        # not hide errors.
        lines = ended.stderr.splitlines(keepends=True)
        ended.stderr = "".join(line for line in lines if "call to cuInit" not in line)
        return ended

    script = "import grace_tf, os; os.write(2, b'mine')"
    plain = python("-c", script).stderr  # what other programs print stays theirs
    assert START_UP.search(plain) or sys.platform != "linux"
    assert plain.endswith("mine")
    bench = ["-m", "grace_tf", "bench", "--sizes=1e3", "--methods=fp16", "--repeats=1"]
    assert python(*bench).stderr == "1,000 elements: done.\n"
    listed = python("-m", "grace_tf", "list", "--verbose")
    assert START_UP.search(listed.stderr) or sys.platform != "linux"
    assert "qsgd" in listed.stdout
    worker = ["run", "-np", "2", "--", sys.executable, "-c", script + "; os._exit(3)"]
    ended = python("-m", "grace_tf", *worker)
    assert (ended.returncode, ended.stdout) == (3, "")
    shown = [line for line in ended.stderr.splitlines() if line not in ("mine", "[1] mine")]
    assert shown
    for line in shown:  # who ended first, now and once more at the end
        assert re.match(r"\[grace_tf\] worker [01] ended with exit code 3", line), ended.stderr


def test_markdown_escapes_the_bars_of_composites():
    assert tables.markdown(["spec"], [["topk|values=qsgd"]]).endswith("| topk\\|values=qsgd |")


class AnnouncedBytesTest(tf.test.TestCase):
    def test_dense_and_compressed_variables_and_flags_add_up(self):
        from grace_tf.line.settings import settings

        kernel = tf.Variable(tf.zeros([100, 100]), name="kernel")
        bias = tf.Variable(tf.zeros([100]), name="bias")
        wanted = settings("topk:ratio=0.01", min_elements=1000)
        total = describe.announced_bytes(wanted, [kernel, bias])
        self.assertEqual(total, 4 * 100 + 4 * (19 + 8) + 4 * 100 + 4)
        two_buckets = settings("topk:ratio=0.01", min_elements=1000, bucket_bytes=1000)
        self.assertEqual(describe.announced_bytes(two_buckets, [kernel, bias]), total + 4)

    def test_a_step_of_one_tensor_is_what_workers_hand_over(self):
        for name in grace_tf.available():
            compressor, memory = grace_tf.core.registry.resolve(name)
            workers = grace_tf.testing.Workers(2, compressor, memory=memory)
            workers([[tf.random.stateless_normal([40, 30], [i, 1])] for i in range(2)])
            told = describe.step_text(compressor, [40, 30])
            begins, flags = (
                f"{workers.bytes_per_step - 4:,} bytes",
                f"{workers.bytes_per_step - 2:,}",
            )
            self.assertTrue(told.startswith((begins, flags)), (name, told))

    def test_bytes_for_people(self):
        told = [describe.bytes_text(n) for n in (12, 1536, 3 * 2**20)]
        self.assertEqual(told, ["12 B", "1.5 KiB", "3.0 MiB"])
