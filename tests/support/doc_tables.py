"""The tables of the README and of docs/, each made of what is committed under benchmarks/results.

Renew them all by: python tests/support/doc_tables.py
"""

import functools
import json
import re
import statistics
import sys
from pathlib import Path

import library_runs
from cell_runs import CELLS, ENGINES

from grace_tf.cli import describe, tables
from grace_tf.cli.bench import codecs

ROOT = Path(__file__).parents[2]
sys.path.append(str(ROOT / "benchmarks"))  # last: tests have programs of the same names
sys.path.append(str(ROOT))  # for benchmarks.suite
from injection import tables as injected  # noqa: E402

from benchmarks import auto  # noqa: E402

README = ROOT / "README.md"
RESULTS = ROOT / "benchmarks" / "results"
TRANSFORMER = RESULTS / "transformer.jsonl"
LINK = RESULTS / "link-1gbit.json"
LINK_MODEL = RESULTS / "link-1gbit-resnet50.json"
LINK_HOROVOD = RESULTS / "link-1gbit-resnet50-horovod.json"
LINK_EDEN = RESULTS / "link-1gbit-eden.json"
LINK_HOSTS = RESULTS / "link-hierarchical.jsonl"
FAULTS = RESULTS / "faults.jsonl"
DEMO = RESULTS / "demo.jsonl"
AUTO = RESULTS / "auto.jsonl"
MONITOR = RESULTS / "monitor-1gbit.json"
STEPS = {
    "AVX2": RESULTS / "step-resnet50-avx2.jsonl",
    "AVX-512": RESULTS / "step-resnet50-avx512.jsonl",
    "Intel": RESULTS / "step-resnet50-intel.jsonl",
}
FIRST_STEP = RESULTS / "first-step.jsonl"
MEMORY = RESULTS / "memory-resnet50.json"
CODEC = RESULTS / "codec.jsonl"
XLA = RESULTS / "xla.json"
GRACE = RESULTS / "grace.json"
GPU_KERNELS = RESULTS / "gpu-kernels.jsonl"
TRAINING = RESULTS / "training.jsonl"
TRAINING_EDEN = RESULTS / "training-eden.jsonl"
SIGNS = RESULTS / "signs.jsonl"
MATRIX = RESULTS / "cells.jsonl"  # written by record_cells.py
KINDS = ("normal", "heavy")  # of the inputs whose error is compared with GRACE's
TUNED_WITH = 100  # the seed of the trainings that chose rate and momentum


def method_table():
    """What python -m grace_tf list --markdown prints."""
    return tables.markdown(describe.METHOD_COLUMNS, describe.method_rows(links=True))


def transformer_table():
    """The committed runs of examples/transformer.py, of three seeds."""
    runs = [json.loads(line) for line in TRANSFORMER.read_text(encoding="utf-8").splitlines()]
    rows = []
    for arm in dict.fromkeys((run["workers"], run["optimizer"]) for run in runs):
        mine = [run for run in runs if (run["workers"], run["optimizer"]) == arm]
        bits, (sent,) = [run["bits"] for run in mine], {run["sent"] for run in mine}
        share = f"1/{mine[0]['dense_sent'] / sent:.1f}"
        loss = [f"{statistics.mean(bits):.3f}", f"{max(bits):.3f}"]
        rows.append([*map(str, arm), *loss, describe.bytes_text(sent), share])
    columns = ["workers", "optimizer", "bits a character", "highest", "a worker sends", "of fp32"]
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


def link_eden_table():
    """The committed run of EDEN and QSGD over a link of 1 Gbit/s."""
    rows = json.loads(LINK_EDEN.read_text(encoding="utf-8"))["rows"]
    table = [
        [
            f"`{r['method']}`",
            f"{r['announced']:,}",
            f"{100 * r['over']:+.1f} %",
            f"{1000 * r['seconds']:.0f} ms",
            f"{r['seconds'] / rows[0]['seconds']:.2f}",
        ]
        for r in rows
    ]
    columns = ["method", "announced bytes", "more on the link", "exchange", "times that of qsgd"]
    return tables.markdown(columns, table)


