"""The conformance suite: whatever a compressor declares is tried, for ours and for yours.

    report = grace_tf.testing.check_compressor("topk:ratio=0.01")

No check knows a method's name; traits decide what is asked of it.
"""

from __future__ import annotations

import dataclasses
import importlib
import importlib.util
import pathlib
import sys
from typing import Any, Callable

from grace_tf.core import registry
from grace_tf.core.compressor import Compressor
from grace_tf.testing import claim_checks, line_checks, payload_checks
from grace_tf.testing.subject import Subject, Verdict

_QUICK = payload_checks.CHECKS + claim_checks.CHECKS + line_checks.CHECKS
_ALL = _QUICK + claim_checks.SLOW_CHECKS + line_checks.SLOW_CHECKS


@dataclasses.dataclass(frozen=True)
class Check:
    """What one check found: `sentence` says what holds, what is wrong, or why nothing was asked."""

    name: str
    ok: bool
    sentence: str


@dataclasses.dataclass(frozen=True)
class Report:
    """All checks of one compressor; prints as a table."""

    spec: str
    checks: tuple[Check, ...]

    @property
    def ok(self) -> bool:
        return not self.failed

    @property
    def failed(self) -> list[str]:
        """The names of the checks that failed."""
        return [check.name for check in self.checks if not check.ok]

    def __str__(self) -> str:
        width = max(len(check.name) for check in self.checks)
        lines = [
            f"  {'ok    ' if check.ok else 'FAILED'}  {check.name:<{width}}  {check.sentence}"
            for check in self.checks
        ]
        passed = len(self.checks) - len(self.failed)
        return "\n".join([f"{self.spec}: {passed} of {len(self.checks)} checks passed", *lines])


def check_compressor(
    compressor: str | Compressor, *, quick: bool = False, report_only: bool = False
) -> Report:
    """Runs the suite over a compressor or a spec, with the memory that it has by default.

    `quick` leaves out the statistics, the toy training and some shapes.  Raises AssertionError with
    the failed checks unless `report_only`.
    """
    instance, memory = registry.resolve(compressor)
    subject = Subject(instance, registry.get_memory(memory), quick)
    report = Report(
        str(instance), tuple(_run(check, subject) for check in (_QUICK if quick else _ALL))
    )
    if not report.ok and not report_only:
        raise AssertionError(_summary(report))
    return report


def _run(check: Callable[[Subject], Verdict], subject: Subject) -> Check:
    name = check.__name__.replace("_", " ")
    try:
        skipped = check(subject)
    except Exception as error:  # whatever a foreign compressor raises is a finding
        said = " ".join(str(error).split()) or "no reason given"
        told = said if isinstance(error, AssertionError) else f"{type(error).__name__}: {said}"
        return Check(name, False, told[:400])
    return Check(name, True, f"({skipped})" if skipped else (check.__doc__ or "").strip())


def _summary(report: Report) -> str:
    failed = [check for check in report.checks if not check.ok]
    lines = [f"  {check.name}: {check.sentence}" for check in failed]
    head = f"{report.spec} fails {len(failed)} of {len(report.checks)} checks:"
    return "\n".join([head, *lines])


def load(target: str) -> Compressor:
    """The compressor that a spec, "module:Class" or "path/to/file.py:Class" names.

    A class is made with its defaults; an instance is taken as it is.  Raises ValueError, naming
    what exists, where there is no such thing.
    """
    place, colon, name = target.partition(":")
    if place.split("|")[0].strip() in registry.available():
        return registry.get(target)
    if not colon:
        known = ", ".join(registry.available())
        raise ValueError(
            f"{target!r} is no method ({known}) and not of the form module:Class or file.py:Class."
        )
    module = _module_of_file(place) if place.endswith(".py") else _module(place)
    found = getattr(module, name, None)
    made = found() if isinstance(found, type) and issubclass(found, Compressor) else found
    if not isinstance(made, Compressor):
        kinds = [
            k for k, v in vars(module).items() if isinstance(v, type) and issubclass(v, Compressor)
        ]
        kinds = [k for k in kinds if getattr(module, k) is not Compressor]
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
