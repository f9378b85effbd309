"""The spec language, in which hyperparameters are written: `topk:ratio=0.01|values=qsgd:bits=4`.

This file parses specs to names with values, and writes them.  It knows no method: the registry
knows which method a name means and which hyperparameters it has.

    spec  = head *("|" part "=" head)        a method, and parts of its payload compressed further
    head  = name [":" key "=" value *("," key "=" value)]
    value = plain, or plain "@" step *("/" plain "@" step)     what holds from which step on
    plain = "none", "true" or "false" in any case, a number, or a name

Compressors that follow each other are written `spec "@" step *(";" spec "@" step)`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from grace_tf.core.schedule import Schedule, piecewise

_NAMED: Mapping[str, Any] = {"none": None, "true": True, "false": False}


def parse(text: str) -> tuple[str, dict[str, Any], list[tuple[str, str]]]:
    """Parses a spec.

    Args:
      text: a spec.
    Returns: (name, hyperparameters, stages): `{key: value}` of the head, and for each stage the
      part and the spec of the stage, not parsed.
    Raises: ValueError for a text of another form, or a key that is given twice.
    """
    first, *rest = text.split("|")
    name, given = _head(first)
    return name, given, [_stage(stage) for stage in rest]


def parse_firsts(text: str) -> Schedule | None:
    """Parses a schedule of specs, `none@0;powersgd:rank=4@1000`; None for a single spec.

    Raises ValueError for a text of another form.
    """
    return _schedule(text, ";", "spec@step;spec@step", str.strip) if ";" in text else None


def name_of(text: str) -> str:
    """The text in the place of the name, also where the rest is no spec."""
    return text.split("|")[0].partition(":")[0].strip()


def spec_of(what: Any) -> str:
    """The spec that builds an equal instance: it names only what differs from the defaults.

    Args:
      what: a compressor or a memory that is registered.
    """
    fields = [(f.name, getattr(what, f.name), f.default) for f in dataclasses.fields(what)]
    return head(what.name, {name: value for name, value, default in fields if value != default})


def head(name: str, given: Mapping[str, Any]) -> str:
    """The spec of a method with hyperparameters."""
    values = [f"{key}={_spell(value)}" for key, value in given.items()]
    return f"{name}:{','.join(values)}" if values else name


def with_firsts(specs: Iterable[tuple[Any, int]]) -> str:
    """The schedule of specs, each with its first step."""
    return ";".join(f"{spec}@{first}" for spec, first in specs)


def with_stages(head: str, stages: Iterable[tuple[str, Any]]) -> str:
    """The spec of a composite, from the outer method's spec and (part, spec) of each stage."""
    return "|".join([head, *(f"{part}={stage}" for part, stage in stages)])


def _head(text: str) -> tuple[str, dict[str, Any]]:
    name, colon, rest = text.partition(":")
    given: dict[str, Any] = {}
    for pair in rest.split(",") if colon else ():
        key, equals, value = pair.partition("=")
        if not equals or not key.strip():
            raise ValueError(f"A spec is written name:key=value,key=value, not {text!r}.")
        if key.strip() in given:
            raise ValueError(f"{key.strip()!r} is given twice in {text!r}.")
        given[key.strip()] = _value(value.strip())
    return name.strip(), given


def _stage(text: str) -> tuple[str, str]:
    part, equals, spec = text.partition("=")
    if not equals:
        raise ValueError(f"A stage is written part=spec, as in values=qsgd:bits=4, not {text!r}.")
    return part.strip(), spec


def _schedule(text: str, between: str, form: str, read: Callable[[str], Any]) -> Schedule:
    values = {}
    for stage in text.split(between):
        value, at, first = stage.rpartition("@")
        if not (at and value.strip() and first.strip().isdecimal()):
            raise ValueError(f"A schedule is written {form}, not {text!r}.")
        if int(first) in values:
            raise ValueError(f"Two stages of {text!r} begin at step {int(first)}.")
        values[int(first)] = read(value)
    return piecewise(values)


def _value(text: str) -> Any:
    if "@" in text:
        return _schedule(text, "/", "value@step/value@step", lambda value: _value(value.strip()))
    if text.lower() in _NAMED:
        return _NAMED[text.lower()]
    for number in (int, float):
        try:
            return number(text)
        except ValueError:
            continue
    return text


def _spell(value: Any) -> str:
    if isinstance(value, Schedule):
        pairs = zip(value.values, value.boundaries)
        return "/".join(f"{_spell(each)}@{first}" for each, first in pairs)
    if value is None or isinstance(value, bool):
        return str(value).lower()
    return repr(value) if isinstance(value, float) else str(value)