def link_hosts_table():
    """The committed runs of several processes a host, over links of several speeds."""
    runs = [json.loads(line) for line in LINK_HOSTS.read_text(encoding="utf-8").splitlines()]
    table = [
        [
            run["link"],
            f"`{r['method']}`",
            *(f"{1000 * r[f'{way} seconds']:.0f} ms" for way in ("flat", "hierarchical")),
            f"{r['over']:.2f}",
            *(f"{r[f'{way} bytes'] / 1e6:.1f} MB" for way in ("flat", "hierarchical")),
        ]
        for run in runs
        for r in run["rows"]
    ]
    columns = ["link", "method", "flat", "hierarchical", "ratio", "host sends flat", "hierarchical"]
    return tables.markdown(columns, table)


def link_model_table():
    """The committed runs over a link of 1 Gbit/s with the shapes of a ResNet-50."""
    rows, horovods = (
        json.loads(path.read_text(encoding="utf-8"))["rows"] for path in (LINK_MODEL, LINK_HOROVOD)
    )
    assert [r["method"] for r in rows] == [r["method"] for r in horovods]
    table = [
        [
            f"`{r['method']}`",
            f"{r['announced']:,}",
            *_beside_half(r, rows),
            *_beside_half(h, horovods),
        ]
        for r, h in zip(rows, horovods)
    ]
    columns = ["method", "announced bytes", "exchange", "times as fast as fp16"]
    return tables.markdown([*columns, "through Horovod", "times as fast as its fp16"], table)


def _beside_half(row, rows):
    (half,) = [r["seconds"] for r in rows if r["method"] == "fp16"]
    return f"{1000 * row['seconds']:.0f} ms", f"{half / row['seconds']:.1f}"


def faults_table(name):
    """The committed runs of benchmarks/faults.py; `--table` prints the same."""
    return injected.of_file(FAULTS)[name]


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
                for s in codecs.STAGES
            ]
            rows.append([f"`{case['method']}`", *times, f"{stock[case['method']]:.0f}"])
    return tables.markdown(["method", *codecs.STAGES, "step, reference operations"], rows)


def step_table():
    """The committed runs of `bench --model resnet50`, on three machines."""
    by_machine = {}
    for machine, path in STEPS.items():
        header, *steps = map(json.loads, path.read_text(encoding="utf-8").splitlines())
        assert header["isa"] == ("avx2" if machine == "AVX2" else "avx512")
        assert header["cpu"].startswith("Intel") == (machine == "Intel")
        by_machine[machine] = {s["method"]: s for s in steps}
    rows = []
    for method, step in by_machine["AVX2"].items():
        figures = []
        for steps in by_machine.values():
            figures += [f"{steps[method]['step_ms']:.1f}", f"{steps[method]['step_reads']:.1f}"]
        nodes = f"{step['nodes_per_variable']:.1f}"
        rows.append([f"`{method}`", step["memory"], *figures, nodes])
    figures = [f"{unit}, {machine}" for machine in STEPS for unit in ("ms", "reads")]
    return tables.markdown(["method", "memory", *figures, "graph nodes a variable"], rows)


def memory_table():
    """The committed run of benchmarks/memory.py."""
    rows = json.loads(MEMORY.read_text(encoding="utf-8"))["rows"]
    table = [
        [f"`{r['method']}`", f"{r['state']:.1f}", f"{round(r['more_above_state'], 1) + 0.0:.1f}"]
        for r in rows
    ]
    return tables.markdown(["method", "its state", "beyond its state"], table)


def xla_table():
    """The committed run of benchmarks/xla.py: the clock's time and the processor's."""
    rows = []
    for row in json.loads(XLA.read_text(encoding="utf-8"))["rows"]:
        line = ["none: a plain optimizer" if row["method"] == "plain" else f"`{row['method']}`"]
        for unit in (row["seconds"], row["cpu"]):
            line += [f"{1000 * unit[name]:.0f}" for name in ("step", "step_xla")]
            line.append(f"{unit['xla']:.2f}")
        rows.append(line)
    heads = ["without XLA", "with XLA", "ratio", "processor, without", "processor, with", "ratio"]
    return tables.markdown(["method", *heads], rows)


def grace_table():
    """The times of the committed run of benchmarks/grace.py."""
    rows = [
        [
            f"`{r['method']}`",
            f"{r['grace_ms']:.0f}",
            f"{r['ours_ms']:.1f}",
            f"{r['times_as_fast']:.1f}",
        ]
        for r in json.loads(GRACE.read_text(encoding="utf-8"))["rows"]
    ]
    return tables.markdown(["method", "GRACE, ms", "grace_tf, ms", "times as fast"], rows)


