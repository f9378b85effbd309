"""The list of methods and memories; turns names, specs and recipes into instances of them."""

from __future__ import annotations

import dataclasses
import inspect
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from grace_tf.core import compressor as contract
from grace_tf.core.compressor import Compressor
from grace_tf.core.hyperparameters import check_names, meant
from grace_tf.core.memory import Memory
from grace_tf.core.schedule import Schedule
from grace_tf.core.scheduled import KEYS, Scheduled, composite, joined, plain_stages
from grace_tf.core.specs import parse, parse_firsts
from grace_tf.core.then import Then

KEYWORDS = (
    "memory",
    "granularity",
    "exchange",
    "hierarchical",
    "min_elements",
    "exclude",
    "bucket_bytes",
    "seed",
    "check_every",
    "average_logs",
)
# Arguments of `wrap`, `Aggregator` and the like: no hyperparameter may have one of these names.
_OTHERS = "optimizer compressor variables inner reduce grads name".split()
RESERVED = frozenset([*KEYWORDS, *_OTHERS, *KEYS])


@dataclasses.dataclass(frozen=True)
class Entry:
    """One registered name: how to build its method, and its row in the tables."""

    name: str
    build: Callable[..., Any]  # keywords -> Compressor, or (Compressor, Memory) for a recipe
    parameters: dict[str, Any]  # name -> default
    family: str
    paper: str
    memory: str | None  # the recipe's memory; None: decided by the compressor's traits
    examples: tuple[str, ...]
    doc: str


_COMPRESSORS: dict[str, Entry] = {}
_MEMORIES: dict[str, type] = {}
_CHOICES: dict[str, Callable[..., Scheduled]] = {}


def register(
    name: str,
    *,
    family: str = "other",
    paper: str = "-",
    memory: str | None = None,
    examples: tuple[str, ...] = (),
):
    """Class decorator: makes a compressor or a memory a frozen dataclass, listed under `name`.

    Args:
      name: lower-case letters, digits and _; its name in specs and tables.
      family, paper: for the tables of methods and memories.
      memory: of a compressor, the name of the memory that its paper uses; without one "auto" means
        residual for a nonexpansive compressor, else none.
      examples: further specs; the conformance suite also runs those of a compressor, and the table
        also lists those of a memory.
    Returns: a decorator, which returns the dataclass.
    Raises: ValueError for a name that is taken or ill-formed, or a reserved field name; TypeError
      for a class that is neither compressor nor memory.
    """

    def declare(cls: type) -> type:
        if not (isinstance(cls, type) and issubclass(cls, (Compressor, Memory))):
            raise TypeError(
                f"register({name!r}) takes a subclass of grace_tf.Compressor or grace_tf.Memory, "
                f"not {cls!r}."
            )
        if "__dataclass_params__" not in vars(cls):
            cls = dataclasses.dataclass(frozen=True)(cls)
        cls.name = name
        if issubclass(cls, Memory):
            _check_name(name, cls, _MEMORIES.get(name))
            cls.family, cls.paper, cls.examples = family, paper, tuple(examples)
            _MEMORIES[name] = cls
            return cls
        parameters = {f.name: _default(f) for f in dataclasses.fields(cls)}
        _add(
            Entry(name, cls, parameters, family, paper, memory, tuple(examples), cls.__doc__ or "")
        )
        return cls

    return declare


def recipe(name: str, *, family: str, paper: str, examples: tuple[str, ...] = ()):
    """Function decorator: lists a function of hyperparameters that returns (compressor, memory).

    Args:
      name: lower-case letters, digits and _; users give it in place of a compressor's name.
      family, paper, examples: as for `register`.
    Returns: a decorator, which returns the function.  The parameters of the function are the
      hyperparameters; the memory that it returns is a name or an instance.
    Raises: ValueError for a name that is taken or ill-formed, or a reserved parameter name.

    Example:

        @grace_tf.recipe("tenth", family="sparse", paper="-")
        def tenth(bits: int = 8):
            return grace_tf.get(f"topk:ratio=0.1|values=qsgd:bits={bits}"), "none"
    """

    def declare(function: Callable) -> Callable:
        parameters = {
            p.name: None if p.default is p.empty else p.default
            for p in inspect.signature(function).parameters.values()
        }
        _add(
            Entry(
                name,
                function,
                parameters,
                family,
                paper,
                None,
                tuple(examples),
                function.__doc__ or "",
            )
        )
        return function

    return declare


