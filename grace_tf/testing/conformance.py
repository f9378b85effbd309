"""The conformance suite: tests the claims of any compressor, also of users' own.

    report = grace_tf.testing.check_compressor("topk:ratio=0.01")

No check knows a method's name; the method's traits decide which checks apply.  The checks of the
contract run first: where one of them fails, the others are not run.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import importlib.util
import logging
import pathlib
import sys
import textwrap
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from grace_tf.core import registry
from grace_tf.core.compressor import Compressor
from grace_tf.core.scheduled import unscheduled
from grace_tf.core.specs import name_of
from grace_tf.testing import (
    claim_checks,
    contract_checks,
    hop_checks,
    line_checks,
    memory_checks,
    payload_checks,
    size_checks,
)
from grace_tf.testing.subject import Finding, Subject, Verdict
from grace_tf.testing.workers import Disagreement

_MODULES = (
    *(contract_checks, payload_checks, size_checks, claim_checks),
    *(memory_checks, line_checks, hop_checks),
)
_QUICK = tuple(check for module in _MODULES for check in module.CHECKS)
_CAUSED = ("was not finite", "triggered tf.function retracing")
_SLOW = claim_checks.SLOW_CHECKS + line_checks.SLOW_CHECKS
_ALL = _QUICK + _SLOW


@dataclasses.dataclass(frozen=True)
class Check:
    """The result of one check.

    Attributes:
      name: of the check, as in the table.
      ok: whether it holds.
      sentence: what holds, what is wrong, or why the check does not apply.
      ran: False where the check was left out after an earlier failure; it is then not ok.
    """

    name: str
    ok: bool
    sentence: str
    ran: bool = True


@dataclasses.dataclass(frozen=True)
class Report:
    """All checks of one compressor; prints as a table.

    Attributes:
      spec: of the compressor.
      checks: the `Check`s, in the order in which they ran.
      not_tested: the names of the checks that `quick` has left out; what they test may be wrong.
    """

    spec: str
    checks: tuple[Check, ...]
    not_tested: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether every check holds that was to be run."""
        return all(check.ok for check in self.checks)

    @property
    def failed(self) -> list[str]:
        """The names of the checks that failed."""
        return [check.name for check in self.checks if check.ran and not check.ok]

    @property
    def not_run(self) -> list[str]:
        """The names of the checks that an earlier failure left out."""
        return [check.name for check in self.checks if not check.ran]

    def __str__(self) -> str:
        width = max(len(check.name) for check in self.checks)
        lines = [
            f"  {'ok' if check.ok else 'FAILED':<6}  {check.name:<{width}}  {check.sentence}"
            for check in self.checks
            if check.ran
        ]
        lines += self.left_out()
        lines += [f"  not tested (quick): {', '.join(self.not_tested)}"] * bool(self.not_tested)
        passed = sum(check.ok for check in self.checks)
        total = len(self.checks) + len(self.not_tested)
        return "\n".join([f"{self.spec}: {passed} of {total} checks passed", *lines])

    def left_out(self) -> list[str]:
        """A paragraph per cause: which checks were not run because of it."""
        by_cause: dict[str, list[str]] = {}
        for check in self.checks:
            if not check.ran:
                by_cause.setdefault(check.sentence, []).append(check.name)
        return [
            textwrap.fill(f"  {cause}: {', '.join(names)}", 100, subsequent_indent="    ")
            for cause, names in by_cause.items()
        ]


def check_compressor(
    compressor: str | Compressor, *, quick: bool = False, report_only: bool = False
) -> Report:
    """Runs the suite over a compressor or a spec, with the memory that it has by default.

    Args:
      compressor: an instance of a registered class, a name or a spec.
      quick: leaves out the statistics, the toy training and some shapes; the report lists the
        checks that it leaves out.
      report_only: returns the report instead of raising where checks fail.
    Returns: a `Report`.
    Raises: AssertionError with a sentence for each failed check, unless `report_only`; ValueError
      or TypeError for what `grace_tf.get` refuses.
    """
    instance, memory = registry.resolve(compressor)
    subject = Subject(unscheduled(instance), registry.get_memory(memory), quick)
    with _without_what_checks_cause():
        done = run_checks(_QUICK if quick else _ALL, subject)
    report = Report(str(instance), tuple(done), tuple(map(_name, _SLOW)) if quick else ())
    if not report.ok and not report_only:
        raise AssertionError(_summary(report))
    return report