def grace_errors_table():
    """The errors of the committed run of benchmarks/grace.py, and the bytes that were sent."""
    rows = []
    for r in json.loads(GRACE.read_text(encoding="utf-8"))["rows"]:
        cells = [f"`{r['method']}`"]
        for kind in KINDS:
            cells += [f"{r[f'{whose}_bytes_{kind}']:.3f}" for whose in ("grace", "ours")]
            cells += [f"{r[f'{whose}_error_{kind}']:.2g}" for whose in ("grace", "ours")]
        rows.append(cells)
    columns = ["method"]
    for tail in ("", ", heavy tail"):
        for what in ("bytes", "error"):
            columns += [f"GRACE's {what}{tail}", f"our {what}{tail}"]
    return tables.markdown(columns, rows)


def trainings():
    """The committed runs on test images: `{(method, memory): [run, …]}`."""
    found = {}
    for line in TRAINING.read_text(encoding="utf-8").splitlines():
        run = json.loads(line)
        if run["kind"] == "run" and run["seed"] != TUNED_WITH:
            found.setdefault((run["method"], run["memory"]), []).append(run)
    return found


def training_table():
    """The committed runs of benchmarks/training.py."""
    rows = []
    for (method, memory), runs in trainings().items():
        accuracies = [100 * run["test"] for run in runs]
        rows.append(
            [
                f"`{method}`",
                memory,
                f"{statistics.mean(accuracies):.2f}",
                f"{statistics.stdev(accuracies):.2f}",
                f"{len(runs)}",
                f"{runs[0]['bytes_per_step']:,}",
                f"{runs[0]['rate']:g}",
                f"{runs[0]['momentum']:g}",
            ]
        )
    columns = ["method", "memory", "test accuracy, %", "± of a run", "runs", "bytes a step"]
    return tables.markdown([*columns, "rate", "momentum"], rows)


def gpu_table():
    """The committed run of the kernels for GPUs."""
    lines = map(json.loads, GPU_KERNELS.read_text(encoding="utf-8").splitlines())
    rows = {}
    for r in lines:
        if "kernel" in r:
            times = f"{r['microseconds'] / r['copy_microseconds']:.1f}"
            rows.setdefault(r["kernel"], {})[r["list"]] = times, str(r["launches"])
    columns = ["call", "one tensor", "ResNet-50's 161", "kernels"]
    table = [
        [kernel, of["one tensor"][0], of["ResNet-50"][0], of["ResNet-50"][1]]
        for kernel, of in rows.items()
    ]
    return tables.markdown(columns, table)


def first_step_table():
    """The table of the results that benchmarks/first_step.py has written."""
    lines = map(json.loads, FIRST_STEP.read_text(encoding="utf-8").splitlines())
    rows = [
        [
            {"plain": "the plain optimizer"}.get(line["method"], f"`{line['method']}`"),
            "alone" if line["workers"] == 1 else "two",
            f"{line['seconds']:.1f}",
            f"{line['seconds_ratio']:.2f}",
            f"{line['cpu']:.1f}",
            f"{line['cpu_ratio']:.2f}",
            f"{line['nodes']:,}",
        ]
        for line in lines
    ]
    times = ["s", "times plain", "CPU s", "CPU times plain"]
    return tables.markdown(["method", "processes", *times, "graph nodes"], rows)


def eden_beside_qsgd():
    """The committed runs of both, by rate and momentum: `{(rate, momentum): [(eden, qsgd), …]}`.

    A pair is the test accuracies, %, of one seed.
    """
    found = {}
    for line in TRAINING_EDEN.read_text(encoding="utf-8").splitlines():
        run = json.loads(line)
        if run["kind"] == "run":
            arm = found.setdefault((run["rate"], run["momentum"]), {})
            arm.setdefault(run["seed"], {})[run["method"]] = 100 * run["test"]
    return {
        at: [(each["eden"], each["qsgd:bits=4"]) for each in seeds.values()]
        for at, seeds in found.items()
    }


def eden_beside_qsgd_table():
    """What `eden_beside_qsgd` finds, with the mean difference and its standard error."""
    rows = []
    for (rate, momentum), runs in eden_beside_qsgd().items():
        means = [f"{statistics.mean(each):.2f}" for each in zip(*runs)]
        differences = [ours - other for ours, other in runs]
        error = statistics.stdev(differences) / len(differences) ** 0.5
        difference = f"{statistics.mean(differences):+.2f} ± {error:.2f}"
        rows.append([f"{rate:g}, {momentum:g}", *means, difference, f"{len(runs)}"])
    columns = ["rate, momentum", "`eden`, %", "`qsgd:bits=4`, %", "difference", "pairs of runs"]
    return tables.markdown(columns, rows)


