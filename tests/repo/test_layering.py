"""Arrows point one way, and what keeps the code readable."""

import ast
import pathlib

import pytest
from arrows import MAY_IMPORT

from grace_tf.core import registry

ROOT = pathlib.Path(__file__).parents[2]
PACKAGE = ROOT / "grace_tf"
FILES = sorted(PACKAGE.rglob("*.py"))
NATIVE = sorted(p for kind in ("*.h", "*.cc", "*.cu") for p in (ROOT / "custom_ops").rglob(kind))

METHOD_FREE = (
    "wire",
    "keys",
    "plan",
    "plans",
    "row_rules",
    "lanes",
    "row_lanes",
    "chunks",
    "joined",
    "saved",
    "leaves",
    "restored",
    "state",
    "stages",
    "exchange",
    "lockstep",
    "two_hops",
    "aggregator",
    "keras",
    "distribute",
    "gradients",
    "transports",
    "handshake",
    "agreement",
    "divergence",
    "surroundings",
    "group",
)


def module(path):
    """The dotted name below grace_tf: "core.registry", "ops", ""."""
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def below(name, roots):
    return any(name == root or name.startswith(f"{root}.") for root in roots)


def imports(path):
    """The parts of grace_tf that a file imports, at any depth of its functions."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path.name}: relative import"
            names = [node.module]
            if node.module in (
                "grace_tf",
                "grace_tf.core",
                "grace_tf.transports",
                "grace_tf.compressors",
                "grace_tf.memories",
                "grace_tf.keras",
                "grace_tf.cli",
            ):
                names = [f"{node.module}.{alias.name}" for alias in node.names]
        else:
            continue
        yield from (
            name.removeprefix("grace_tf").lstrip(".")
            for name in names
            if name.split(".")[0] == "grace_tf"
        )


def rule(name):
    matching = [root for root in MAY_IMPORT if below(name, [root])]
    return MAY_IMPORT[max(matching, key=len)] if matching else None


def ids(paths):
    return [str(p.relative_to(ROOT)) for p in paths]


@pytest.mark.parametrize("path", FILES, ids=ids(FILES))
def test_arrows_point_one_way(path):
    allowed = rule(module(path))
    if allowed is None:
        return
    wrong = [name for name in imports(path) if not below(name, allowed)]
    assert not wrong, f"{module(path)} imports {wrong}; it may import {sorted(allowed)}"


@pytest.mark.parametrize("name", sorted(module(p) for p in (PACKAGE / "core").glob("*.py")))
def test_core_has_no_circle(name):
    """Whatever a file of core imports, in functions and for types too, leads back to none."""
    own = {module(path): path for path in (PACKAGE / "core").glob("*.py")}
    reached, waiting = set(), [name]
    while waiting:
        new = {other for other in imports(own[waiting.pop()]) if other in own} - reached
        reached |= new
        waiting += new
    assert name not in reached, f"{name} imports, through others, itself: {sorted(reached)}"


def test_methods_do_not_import_each_other():
    for kind in ("compressors", "memories"):
        for path in (PACKAGE / kind).glob("*.py"):
            if path.name != "__init__.py":
                assert not [name for name in imports(path) if below(name, [kind])], path.name


def test_every_file_of_a_method_is_on_the_list():
    for kind in ("compressors", "memories"):
        files = {p.stem for p in (PACKAGE / kind).glob("*.py")} - {"__init__"}
        listed = {name.split(".")[1] for name in imports(PACKAGE / kind / "__init__.py")}
        assert files == listed


def docstrings(tree):
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    for node in ast.walk(tree):
        if isinstance(node, kinds) and node.body and isinstance(node.body[0], ast.Expr):
            yield node.body[0].value


def default_compressors(tree):
    """The defaults of parameters called `compressor`: only there the line names a method."""
    for node in ast.walk(tree):
        if isinstance(node, ast.arguments):
            parameters = node.posonlyargs + node.args
            pairs = list(zip(parameters[::-1], node.defaults[::-1])) + list(
                zip(node.kwonlyargs, node.kw_defaults)
            )
            yield from (default for parameter, default in pairs if parameter.arg == "compressor")


@pytest.mark.parametrize(
    "path", [p for p in FILES if below(module(p), METHOD_FREE)], ids=lambda p: p.stem
)
def test_the_line_knows_no_method(path):
    tree = ast.parse(path.read_text())
    allowed = [*docstrings(tree), *default_compressors(tree)]
    named = [
        node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and not any(node is other for other in allowed)
        if isinstance(node.value, str) and node.value.split(":")[0] in registry.available()
    ]
    assert set(named) <= {"none"}, f"{path.name} names {named}"
    assert not [name for name in imports(path) if name.startswith(("compressors.", "memories."))]


def calls(path):
    """The dotted names of everything called or taken from a module in a file."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Attribute):
            yield ast.unparse(node), node
        elif isinstance(node, ast.Name):
            yield node.id, node


@pytest.mark.parametrize("path", FILES, ids=ids(FILES))
def test_state_randomness_and_configuration_have_their_places(path):
    name = module(path)
    called = [
        ast.unparse(node.func)
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call)
    ]
    # Process groups order their collectives by a variable, and the benchmark needs a model's.
    if name != "leaves" and not below(name, ["transports", "cli.bench_step"]):
        assert not {"tf.Variable", "ResourceVariable"} & set(called), "state is kept in leaves.py"
    used = [text for text, _ in calls(path)]
    if name not in ("ops.reference", "cli.bench", "cli.bench_step"):
        random = [
            t for t in used if t.startswith(("tf.random", "np.random")) or "StatelessRandom" in t
        ]
        if below(name, ["testing"]):
            random = [t for t in random if not t.startswith("np.random")]
        assert not random, "random numbers come from ops, under a key"
    if name not in (
        "group",
        "schedulers",
        "cli.addresses",
        "cli.doctor",
        "cli.far_end",
        "transports.horovod",
        "transports.rendezvous",
        "transports.process_group",
    ):
        assert not [t for t in used if t.startswith(("os.environ", "os.getenv"))], (
            "arguments, not environment"
        )


@pytest.mark.parametrize("path", FILES, ids=ids(FILES))
def test_no_method_is_treated_by_its_name(path):
    names = {*registry.available(), *registry.memories()}
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Compare):
            sides = [node.left, *node.comparators]
            attributes = {side.attr for side in sides if isinstance(side, ast.Attribute)}
            constants = {
                c.value for side in sides for c in ast.walk(side) if isinstance(c, ast.Constant)
            }
            told = f"line {node.lineno}: {ast.unparse(node)}: a needed exception is a missing trait"
            assert not ("name" in attributes and constants & names), told


@pytest.mark.parametrize("path", FILES + NATIVE, ids=ids(FILES + NATIVE))
def test_files_are_short(path):
    lines = len(path.read_text().splitlines())
    limit = 150 if path.parent.name in ("compressors", "memories") else 300
    assert lines <= limit, f"{lines} lines; at most {limit} are pleasant to read"


@pytest.mark.parametrize("path", FILES, ids=ids(FILES))
def test_functions_are_short(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            lines = node.end_lineno - node.lineno + 1
            assert lines <= 50, f"{node.name} has {lines} lines; at most 50 are pleasant to read"


def test_kernels_know_no_tensorflow():
    for path in NATIVE:
        if path.parent.name == "kernels":
            included = [
                line for line in path.read_text().splitlines() if line.startswith("#include")
            ]
            assert not [line for line in included if "tensorflow" in line or "ops/" in line], (
                path.name
            )