def choice(name: str):
    """Function decorator: gives a name to several methods, from which a training chooses.

    It is no method itself, so the tables and the conformance suite do not list it.

    Args:
      name: users give it in place of a compressor's name.
    Returns: a decorator, which returns the function; that takes hyperparameters and returns the
      stages to choose from.
    """

    def declare(function: Callable[..., Scheduled]) -> Callable[..., Scheduled]:
        _check_name(name, function, _CHOICES.get(name) or _COMPRESSORS.get(name))
        _CHOICES[name] = function
        return function

    return declare


def _default(field: dataclasses.Field) -> Any:
    return None if field.default is dataclasses.MISSING else field.default


def _add(entry: Entry) -> None:
    taken = _COMPRESSORS.get(entry.name)
    _check_name(entry.name, entry.build, taken.build if taken else _CHOICES.get(entry.name))
    clash = sorted(RESERVED & set(entry.parameters))
    if clash:
        kind = "a keyword of wrap()" if clash[0] in KEYWORDS else "reserved for the doors"
        raise ValueError(f"{entry.name}: the field {clash[0]!r} is {kind}; choose another name.")
    _COMPRESSORS[entry.name] = entry


def _check_name(name: str, new: Any, taken: Any) -> None:
    # Running a module twice (python -m, a reload) registers the same thing again: no clash.
    if taken and getattr(taken, "__qualname__", "") != getattr(new, "__qualname__", ""):
        raise ValueError(f"The name {name!r} is taken by {taken!r}.")
    if not name.replace("_", "").isalnum() or name != name.lower():
        raise ValueError(f"A name is lower-case letters, digits and _, not {name!r}.")


def available() -> list[str]:
    """The names of all compressors and recipes, those that users registered included, sorted."""
    return sorted(_COMPRESSORS)


def entries() -> list[Entry]:
    """The registered methods, sorted by name."""
    return [_COMPRESSORS[name] for name in available()]


def resolve(
    what: str | Compressor | Scheduled | Schedule, **hyperparameters: Any
) -> tuple[Compressor | Scheduled, str | Memory]:
    """(compressor, its recipe's memory) of an instance, a name with keywords, a spec or a schedule.

    For a schedule the memory is that of the last stage.
    """
    stages = parse_firsts(what) if isinstance(what, str) else what
    if isinstance(stages, (Compressor, Scheduled, Schedule)) and hyperparameters:
        kind = "an instance" if isinstance(stages, Compressor) else "a schedule"
        raise TypeError(f"{what} is {kind}; give its hyperparameters to its constructor.")
    if isinstance(stages, Compressor):
        _check_registered(stages, _COMPRESSORS)
        return stages, _auto_memory(stages, _COMPRESSORS[stages.name].memory)
    if isinstance(stages, Scheduled):
        return stages, None if stages.chosen else stages.stages[-1].memory
    if isinstance(stages, Schedule):
        return _one([(i, *resolve(c)) for i, c in zip(stages.boundaries, stages.values)])
    if not isinstance(what, str):
        raise TypeError(
            f"A compressor is an instance, a name, a spec or a mapping of these, not {what!r}."
        )
    return _named(what, hyperparameters)


def _named(what: str, hyperparameters: Mapping[str, Any]) -> tuple[Any, str | Memory]:
    """Resolves a name or spec to (compressor, memory)."""
    name, given, parts = parse(what)
    both = sorted(set(given) & set(hyperparameters))
    if both:
        raise TypeError(f"{both[0]!r} is given both in the spec {what!r} and as a keyword.")
    if name in _CHOICES:
        return _chosen(name, {**given, **hyperparameters}, parts)
    if name not in _COMPRESSORS:
        raise ValueError(
            f"Unknown compressor {name!r}; available: {', '.join(available())}"
            f"{_as_spec(name) or meant(name, available())}"
        )
    entry = _COMPRESSORS[name]
    given.update(hyperparameters)
    plain = {key for key in given if key not in KEYS}
    check_names(name, plain, entry.parameters, KEYWORDS if hyperparameters else ())
    dense, stages = plain_stages(name, given, entry.parameters)
    built = [(first, *_built(entry, each, parts)) for first, each in stages]
    return _one([(0, *resolve("none")), (dense, *_one(built))] if dense else built)


