"""Arrows between rooms point one way, and what keeps the code readable."""

import ast
import functools
import pathlib
import warnings

from allowed_imports import MAY_IMPORT

from grace_tf.core import registry

ROOT = pathlib.Path(__file__).parents[2]
PACKAGE = ROOT / "grace_tf"
FILES = sorted(PACKAGE.rglob("*.py"))
NATIVE = sorted(p for kind in ("*.h", "*.cc", "*.cu") for p in (ROOT / "custom_ops").rglob(kind))
BUILT = {"_ops.so", "libgrace_cuda.so", "libgrace_cuda.txt", "__pycache__"}

METHOD_FREE = ("line", "aggregation", "keras", "distribute", "transports")
NAMES_METHODS = ("line.settings", "line.grace_params", "keras.one_bit_adam")  # their subject
NAMES_OF_OTHERS = {"none", "bf16"}  # `hierarchical` may be "bf16" too

STATE = ("aggregation.state.variable_nodes", "transports", "cli.bench.step")
RANDOMNESS = (
    "ops.reference.random",
    "cli.advise.gradients",
    "cli.advise.subject",
    "cli.bench.codecs",
    "cli.bench.step",
)
ENVIRONMENT = (
    "aggregation.kept_memory",
    "transports.world.world",
    "transports.world.rank_from_environment",
    "transports.horovod.group",
    "transports.lifeline.secret",
    "transports.rendezvous",
    "transports.process_group",
    "cli.run.addresses",
    "cli.run.remote_worker",
    "cli.doctor",
)


def module(path):
    """The dotted name below grace_tf: "core.registry", "ops", ""."""
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module(path): path for path in FILES}


def below(name, roots):
    return any(name == root or (root and name.startswith(f"{root}.")) for root in roots)


def room(name):
    """The room of a module or of a name in it; None where no rule has one."""
    matching = [root for root in MAY_IMPORT if below(name, [root])]
    return max(matching, key=len) if matching else None


@functools.cache
def syntax(path):
    return ast.parse(path.read_text())


def imports(path):
    """The modules of grace_tf that a file imports: in functions and for types too."""
    for node in ast.walk(syntax(path)):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path.name}: relative import"
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        else:
            continue
        for name in names:
            if name.split(".")[0] == "grace_tf":
                name = name.removeprefix("grace_tf").lstrip(".")
                # A name in a module stands for the module, an imported module for itself.
                yield name if name in MODULES else name.rpartition(".")[0]


def reached(start, arrows):
    """All that can be reached from `start` over one arrow or more."""
    found, waiting = set(), [start]
    while waiting:
        new = set(arrows.get(waiting.pop(), ())) - found
        found |= new
        waiting += new
    return found


def room_arrows():
    arrows = {}
    for name, path in MODULES.items():
        others = {room(other) for other in imports(path)} - {room(name)}
        arrows.setdefault(room(name), set()).update(others)
    return arrows


def test_every_module_is_in_a_room_with_a_rule():
    assert not [name for name in MODULES if room(name) is None]
    rooms = {room(name) for name in MODULES}
    assert not [name for name in MAY_IMPORT if name not in rooms], "a rule for no module"


def test_arrows_between_rooms_point_one_way():
    wrong = [
        f"{name} imports {other}"
        for name, path in MODULES.items()
        for other in imports(path)
        if room(other) != room(name) and not below(other, MAY_IMPORT[room(name)])
    ]
    assert not wrong


def test_no_circle_of_rooms_nor_of_modules():
    """Whatever one imports, in functions and for types too, does not lead back to it."""
    modules = {name: set(imports(path)) - {name} for name, path in MODULES.items()}
    for arrows in (room_arrows(), modules):
        assert not [name for name in arrows if name in reached(name, arrows)]


def test_a_chain_of_rooms_is_short():
    """The rooms of the package floor that import one another, one after the other."""
    arrows = {}
    for name, path in MODULES.items():
        own = name.partition(".")[0]
        arrows.setdefault(own, set()).update(other.partition(".")[0] for other in imports(path))
        arrows[own].discard(own)

    @functools.cache
    def chain(name):
        return 1 + max(map(chain, arrows[name]), default=0)

    assert max(map(chain, arrows)) <= 11


