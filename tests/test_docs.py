"""The README says what the code does.  Renew its tables by: python tests/test_docs.py"""

import ast
import importlib.util
import json
import re
from pathlib import Path
from unittest import mock

import pytest
import tensorflow as tf

import grace_tf
from grace_tf.__main__ import _parser
from grace_tf.cli import bench, describe, tables
from grace_tf.core import registry
from grace_tf.core.specs import name_of

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"
GRACE_BUGS = ROOT / "docs" / "grace-bugs.md"
DIGITS = ROOT / "benchmarks" / "results" / "digits.jsonl"
LINK = ROOT / "benchmarks" / "results" / "link-1gbit.json"
LINK_MODEL = LINK.with_name("link-1gbit-resnet50.json")
STEP = ROOT / "benchmarks" / "results" / "step-resnet50.jsonl"
MEMORY = STEP.with_name("memory-resnet50.json")
CODEC = ROOT / "benchmarks" / "results" / "codec.jsonl"
SNIPPETS = re.findall(r"^```python\n(.*?)^```", README.read_text(encoding="utf-8"), re.M | re.S)


def method_table():
    """What python -m grace_tf list --markdown prints."""
    return tables.markdown(describe.METHOD_COLUMNS, describe.method_rows(links=True))


def digits_table():
    """The committed runs of the demo, of three seeds."""
    results = [json.loads(line) for line in DIGITS.read_text(encoding="utf-8").splitlines()]
    rows = [
        [
            f"`{r['method']}`",
            f"{r['accuracy']:.4f}",
            f"{min(r['accuracies']):.4f}",
            describe.bytes_text(r["bytes_per_step"]),
            f"1/{1 / r['ratio']:.1f}",
        ]
        for r in results
    ]
    columns = ["method", "test accuracy", "lowest", "bytes per step", "of fp32"]
    return tables.markdown(columns, rows)


def link_table():
    """The committed run over a link of 1 Gbit/s."""
    rows = [
        [
            f"`{r['method']}`",
            f"{r['announced']:,}",
            f"{100 * r['over']:+.1f} %",
            f"1/{r['ratio']:.2f}",
            f"{1000 * r['seconds']:.0f} ms",
        ]
        for r in json.loads(LINK.read_text(encoding="utf-8"))["rows"]
    ]
    columns = ["method", "announced bytes", "more on the link", "of fp32", "exchange"]
    return tables.markdown(columns, rows)


def link_model_table():
    """The committed run over a link of 1 Gbit/s with the shapes of a ResNet-50."""
    rows = json.loads(LINK_MODEL.read_text(encoding="utf-8"))["rows"]
    (half,) = [r["seconds"] for r in rows if r["method"] == "fp16"]
    table = [
        [f"`{r['method']}`", f"{r['announced']:,}", f"{1000 * r['seconds']:.0f} ms", speed]
        for r in rows
        for speed in [f"{half / r['seconds']:.1f}"]
    ]
    columns = ["method", "announced bytes", "exchange", "times as fast as fp16"]
    return tables.markdown(columns, table)


def codec_table():
    """The committed run of the benchmark, its largest size."""
    lines = [json.loads(line) for line in CODEC.read_text(encoding="utf-8").splitlines()]
    largest = max(line.get("elements", 0) for line in lines)
    cases = [line for line in lines if line.get("elements") == largest]
    stock = {c["method"]: c["step_ms"] for c in cases if c["operations"] == "reference"}
    rows = []
    for case in cases:
        if case["operations"] == "native":
            times = [
                f"{case[f'{s}_ms']:.1f} ({case[f'{s}_reads']:.1f})" if f"{s}_ms" in case else "-"
                for s in bench.STAGES
            ]
            rows.append([f"`{case['method']}`", *times, f"{stock[case['method']]:.0f}"])
    return tables.markdown(["method", *bench.STAGES, "step, reference operations"], rows)


def step_table():
    """The committed run of `bench --model resnet50`."""
    header, *steps = [json.loads(line) for line in STEP.read_text(encoding="utf-8").splitlines()]
    assert header["kind"] == "machine"
    rows = [
        [
            f"`{s['method']}`",
            s["memory"],
            f"{s['step_ms']:.1f}",
            f"{s['step_reads']:.1f}",
            f"{s['nodes_per_variable']:.1f}",
        ]
        for s in steps
    ]
    columns = ["method", "memory", "ms", "plain reads", "graph nodes a variable"]
    return tables.markdown(columns, rows)


def memory_table():
    """The committed run of benchmarks/memory.py."""
    rows = json.loads(MEMORY.read_text(encoding="utf-8"))["rows"]
    table = [
        [f"`{r['method']}`", f"{r['state']:.1f}", f"{round(r['more_above_state'], 1) + 0.0:.1f}"]
        for r in rows
    ]
    return tables.markdown(["method", "its state", "beyond its state"], table)


TABLES = {
    "step": step_table,
    "memory": memory_table,
    "methods": method_table,
    "digits": digits_table,
    "codec": codec_table,
    "link": link_table,
    "link-model": link_model_table,
}


def block(name):
    """A pattern of the README's text between the markers of a table."""
    return re.compile(f"(<!-- {name}: begin -->\n)(.*?)(\n?<!-- {name}: end -->)", re.S)