def _chosen(name: str, given: Mapping[str, Any], parts: Iterable[tuple[str, str]]) -> tuple:
    """(the stages to choose from, None): each has its own memory."""
    build = _CHOICES[name]
    check_names(name, given, list(inspect.signature(build).parameters), KEYWORDS)
    made = build(**given)
    return (made.then(**dict(parts)) if parts else made), None


def _as_spec(text: str) -> str:
    """The end of a message about a known name that is followed by something else than a colon."""
    name, *values = re.split(r"[\s,()]+", text.rstrip(" )"))
    return f"; did you mean '{name}:{','.join(values)}'?" if name in _COMPRESSORS else ""


def _built(entry: Entry, given: Mapping[str, Any], parts: Iterable[tuple[str, str]]):
    built = entry.build(**given)
    compressor, memory = built if isinstance(built, tuple) else (built, entry.memory)
    for part, stage in parts:
        compressor = compressor.then(**{part: stage})
    if isinstance(compressor, Scheduled):
        return compressor.remembering(memory and get_memory(memory)), None
    return compressor, memory if isinstance(built, tuple) else _auto_memory(compressor, memory)


def _one(stages: Sequence[tuple[int, Any, Any]]) -> tuple[Any, str | Memory]:
    """(compressor, memory) for stages that follow each other; plain where all are the same."""
    ((_, compressor, memory), *others) = stages
    if not others and not isinstance(compressor, Scheduled):
        return compressor, memory
    return joined([(first, c, None if m is None else get_memory(m)) for first, c, m in stages])


def _check_registered(what: Compressor | Memory, names: Mapping[str, Any]) -> None:
    if what.name not in names:
        raise ValueError(
            f"{type(what).__name__} is not registered; decorate it with @grace_tf.register(name)."
        )


def _auto_memory(compressor: Compressor, memory: str | None) -> str:
    """The memory of the entry; "none" where a stage of a composite does not allow it."""
    memory = memory or ("residual" if compressor.nonexpansive else "none")
    refused = get_memory(memory).requires_nonexpansive and not compressor.nonexpansive
    return "none" if refused else memory


def get(what: Any, **hyperparameters: Any) -> Compressor | Scheduled:
    """The compressor of a name with keywords, a spec such as "topk:ratio=0.01", or an instance.

    For a schedule it is a `Scheduled`, which holds one compressor for each stage.

    Args:
      what: a name, a spec, `name:key=value,key=value`, with parts of a composite behind bars
        ("topk:ratio=0.01|values=qsgd:bits=4"), or an instance, which is returned as it is.
      hyperparameters: those that the name or spec does not give itself.
    Returns: the compressor, a frozen dataclass; equal specs give equal compressors.
    Raises: ValueError for an unknown name, an ill-formed spec or a value out of range; TypeError
      for a hyperparameter that is unknown, of another type, beside an instance, or given twice.
    """
    return resolve(what, **hyperparameters)[0]


def get_memory(what: str | Memory) -> Memory:
    """The memory of a name, a spec or an instance."""
    if isinstance(what, Memory):
        _check_registered(what, _MEMORIES)
        return what
    if not isinstance(what, str):
        raise TypeError(f"A memory is an instance or a name, not {what!r}.")
    name, given, stages = parse(what)
    if stages:
        raise ValueError(f"A memory has no parts to compress, as {what!r} asks for.")
    if name not in _MEMORIES:
        known = ["auto", *memories()]
        raise ValueError(
            f"Unknown memory {name!r}; available: {', '.join(known)}{meant(name, known)}"
        )
    fields = [f.name for f in dataclasses.fields(_MEMORIES[name])]
    check_names(f"The memory {name}", given, fields, ())
    return _MEMORIES[name](**given)


def memories() -> list[str]:
    """The names of the memories, sorted."""
    return sorted(_MEMORIES)


def _composite(outer: Compressor, parts: Mapping[str, Any]) -> Compressor | Scheduled:
    """`outer` with these parts of its payload compressed by further stages."""
    inner = tuple(
        (part, stage if isinstance(stage, Compressor) else get(stage))
        for part, stage in parts.items()
    )
    if any(isinstance(each, Scheduled) for each in (outer, *(stage for _, stage in inner))):
        return composite(outer, inner, lambda c: get_memory(resolve(c)[1]))
    if isinstance(outer, Then):
        return Then(outer.outer, outer.inner + inner)
    return Then(outer, inner)


contract.compose = _composite
