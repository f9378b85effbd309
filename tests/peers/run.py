"""Runs tests of Keras, tf_keras, tensorflow-addons or TensorFlow twice, compares them one by one.

Once plain and once through a door of grace_tf under `none`, which must change no outcome:

    python tests/peers/run.py keras
    python tests/peers/run.py tensorflow --sources FOLDER

FOLDER holds the sources of the project (of TensorFlow, say, the folder in which `tensorflow/python`
lies); those of Keras 3 are in its installed package.  See README.md.
"""

import argparse
import collections
import dataclasses
import importlib.util
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]


@dataclasses.dataclass(frozen=True)
class Suite:
    """Tests of a project: folders or files below its sources, and the door they go through."""

    paths: tuple[str, ...]
    door: str
    installed: str = ""  # the package that holds the tests itself
    imports: tuple[str, str] = ("", "")  # a pattern in import lines, and what it becomes
    devices: int = 0
    apart: bool = False  # a process for each file
    legacy: bool = False  # whether tf.keras is to mean tf_keras


DISTRIBUTE = "tensorflow/python/distribute/"
SUITES = {
    "keras": Suite(
        ("src/optimizers", "src/trainers", "src/callbacks", "src/saving"), "wrap", "keras"
    ),
    # The package that is installed calls its modules keras.src.
    "keras2": Suite(
        ("keras/optimizers",), "wrap", imports=(r"^from keras\.(?!src)", "from keras.src.")
    ),
    "tf_keras": Suite(
        tuple(
            f"tf_keras/{name}"
            for name in (
                "optimizers",
                "callbacks_test.py",
                "engine/training_test.py",
                "saving",
                "mixed_precision/loss_scale_optimizer_test.py",
            )
        ),
        "wrap",
        imports=(
            r"^(from|import) tf_keras(?!\.src|\.protobuf| import Sequential)(?=[. ])",
            r"\1 tf_keras.src",
        ),
        legacy=True,
    ),
    "addons": Suite(("tensorflow_addons/optimizers/tests",), "wrap"),
    "tensorflow": Suite(
        tuple(
            f"{DISTRIBUTE}{name}_test.py"
            for name in (
                "mirrored_strategy",
                "cross_device_ops",
                "strategy_common",
                "strategy_gather",
                "values",
            )
        ),
        "ops",
        devices=4,
        apart=True,
    ),
}


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("suite", choices=sorted(SUITES))
    parser.add_argument("--sources", type=pathlib.Path, help="folder of the project's sources")
    parser.add_argument("--files", default="", help="regular expression: only files that match")
    parser.add_argument("-k", dest="only", default="", help="as pytest's: only tests that match")
    parser.add_argument("--timeout", type=int, default=3600, help="seconds for each of the runs")
    parser.add_argument("--json", type=pathlib.Path, help="write all outcomes here")
    arguments = parser.parse_args(argv)
    suite = SUITES[arguments.suite]
    found = tests_of(suite, arguments.sources, arguments.files)
    if not found:
        parser.error(f"no tests of {arguments.suite} here; give the folder of --sources")
    with tempfile.TemporaryDirectory() as folder:
        files = copied(found, suite, pathlib.Path(folder))
        outcomes = {
            door: outcomes_of(files, door, suite, arguments) for door in ("plain", suite.door)
        }
    if arguments.json:
        arguments.json.write_text(json.dumps(outcomes, indent=1, sort_keys=True))
    return report(*outcomes.values())


def tests_of(suite, sources, wanted):
    """The files of the suite: (name, path)."""
    if sources is None:
        spec = importlib.util.find_spec(suite.installed) if suite.installed else None
        if spec is None:
            return []
        sources = pathlib.Path(spec.origin).parent
    files = []
    for path in suite.paths:
        at = sources / path
        files += sorted(at.rglob("*_test.py")) if at.is_dir() else [at] * at.exists()
    names = [str(file.relative_to(sources)).replace("/", "__") for file in files]
    return [pair for pair in zip(names, files) if re.search(wanted, pair[0])]


def copied(found, suite, folder):
    """The tests in one folder, apart from the packages they came from: the installed ones count."""
    made = []
    for name, file in found:
        text = file.read_text()
        if suite.imports[0]:
            text = re.sub(suite.imports[0], suite.imports[1], text, flags=re.MULTILINE)
        (folder / name).write_text(text)
        made.append(name)
    fixtures = found[0][1].parents[2] / "conftest.py"
    if "tensorflow_addons" in found[0][0] and fixtures.exists():
        (folder / "conftest.py").write_text(fixtures.read_text())
    return folder, made


def outcomes_of(files, door, suite, arguments):
    """{test: [outcome, reason]}, as the plugin logged them."""
    folder, names = files
    told = {}
    for together in [[name] for name in names] if suite.apart else [names]:
        log = folder / f"{door}.jsonl"
        log.write_text("")
        ended, last = tested(folder, together, door, suite, arguments, log)
        for line in log.read_text().splitlines():
            test, outcome, reason = json.loads(line)
            told[test] = [outcome, reason]
        # A crash or an error in the file itself is an outcome as well.
        clean = ended in ("exit code 0", "exit code 1", "exit code 5")
        told[f"the run of {together[0]}"] = ["ended" if clean else ended, "" if clean else last]
        print(f"{door}: {' '.join(together)[:60]} …: {last}", flush=True)
    return told


def tested(folder, names, door, suite, arguments, log):
    """How a run of pytest ended, and the last line that it printed."""
    options = ["-q", "--no-header", "-p", "through_the_doors", "-p", "no:cacheprovider"]
    options += [
        "--continue-on-collection-errors",
        "-c",
        "/dev/null",
        f"--rootdir={folder}",
        f"--door={door}",
        f"--outcomes={log}",
    ]
    options += [f"--devices={suite.devices}", *(["-k", arguments.only] if arguments.only else [])]
    options += [str(folder / name) for name in names]
    paths = [str(HERE), str(ROOT)]
    code = f"import sys; sys.path[:0] = {paths!r}\n"
    code += f"import pytest; sys.exit(pytest.main({options!r}))"
    try:
        done = subprocess.run(
            [sys.executable, "-c", code],
            cwd=folder,
            capture_output=True,
            text=True,
            timeout=arguments.timeout,
            env={**os.environ, "TF_USE_LEGACY_KERAS": "1" if suite.legacy else ""},
        )
    except subprocess.TimeoutExpired:
        return (f"stopped after {arguments.timeout} s",) * 2
    return f"exit code {done.returncode}", (done.stdout.strip().splitlines() or [""])[-1]


def report(plain, through):
    """Prints what differs; returns 1 where something does, or where a run did not reach all."""
    counts = collections.Counter(plain[test][0] for test in plain if "::" in test)
    differ = [test for test in sorted({*plain} & {*through}) if plain[test][0] != through[test][0]]
    alone = {*plain} ^ {*through}
    told = ", ".join(f"{n} {outcome}" for outcome, n in sorted(counts.items()))
    print(f"\n{sum(counts.values())} tests, plain: {told}; {len(differ)} differ through the door")
    for test in differ:
        reason = " ".join(through[test][1].split())[:200]
        print(f"  {test}: {plain[test][0]} -> {through[test][0]}: {reason}")
    if alone:
        print(f"{len(alone)} tests ran in one of the runs only; the first is {min(alone)}")
    return int(bool(differ or alone))


if __name__ == "__main__":
    sys.exit(main())