def signs_table():
    """The committed runs of benchmarks/signs.py."""
    found = {}
    for line in SIGNS.read_text(encoding="utf-8").splitlines():
        run = json.loads(line)
        if run["kind"] == "run":
            arm = tuple(run[name] for name in ("method", "memory", "rate", "momentum"))
            found.setdefault(arm, []).append(100 * run["test"])
    rows = []
    for (method, memory, rate, momentum), each in found.items():
        mean, spread = statistics.mean(each), statistics.stdev(each)
        cells = [f"`{method}`", memory, f"{rate:g}, {momentum:g}"]
        rows.append([*cells, f"{mean:.2f}", f"{spread:.2f}", f"{len(each)}"])
    columns = ["method", "memory", "rate, momentum", "test accuracy, %", "± of a run", "runs"]
    return tables.markdown(columns, rows)


def monitor_table():
    """The committed run of benchmarks/monitor.py over a link."""
    rows = []
    for row in json.loads(MONITOR.read_text(encoding="utf-8"))["rows"]:
        sent = row["metrics"]["sent"]
        own = (row["interface"] - row["plain_interface"]) / sent
        cells = [f"`{row['method']}`", f"{sent:,.0f}", f"+{100 * row['over']:.1f} %"]
        rows.append([*cells, f"{100 * own:.1f} points"])
    columns = ["method", "`grace_bytes`", "more on the interface", "of which the Monitor's own"]
    return tables.markdown(columns, rows)


def auto_table():
    """The committed runs of benchmarks/auto.py, without what no place has."""
    _, columns, rows = auto.table(auto.read(AUTO))
    told = [name for name, cells in zip(columns, zip(*rows)) if {*cells} != {"-"}]
    kept = [[cell for name, cell in zip(columns, row) if name in told] for row in rows]
    return tables.markdown(told, kept)


def matrix():
    """The recorded answers: `{(version of TensorFlow, engine, cell): answer}`."""
    lines = [json.loads(line) for line in MATRIX.read_text(encoding="utf-8").splitlines()]
    return {(line["tensorflow"], line["engine"], line["cell"]): line["answer"] for line in lines}


def matrix_table(version):
    """What works under which engine, as test_cells.py finds it."""
    found = matrix()
    rows = [
        [title, *(found.get((version, engine, cell), "") for engine in ENGINES)]
        for cell, title in CELLS.items()
    ]
    return tables.markdown(["", *ENGINES], rows)


TABLES = {
    "step": step_table,
    "first-step": first_step_table,
    "grace": grace_table,
    "grace-errors": grace_errors_table,
    "training": training_table,
    "training-eden": eden_beside_qsgd_table,
    "signs": signs_table,
    "memory": memory_table,
    "methods": method_table,
    "transformer": transformer_table,
    "codec": codec_table,
    "link": link_table,
    "link-model": link_model_table,
    "link-eden": link_eden_table,
    "link-hosts": link_hosts_table,
    "libraries": library_runs.table,
    "monitor": monitor_table,
    "auto": auto_table,
    "xla": xla_table,
    "gpu": gpu_table,
    "faults": functools.partial(faults_table, "faults"),
    "fault-kinds": functools.partial(faults_table, "fault-kinds"),
    "cells-2.21": functools.partial(matrix_table, "2.21"),
    "cells-2.15": functools.partial(matrix_table, "2.15"),
}

PAGES = [README, *sorted((ROOT / "docs").glob("*.md"))]


def page_of(name):
    """The page in which the markers of a table stand."""
    (page,) = [page for page in PAGES if _block(name).search(page.read_text(encoding="utf-8"))]
    return page


def _block(name):
    return re.compile(f"(<!-- {name}: begin -->\n)(.*?)(\n?<!-- {name}: end -->)", re.S)


def table_in(text, name):
    """What stands between the markers of a table."""
    return _block(name).search(text).group(2)


def renew():
    """Writes the tables into their pages."""
    for name, make in TABLES.items():
        text, table = page_of(name).read_text(encoding="utf-8"), make()
        text = _block(name).sub(lambda m, table=table: f"{m[1]}{table}\n{m[3].lstrip()}", text)
        page_of(name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    renew()