def test_floors_are_small():
    for folder, most in ((PACKAGE, 16), (PACKAGE / "ops", 22), (PACKAGE / "transports", 22)):
        entries = {entry.name for entry in folder.iterdir()} - BUILT
        assert len(entries) <= most, f"{folder.name} has {len(entries)} entries; at most {most}"


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


def test_the_line_and_the_transports_know_no_method():
    for name, path in MODULES.items():
        if not below(name, METHOD_FREE):
            continue
        tree = syntax(path)
        allowed = [*docstrings(tree), *default_compressors(tree)]
        named = [
            node.value
            for node in ast.walk(tree)
            if isinstance(node, ast.Constant) and not any(node is other for other in allowed)
            if isinstance(node.value, str) and node.value.split(":")[0] in registry.available()
        ]
        assert name in NAMES_METHODS or set(named) <= NAMES_OF_OTHERS, f"{name} names {named}"
        methods = [other for other in imports(path) if below(other, ["compressors", "memories"])]
        assert name == "line.settings" or not methods, f"{name} imports {methods}"


def test_state_randomness_and_configuration_have_their_places():
    for name, path in MODULES.items():
        nodes = list(ast.walk(syntax(path)))
        called = {ast.unparse(node.func) for node in nodes if isinstance(node, ast.Call)}
        # Process groups order their collectives by a variable; the benchmark makes a model's.
        if not below(name, STATE):
            made = {"tf.Variable", "ResourceVariable"} & called
            assert not made, f"{name}: variable_nodes.py makes the state"
        used = [ast.unparse(node) for node in nodes if isinstance(node, ast.Attribute)]
        if name not in RANDOMNESS:
            random = [
                text
                for text in used
                if text.startswith(("tf.random", "np.random")) or "StatelessRandom" in text
            ]
            if below(name, ["testing"]):
                random = [text for text in random if not text.startswith("np.random")]
            assert not random, f"{name}: random numbers come from ops, under a key"
        if name not in ENVIRONMENT:
            environment = [text for text in used if text.startswith(("os.environ", "os.getenv"))]
            assert not environment, f"{name}: arguments, not environment"


def test_no_method_is_treated_by_its_name():
    names = {*registry.available(), *registry.memories()}
    for name, path in MODULES.items():
        for node in ast.walk(syntax(path)):
            if isinstance(node, ast.Compare):
                sides = [node.left, *node.comparators]
                attributes = {side.attr for side in sides if isinstance(side, ast.Attribute)}
                constants = {
                    c.value for side in sides for c in ast.walk(side) if isinstance(c, ast.Constant)
                }
                where = f"{name}, line {node.lineno}: {ast.unparse(node)}"
                exception = "name" in attributes and constants & names
                assert not exception, f"{where}: a needed exception is a missing trait"


def test_files_and_functions_are_short():
    """A warning for files of more than 300 lines, a method's 150; an error at half as many more."""
    for path in FILES + NATIVE:
        lines = len(path.read_text().splitlines())
        pleasant = 150 if path.parent.name in ("compressors", "memories") else 300
        told = f"{path.relative_to(ROOT)} has {lines} lines; {pleasant} are pleasant to read"
        assert lines <= 1.5 * pleasant, told
        if lines > pleasant:
            warnings.warn(told, stacklevel=1)
    for name, path in MODULES.items():
        for node in ast.walk(syntax(path)):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                lines = node.end_lineno - node.lineno + 1
                assert lines <= 50, f"{name}.{node.name} has {lines} lines; at most 50"


def test_kernels_know_no_tensorflow():
    for path in NATIVE:
        if "kernels" in path.relative_to(ROOT).parts:
            for line in path.read_text().splitlines():
                if line.startswith("#include"):
                    assert "tensorflow" not in line and '"ops/' not in line, f"{path.name}: {line}"