@contextlib.contextmanager
def _without_what_checks_cause() -> Iterator[None]:
    """Suppresses the log lines that checks cause on purpose: NaN, and retracing for each case."""

    def others(record: logging.LogRecord) -> bool:
        return not any(words in record.getMessage() for words in _CAUSED)

    loggers = [logging.getLogger(name) for name in ("grace_tf", "tensorflow")]
    for logger in loggers:
        logger.addFilter(others)
    try:
        yield
    finally:
        for logger in loggers:
            logger.removeFilter(others)


def run_checks(checks: Sequence[Callable[[Subject], Verdict]], subject: Subject) -> list[Check]:
    """Runs the checks in order; after a failed check of the contract it leaves out all others."""
    done: list[Check] = []
    cause = None
    for check in checks:
        found = _run(check, subject) if cause is None else _left_out(check, cause)
        for other in done:
            if other.ran and not other.ok and other.sentence == found.sentence:
                found = _left_out(check, other)  # it fails with the same error
        done.append(found)
        if not found.ok and check in contract_checks.CHECKS:
            cause = cause or found
    return done


def _left_out(check: Callable, cause: Check) -> Check:
    return Check(_name(check), False, f"not run because of {cause.name!r}", ran=False)


def _name(check: Callable) -> str:
    return check.__name__.replace("_", " ")


def _run(check: Callable[[Subject], Verdict], subject: Subject) -> Check:
    try:
        skipped = check(subject)
    except (Finding, Disagreement) as found:
        return Check(_name(check), False, str(found))
    except Exception as error:  # any exception of the compressor makes the check fail
        return Check(_name(check), False, subject.described(error))
    sentence = f"({skipped})" if skipped else (check.__doc__ or "").strip()
    return Check(_name(check), True, sentence)


def _summary(report: Report) -> str:
    lines = [f"  {c.name}: {c.sentence}" for c in report.checks if c.ran and not c.ok]
    lines += report.left_out()
    head = f"{report.spec} fails {len(report.failed)} of {len(report.checks)} checks:"
    return "\n".join([head, *lines])


def load(target: str) -> Compressor:
    """The compressor that a spec, "module:Class" or "path/to/file.py:Class" names.

    Args:
      target: one of these; a class is called without arguments, an instance is used as it is.
    Returns: the compressor.
    Raises: ValueError, which names what exists, where nothing has this name.
    """
    place, colon, name = target.partition(":")
    if name_of(target) in registry.available() or "=" in name or ";" in target:
        return registry.get(target)
    if not colon:
        known = registry.available()
        raise ValueError(
            f"{target!r} is no method ({', '.join(known)}) and not of the form module:Class or "
            f"file.py:Class{registry.meant(target, known)}"
        )
    module = _module_of_file(place) if place.endswith(".py") else _module(place)
    found = getattr(module, name, None)
    made = found() if isinstance(found, type) and issubclass(found, Compressor) else found
    if not isinstance(made, Compressor):
        kinds = [
            own
            for own, kind in vars(module).items()
            if isinstance(kind, type)
            and issubclass(kind, Compressor)
            and kind.__module__ == module.__name__
        ]
        raise ValueError(
            f"{place} has no compressor {name!r}; it has: {', '.join(kinds) or 'none'}."
        )
    return made


def _module(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        raise ValueError(f"There is no module {name!r}: {error}.") from None


def _module_of_file(path: str) -> Any:
    file = pathlib.Path(path)
    if not file.is_file():
        raise ValueError(f"There is no file {path!r}.")
    spec = importlib.util.spec_from_file_location(file.stem, file)
    module = importlib.util.module_from_spec(spec)
    # Dataclasses look their module up by name.
    sys.modules.setdefault(file.stem, module)
    spec.loader.exec_module(module)
    return module
