"""The command line: grace-tf list | describe | check | bench | advise | run | doctor.

`python -m grace_tf` is the same.  Commands import what needs TensorFlow by themselves, since its
import takes seconds.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from grace_tf.cli import advise, bench, launcher
from grace_tf.cli.models import MODELS
from grace_tf.cli.run import start_up
from grace_tf.cli.tables import markdown, print_table, progress
from grace_tf.core.version import __version__

WRONG_ARGUMENT = 2  # as argparse
_VERBOSE = "show TensorFlow's start-up lines"


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command and returns the exit code; a wrong argument is one sentence and code 2."""
    options = _parser().parse_args(arguments)
    try:
        if options.command_function is not launcher.main:
            start_up.import_package(quiet=not options.verbose)
        return options.command_function(options)
    except (ValueError, TypeError) as error:
        print(f"grace_tf {options.command_name}: {error}", file=sys.stderr)
        return WRONG_ARGUMENT


def list_methods(options: argparse.Namespace) -> int:
    """The tables of registered methods and memories; as Markdown, of methods alone."""
    from grace_tf.cli import describe

    if options.markdown:
        print(markdown(describe.METHOD_COLUMNS, describe.method_rows(links=True)))
    else:
        print_table("Registered methods", describe.METHOD_COLUMNS, describe.method_rows())
        print_table("Registered memories", describe.MEMORY_COLUMNS, describe.memory_rows())
    return 0


def describe_spec(options: argparse.Namespace) -> int:
    """What one spec puts on the wire for one tensor."""
    from grace_tf.cli import describe
    from grace_tf.core import registry
    from grace_tf.core.scheduled import Scheduled
    from grace_tf.core.specs import name_of, spec_of
    from grace_tf.line.optimizer_settings import to_begin_with
    from grace_tf.line.settings import settings
    from grace_tf.testing import conformance

    of_a_file = ":" in options.spec
    target = conformance.load(options.spec) if of_a_file else options.spec
    compressor, memory = registry.resolve(target)
    shape = _shape(options.shape)
    if isinstance(compressor, Scheduled):
        rows = describe.stage_rows(settings(compressor), shape)
        columns = list(describe.STAGE_COLUMNS)
        if compressor.chosen:  # by the times of steps, not by their numbers
            columns[0] = "choice"
        print_table(f"{options.spec} on float32 {list(shape)}", columns, rows)
        return 0
    rows = describe.wire_rows(compressor, shape)
    print_table(f"{options.spec} on float32 {list(shape)}", describe.WIRE_COLUMNS, rows)
    print(f"a step     {describe.step_text(compressor, shape)}")
    print(f"of fp32    {describe.fp32_share(compressor, shape)}")
    if options.model:
        sent, times = describe.of_a_model(compressor, MODELS[options.model]())
        print(f"{options.model:<10} {sent:,} bytes a step, 1/{times:.1f} of fp32")
    if options.workers:
        shapes = MODELS[options.model]() if options.model else [shape]
        sent, kinds = describe.sent_by_a_worker(compressor, shapes, options.workers)
        print(f"{options.workers} workers  each sends {sent:,} bytes a step by {kinds}")
    name = name_of(target) if isinstance(target, str) else compressor.name
    print(f"defaults   {describe.defaults_text(name)}")
    print(f"memory     {spec_of(registry.get_memory(memory))}")
    if wanted := to_begin_with(compressor, registry.get_memory(memory)):
        print(f"begin with {wanted}")
    print(f"traits     {describe.traits(compressor)}")
    return 0


def check(options: argparse.Namespace) -> int:
    """The conformance suite on a spec, module:Class or file.py:Class; 1 where a check fails."""
    from grace_tf.testing import conformance

    target = conformance.load(options.target)
    with progress(f"Checking {options.target}"):
        report = conformance.check_compressor(target, quick=options.quick, report_only=True)
    print(report)
    return 0 if report.ok else 1


def measure(options: argparse.Namespace) -> int:
    """The speed of the codecs, or of a whole step."""
    from grace_tf.cli.bench import codecs

    return codecs.main(options)


def advice(options: argparse.Namespace) -> int:
    """Whether compression pays, with which method."""
    from grace_tf.cli.advise import command

    return command.main(options)


def diagnose(options: argparse.Namespace) -> int:
    """What this installation is made of."""
    from grace_tf.cli import doctor

    return doctor.main(options)


def _shape(text: str) -> tuple[int, ...]:
    try:
        shape = tuple(int(size) for size in text.split(","))
    except ValueError:
        raise ValueError(f"--shape takes sizes such as 1000,1000, not {text!r}.") from None
    if any(size < 1 for size in shape):
        raise ValueError(f"--shape takes sizes of at least 1, not {text!r}.")
    return shape


def _workers(text: str) -> int:
    if not (text.isdecimal() and int(text) > 1):
        raise argparse.ArgumentTypeError(f"takes a number of at least 2, not {text!r}")
    return int(text)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="grace-tf", description=__doc__.splitlines()[0])
    parser.add_argument("--version", action="version", version=f"grace_tf {__version__}")
    commands = parser.add_subparsers(dest="command_name", required=True, metavar="command")

    def command(name: str, function, summary: str) -> argparse.ArgumentParser:
        sub = commands.add_parser(name, help=summary, description=summary)
        sub.set_defaults(command_function=function)
        if name != "run":  # it has a wider one
            wider = "; and what importing has put into Keras" if name == "doctor" else ""
            sub.add_argument("--verbose", action="store_true", help=_VERBOSE + wider)
        return sub

    sub = command("list", list_methods, "the methods: bits per element, memory, traits, paper")
    sub.add_argument("--markdown", action="store_true", help="the methods, as in docs/methods.md")

    sub = command("describe", describe_spec, "what a spec puts on the wire")
    sub.add_argument("spec", help='such as "topk:ratio=0.01", or file.py:Class')
    sub.add_argument("--shape", default="1000,1000", help="of the tensor (1000,1000)")
    sub.add_argument("--model", choices=sorted(MODELS), help="tell a step of this model too")
    sub.add_argument(
        "--workers", type=_workers, help="the bytes that each of this many workers sends"
    )

    sub = command("check", check, "the conformance suite on a compressor")
    sub.add_argument("target", help="a spec, module:Class or file.py:Class")
    sub.add_argument("--quick", action="store_true", help="fewer shapes and draws")

    bench.add_arguments(command("bench", measure, "the speed of the codecs on this machine"))
    advise.add_arguments(command("advise", advice, "whether compression pays, and which method"))
    launcher.add_arguments(
        command("run", launcher.main, "start worker processes, here and on other hosts")
    )
    command("doctor", diagnose, "versions, native library, repairs, surroundings")
    return parser


if __name__ == "__main__":
    sys.exit(main())