@pytest.mark.parametrize("name", TABLES)
def test_the_tables_are_fresh(name):
    found = block(name).search(README.read_text(encoding="utf-8")).group(2)
    assert found == TABLES[name](), "stale; renew it by: python tests/test_docs.py"


def test_the_digits_are_of_every_method_and_good_enough():
    results = [json.loads(line) for line in DIGITS.read_text(encoding="utf-8").splitlines()]
    assert {name_of(r["method"]) for r in results} == set(grace_tf.available())
    for result in results:
        assert result["workers"] == 2 and len(result["accuracies"]) >= 3
        assert result["bytes_per_step"] == result["announced_bytes"]
        assert min(result["accuracies"]) >= 0.95 or grace_tf.get(result["method"]).name == "signsgd"


def test_the_link_carried_what_was_announced():
    for row in json.loads(LINK.read_text(encoding="utf-8"))["rows"]:
        assert 0 < row["over"] < 0.1, row["method"]


def test_every_public_name_is_documented():
    text = README.read_text(encoding="utf-8")
    for name in grace_tf.__all__:
        if name.startswith("__"):
            continue
        assert re.search(rf"\b{name}\b", text), f"the README does not speak of {name}"
        assert (getattr(grace_tf, name).__doc__ or "").strip(), f"{name} has no docstring"


@pytest.mark.parametrize("name", grace_tf.available())
def test_every_method_says_what_it_sends_and_where_it_comes_from(name):
    entry = next(entry for entry in registry.entries() if entry.name == name)
    for section in ("Wire:", "Paper:", "Differs:"):
        assert re.search(rf"^\s*{section} \S", entry.doc, re.M), f"{name} lacks {section}"
    assert entry.family and entry.paper


@pytest.mark.parametrize("number", range(len(SNIPPETS)))
def test_snippets_compile(number):
    compile(SNIPPETS[number], f"README snippet {number}", "exec")


def test_there_are_snippets():
    assert len(SNIPPETS) >= 5


def test_the_method_of_the_readme_passes_the_suite(tmp_path):
    (snippet,) = [s for s in SNIPPETS if "class Turns" in s]
    assert len(snippet.splitlines()) <= 40
    file = tmp_path / "my_file.py"
    file.write_text(snippet, encoding="utf-8")
    spec = importlib.util.spec_from_file_location("my_file", file)
    module = importlib.util.module_from_spec(spec)
    with mock.patch.dict("sys.modules", {"my_file": module}):
        with mock.patch.dict("grace_tf.core.registry._COMPRESSORS"):
            spec.loader.exec_module(module)
            grace_tf.testing.check_compressor("turns", quick=True)


def test_the_memory_of_the_readme_forgets_a_quarter():
    (snippet,) = [s for s in SNIPPETS if "(grace_tf.Memory)" in s]
    with mock.patch.dict("grace_tf.core.registry._MEMORIES"):
        exec(snippet, {"grace_tf": grace_tf, "tf": tf})
        workers = grace_tf.testing.Workers(1, "topk:ratio=0.5", memory="low_pass")
        for _ in range(2):
            ((aggregate,),) = workers([[tf.constant([3.0, 1.0])]])
    assert aggregate.numpy().tolist() == [3, 0]
    assert workers.state.arrays()["0/memory/residual"].tolist() == [[0, 0.75 * 1.75]]


def test_specs_in_the_readme_exist():
    for spec in re.findall(r'"((?:topk|qsgd)[:|][^"]*)"', README.read_text(encoding="utf-8")):
        grace_tf.get(spec)


def test_commands_in_the_readme_exist():
    text = README.read_text(encoding="utf-8")
    known = next(a.choices for a in _parser()._actions if a.dest == "command_name")
    named = set(re.findall(r"python -m grace_tf (\w+)", text))
    assert named == set(known)
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for target in re.findall(r"^make ([\w-]+)", text, re.M):
        assert re.search(rf"^{target}:", makefile, re.M), target


def names_in(node, outside=""):
    """The classes and functions of a module as pytest names them, those below an `if` too."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, (ast.ClassDef, ast.FunctionDef)):
            yield outside + child.name
        if isinstance(child, ast.ClassDef):
            yield from names_in(child, f"{outside}{child.name}::")
        elif not isinstance(child, ast.FunctionDef):
            yield from names_in(child, outside)


def test_the_tests_of_the_page_of_bugs_exist():
    text = GRACE_BUGS.read_text(encoding="utf-8")
    rows = [line for line in text.splitlines() if re.match(r"\| \d", line)]
    assert [int(row.split("|")[1]) for row in rows] == list(range(1, 34))
    for row in rows:
        named = re.findall(r"`(tests/[\w/]+\.py)::([\w:]+)`", row.split("|")[4])
        assert named, f"no test in row {row[:60]}"
        for file, test in named:
            found = names_in(ast.parse((ROOT / file).read_text(encoding="utf-8")))
            assert "test_" in test and test in set(found), f"{file} has no {test}"


def test_links_lead_somewhere():
    text = README.read_text(encoding="utf-8")
    for target in re.findall(r"\]\(([^)#]+)\)", text):
        if "://" not in target:
            assert (ROOT / target).exists(), target


def renew():
    """Writes the tables into the README."""
    text = README.read_text(encoding="utf-8")
    for name, make in TABLES.items():
        table = make()
        text = block(name).sub(lambda m, table=table: f"{m[1]}{table}\n{m[3].lstrip()}", text)
    README.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    renew()
