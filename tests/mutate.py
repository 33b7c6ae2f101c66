"""Mutation testing: change the mathematics at random places, and see whether the quick tests fail. Run by hand:

    python tests/mutate.py map.jsonl --record                           # once: which test executes which function
    python tests/mutate.py map.jsonl mutants.jsonl                      # 200 mutants of seed 0
    python tests/mutate.py map.jsonl mutants.jsonl --again survived     # the survivors again, after adding tests

A mutant is one change within a function of the packages in `PACKAGES`: an operator swapped, a sign, factor, term or
transpose dropped, a constant or an index off by one, `<=` instead of `<`. No file changes. The tests are collected
once. For each mutant the process forks, the child replaces the code of the functions concerned, and it runs the tests
that execute the mutated function until one fails: those of the package and of tests/reference first. Most mutants take
a second.
Subprocesses that a test starts do not see the mutant.

Each mutant adds one line of JSON to the record, so an interrupted run resumes where it stopped. Survivors are printed
at the end. Mutants that nobody can observe are listed in `EQUIVALENT`, each with a reason.
"""

import argparse
import ast
import builtins
import copy
import gc
import json
import os
import random
import signal
import sys
import time
import types
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = (
    *("actions", "bounds", "constraints", "gradient", "inducing", "kernels", "likelihoods", "linalg", "means"),
    *("metrics", "models", "posteriors", "predictors", "priors", "processes", "quantiles", "scores", "selection"),
    *("training", "updates", "vectors"),
)
"""The mathematics, and what decides on numbers."""

EQUIVALENT: dict[tuple[str, str, str], str] = {
    ("Pools.members", "13", "14"): "names another random stream",
    ("Pools.parts", "ends[pool] >= stop", "ends[pool] > stop"): "adds a part without rows",
    ("marginal_mixture", "mu - centre", "mu + centre"): "widens the interval where a search starts",
    (
        "Whitened.white_samples",
        "self.mean.mT[:, :, None] + lower_times(self.scale, noise)",
        "self.mean.mT[:, :, None] - lower_times(self.scale, noise)",
    ): "has the same distribution",
    ("_density_of_log_noise", "0.5 * xp.ones_like(own)", "0.5 / xp.ones_like(own)"): "is the same number",
    (
        "StudentT.observation_model.<locals>.<lambda>",
        "1.0",
        "2.0",
    ): "widens panels, but not beyond the distance of the poles of the density",
    (
        "_Fit._grow",
        "density - passed.log_density(*setting, count=count // 2) < MIN_GAIN_PER_ROW",
        "density - passed.log_density(*setting, count=count // 2) <= MIN_GAIN_PER_ROW",
    ): "differs at equality of two continuous numbers",
    (
        "_close",
        "one.log_density >= found[0].log_density - CLOSE",
        "one.log_density > found[0].log_density - CLOSE",
    ): "differs at equality of two continuous numbers",
    (
        "inverse_factor",
        "tolerance >= ONE_STEP_TOLERANCE",
        "tolerance > ONE_STEP_TOLERANCE",
    ): "changes a guess, which is checked, for a single tolerance",
    ("_bracket", "a_excess < 0.0", "a_excess <= 0.0"): "looks in another direction from a root, where the search ends",
    ("starting_vector", "0.5", "1.0"): "is another start of a power iteration",
    (
        "starting_vector",
        "0.5 * B.xp.cos(B.xp.arange(A.shape[-1], **B.like(A)))",
        "0.5 / B.xp.cos(B.xp.arange(A.shape[-1], **B.like(A)))",
    ): "is another start of a power iteration",
    (
        "Beta.observation_model.<locals>.tail",
        "s * cdf(f) + MIN_PROBABILITY",
        "s * cdf(f)",
    ): "gives the limit for a = 0, which SciPy computes too",
    ("baseline", "17", "18"): "names another random stream",
    (
        "DatumSites.path_weights",
        "scale * values + noise",
        "scale * values - noise",
    ): "has the same distribution",
    ("Sparse.sample_marginals.<locals>.pullback", "1.0 + zero", "1.0"): "is the same number, of the same dtype",
    ("_Knots.of", "shift * 2.0", "shift"): "places knots elsewhere, and further knots follow until the error is small",
    (
        "_Knots.of",
        "shift * 2.0 * REACH",
        "shift * 2.0 / REACH",
    ): "places knots elsewhere, and further knots follow until the error is small",
    ("pivoted_cholesky", "1", "2"): "counts the columns twice, and only the first count is read",
    ("_whole", "above + ROUNDING * (1.0 + above)", "above"): "removes a margin that the bisection removes anyway",
}
"""Mutants without an observable effect: (function, code before, code after), and the reason."""

CPU_SECONDS = 60.0
"""Tests are run for at most this time before a mutant counts as a survivor."""
ENDLESS = 20.0
"""CPU seconds after which a test counts as endless, or twenty times its usual time if that is longer."""


class Mutant(NamedTuple):
    """One change: where it is, the code before and after, and its position among all changes of the file."""

    file: str
    function: str
    line: int
    before: str
    after: str
    place: int
    change: int

    @property
    def key(self) -> str:
        """The name of the mutant in the record."""
        return f"{self.file}:{self.function}:{self.place}:{self.change}:{self.before} -> {self.after}"

    @property
    def equivalent(self) -> str:
        """The reason why nobody can observe it, or an empty string."""
        return EQUIVALENT.get((self.function, self.before, self.after), "")


# -- mutants ----------------------------------------------------------------------------------------------------------

SWAPPED: dict[type, type] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
}
SPARED = (ast.Raise, ast.JoinedStr, ast.arguments, ast.Assert)
"""Left alone: messages, annotations and defaults."""


def changes(node: ast.AST) -> list[ast.AST]:
    """Return the replacements of a node."""
    swapped: list[Any] = []
    if isinstance(node, ast.BinOp) and not _is_text(node.left) and not _is_text(node.right):
        if type(node.op) in SWAPPED:
            swapped = [_with(node, op=SWAPPED[type(node.op)]())]
        if isinstance(node.op, ast.Add | ast.Sub | ast.Mult | ast.Div):
            swapped.append(node.left)
        if isinstance(node.op, ast.Add | ast.Mult):
            swapped.append(node.right)
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub) and not isinstance(node.operand, ast.Constant):
        swapped = [node.operand]
    elif isinstance(node, ast.Attribute) and node.attr == "mT":
        swapped = [node.value]
    elif isinstance(node, ast.AugAssign) and type(node.op) in SWAPPED:
        swapped = [_with(node, op=SWAPPED[type(node.op)]())]
    elif isinstance(node, ast.Compare) and len(node.ops) == 1 and type(node.ops[0]) in SWAPPED:
        swapped = [_with(node, ops=[SWAPPED[type(node.ops[0])]()])]
    elif isinstance(node, ast.Constant) and type(node.value) is float and node.value not in (0.0, float("inf")):
        swapped = [_with(node, value=node.value * 2.0)]
    elif isinstance(node, ast.Constant) and type(node.value) is int:
        swapped = [_with(node, value=node.value + 1)]
    return swapped


def _with(node: ast.AST, **fields: Any) -> Any:
    other = copy.copy(node)
    for name, value in fields.items():
        setattr(other, name, value)
    return other


def _is_text(node: ast.AST) -> bool:
    return isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and isinstance(node.value, str))


def _nodes(tree: ast.AST) -> Iterator[tuple[str, ast.AST, ast.AST, str, int | None]]:
    """Yield the nodes within functions: function, statement around, parent, and the field and index there."""

    def walk(node: ast.AST, names: tuple[str, ...], inside: bool, statement: ast.AST) -> Iterator[Any]:
        for field, value in ast.iter_fields(node):
            if field in ("annotation", "returns", "decorator_list", "type_params") or isinstance(value, SPARED):
                continue
            if isinstance(node, ast.keyword) and node.arg in ("axis", "ndim"):
                continue
            for i, child in enumerate(value) if isinstance(value, list) else [(None, value)]:
                if not isinstance(child, ast.AST) or isinstance(child, SPARED):
                    continue
                around = child if isinstance(child, ast.stmt) else statement
                if isinstance(child, ast.FunctionDef | ast.ClassDef | ast.Lambda):
                    name = "<lambda>" if isinstance(child, ast.Lambda) else child.name
                    function = not isinstance(child, ast.ClassDef)
                    yield from walk(child, (*names, name, *(["<locals>"] if function else [])), function, around)
                else:
                    if inside:
                        yield ".".join(names[:-1]), around, node, field, i
                    yield from walk(child, names, inside, around)

    yield from walk(tree, (), False, tree)


def mutants_of(file: Path) -> list[Mutant]:
    """Return all mutants of a file."""
    tree = ast.parse(file.read_text(encoding="utf-8"))
    found = []
    for place, (function, statement, parent, field, i) in enumerate(_nodes(tree)):
        value = getattr(parent, field)
        node = value if i is None else value[i]
        if isinstance(parent, ast.UnaryOp) and isinstance(node, ast.Constant):
            continue  # -1 is an axis or the last entry
        for change, other in enumerate(changes(node)):
            before, after = (ast.unparse(ast.fix_missing_locations(x)) for x in (node, other))
            name = file.relative_to(ROOT).as_posix()
            found.append(
                Mutant(name, function, getattr(node, "lineno", statement.lineno), before, after, place, change)
            )
    return found


def mutated(mutant: Mutant) -> types.CodeType:
    """Compile the module with the change."""
    file = ROOT / mutant.file
    tree = ast.parse(file.read_text(encoding="utf-8"))
    for place, (_, _, parent, field, i) in enumerate(_nodes(tree)):
        if place == mutant.place:
            value = getattr(parent, field)
            other = changes(value if i is None else value[i])[mutant.change]
            if i is None:
                setattr(parent, field, other)
            else:
                value[i] = other
            break
    return compile(ast.fix_missing_locations(tree), str(file), "exec", dont_inherit=True)


def chosen(seed: int, count: int) -> list[Mutant]:
    """Draw mutants from those of all packages."""
    files = [
        file for file in sorted((ROOT / "agp").rglob("*.py")) if _package(file.relative_to(ROOT).as_posix()) in PACKAGES
    ]
    every = [mutant for file in files for mutant in mutants_of(file)]
    return random.Random(seed).sample(every, min(count, len(every)))


def _package(file: str) -> str:
    return file.split("/")[1].removesuffix(".py")


# -- the map ----------------------------------------------------------------------------------------------------------


class Recorder:
    """Plug-in that writes the CPU seconds of each test and the functions it executes, one file per process.

    Each function of agp begins with a call that notes it: this is several times faster than tracing.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self.seen: set[int] = set()
        self.names: list[tuple[str, str]] = []
        self.written: set[int] = set()
        self.modules: set[str] = set()
        builtins.__dict__["__agp_seen__"] = self.seen.add

    def _instrument(self) -> None:
        """Add the calls to modules that were imported since the last time."""
        found = {name for name in sys.modules if name == "agp" or name.startswith("agp.")} - self.modules
        if not found:
            return
        self.modules |= found
        files = {file for name in found if (file := sys.modules[name].__file__) is not None}
        for file, functions in _functions(files).items():
            tree = ast.parse(Path(file).read_text(encoding="utf-8"))
            self._add_calls(tree, Path(file).relative_to(ROOT).as_posix(), ())
            _replace(functions, compile(ast.fix_missing_locations(tree), file, "exec", dont_inherit=True))

    def _add_calls(self, node: ast.AST, file: str, names: tuple[str, ...]) -> None:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.ClassDef):
                self._add_calls(child, file, (*names, child.name))
            elif isinstance(child, ast.FunctionDef | ast.Lambda):
                own = (*names, "<lambda>" if isinstance(child, ast.Lambda) else child.name)
                self._add_calls(child, file, (*own, "<locals>"))
                call = ast.Call(ast.Name("__agp_seen__", ast.Load()), [ast.Constant(len(self.names))], [])
                self.names.append((file, ".".join(own)))
                if isinstance(child, ast.Lambda):
                    both = ast.Tuple([call, child.body], ast.Load())
                    child.body = ast.copy_location(ast.Subscript(both, ast.Constant(1), ast.Load()), child.body)
                else:
                    child.body.insert(0, ast.copy_location(ast.Expr(call), child.body[0]))
            else:
                self._add_calls(child, file, names)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Any:
        self._instrument()
        self.seen.clear()
        start = time.process_time()
        result = yield
        seconds, seen = time.process_time() - start, sorted(self.seen)
        with open(f"{self.path}.{os.getpid()}", "a", encoding="utf-8") as file:
            for number in seen:
                if number not in self.written:
                    file.write(json.dumps(["code", number, *self.names[number]]) + "\n")
            file.write(json.dumps(["test", item.nodeid, round(seconds, 4), seen]) + "\n")
        self.written |= self.seen
        return result


def _functions(files: Collection[str]) -> dict[str, list[types.FunctionType]]:
    """Return the functions that exist now, by the file where they are defined."""
    gc.unfreeze()  # frozen objects are not listed
    found: dict[str, list[types.FunctionType]] = {}
    for function in gc.get_objects():
        if type(function) is types.FunctionType and function.__code__.co_filename in files:
            found.setdefault(function.__code__.co_filename, []).append(function)
    gc.freeze()
    return found


def _replace(functions: list[types.FunctionType], module: types.CodeType) -> None:
    """Give functions the code of the same name and line in another version of their module."""
    found: dict[tuple[str, int], types.CodeType] = {}
    todo = [module]
    while todo:
        inner = [const for const in todo.pop().co_consts if isinstance(const, types.CodeType)]
        found |= {(code.co_qualname, code.co_firstlineno): code for code in inner}
        todo += inner
    for function in functions:
        code = found.get((function.__code__.co_qualname, function.__code__.co_firstlineno))
        if code is not None and code != function.__code__:
            function.__code__ = code


def pytest_configure(config: pytest.Config) -> None:
    """Record in each process that runs tests, if this file is loaded as a plug-in."""
    path = os.environ.get("AGP_MUTATE_MAP")
    if path and (hasattr(config, "workerinput") or not config.getoption("numprocesses", None)):
        config.pluginmanager.register(Recorder(path), "recorder")


class Map:
    """Which tests execute a function, and their CPU seconds."""

    def __init__(self, path: Path) -> None:
        self.seconds: dict[str, float] = {}
        self._tests: dict[tuple[str, str], list[str]] = defaultdict(list)
        for part in sorted(path.parent.glob(f"{path.name}.*")):
            name = {}
            for kind, *rest in map(json.loads, part.read_text(encoding="utf-8").splitlines()):
                if kind == "code":
                    name[rest[0]] = rest[1], rest[2]
                else:
                    self.seconds[rest[0]] = rest[1]
                    for number in rest[2]:
                        self._tests[name[number]].append(rest[0])

    def tests(self, mutant: Mutant) -> set[str]:
        """Return the tests that execute the mutated function."""
        return set(self._tests.get((mutant.file, mutant.function), ()))


# -- running ----------------------------------------------------------------------------------------------------------


class Mutations:
    """Plug-in of pytest that replaces its loop: each mutant in a forked process, with the tests that may notice it."""

    def __init__(self, mutants: list[Mutant], tests: Map, record: Path, processes: int, seconds: float) -> None:
        self.mutants, self.map, self.record, self.processes, self.limit = mutants, tests, record, processes, seconds

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        self.items = {item.nodeid: item for item in session.items}
        self.functions = _functions({str(ROOT / mutant.file) for mutant in self.mutants})
        children = []
        for k in range(self.processes):
            child = os.fork()
            if child == 0:
                for mutant in self.mutants[k :: self.processes]:
                    self._judge(mutant)
                os._exit(0)
            children.append(child)
        for child in children:
            os.waitpid(child, 0)
        return True

    def _order(self, mutant: Mutant) -> list[pytest.Item]:
        """Sort the tests that execute the function: one case of each test first, and the package's own among these."""
        near = (f"tests/{_package(mutant.file)}/", "tests/reference/")
        names = [name for name in self.map.tests(mutant) if name in self.items]
        names.sort(key=lambda name: (self.map.seconds[name], name))
        times: Counter[str] = Counter()
        rank = {}
        for name in names:
            times[name.partition("[")[0]] += 1
            rank[name] = (times[name.partition("[")[0]] > 1, not name.startswith(near), self.map.seconds[name])
        return [self.items[name] for name in sorted(names, key=lambda name: rank[name])]

    def _judge(self, mutant: Mutant) -> None:
        items = self._order(mutant)
        reading, writing = os.pipe()
        start = time.time()
        child = os.fork()
        if child == 0:
            os.close(reading)
            self._try(mutant, items, writing)
            os._exit(0)
        os.close(writing)
        with os.fdopen(reading, encoding="utf-8") as pipe:
            said = pipe.read().splitlines()
        _, status = os.waitpid(child, 0)
        last = json.loads(said[-1]) if said else ["", 0.0]
        if status != 0:  # a signal, or an exit from within: the change made a test endless, or broke the process
            last = ["caught", f"{last[1]} (status {status})", *last[2:]]
        line = {"mutant": mutant.key, "line": mutant.line, "outcome": last[0], "by": last[1], "tests": len(items)}
        line |= {"ran": last[2] if len(last) > 2 else len(said), "seconds": round(time.time() - start, 1)}
        with self.record.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
        sys.stderr.write(f"{line['outcome']:9} {mutant.key}  by {line['by']}\n")

    def _try(self, mutant: Mutant, items: list[pytest.Item], writing: int) -> None:
        """In the child: change the functions, run tests until one fails, and write what happens, one line each."""

        def say(*words: Any) -> None:
            os.write(writing, (json.dumps(words) + "\n").encode())

        if not items:
            return say("survived", "no test executes it", 0)
        try:
            _replace(self.functions.get(str(ROOT / mutant.file), []), mutated(mutant))
        except ValueError as error:  # the change took a variable of the function around
            return say("not applicable", str(error), 0)
        failed: list[str] = []

        class Listener:
            @staticmethod
            def pytest_runtest_logreport(report: pytest.TestReport) -> None:
                failed.extend([report.nodeid] if report.failed else [])

        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, 1)
        os.dup2(nowhere, 2)
        manager = items[0].config.pluginmanager
        manager.unregister(name="terminalreporter")
        manager.register(Listener())
        start = time.process_time()
        for i, item in enumerate(items):
            if time.process_time() - start > self.limit:
                return say("survived", f"{i} tests in {self.limit:.0f} s", i)
            say("running", item.nodeid, i)
            signal.setitimer(signal.ITIMER_VIRTUAL, max(ENDLESS, 20.0 * self.map.seconds[item.nodeid]))
            following = items[i + 1] if i + 1 < len(items) else None
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
            if failed:
                return say("caught", failed[0], i)
        return say("survived", "all", len(items))


def main() -> None:
    """Record the map, or judge mutants."""
    parser = argparse.ArgumentParser(description="Change the mathematics at random, and see whether tests notice.")
    parser.add_argument("map", type=Path, help="which tests execute which function, as --record wrote it")
    parser.add_argument("record", type=Path, nargs="?", help="the outcome of each mutant, a line each")
    parser.add_argument("--record", dest="write_map", action="store_true", help="run the tests and write the map")
    parser.add_argument("--count", type=int, default=200, help="mutants (200)")
    parser.add_argument("--seed", type=int, default=0, help="which mutants (0)")
    parser.add_argument("--processes", type=int, default=2, help="processes beside each other (2)")
    parser.add_argument("--seconds", type=float, default=CPU_SECONDS, help="CPU seconds of tests for a mutant")
    parser.add_argument("--again", action="append", default=[], help="judge those again whose outcome was this")
    parser.add_argument("--marks", default="not slow", help="which tests (not slow)")
    given = parser.parse_args()
    unknown = [x for x in PACKAGES if not any((ROOT / "agp" / f"{x}{end}").exists() for end in ("", ".py"))]
    if unknown:
        parser.error(f"there is no package {', '.join(unknown)}; correct PACKAGES")
    options = ["-q", "-p", "no:cacheprovider", "-m", given.marks, "--rootdir", str(ROOT), str(ROOT / "tests")]
    if given.write_map:
        os.environ["AGP_MUTATE_MAP"] = str(given.map.absolute())
        raise SystemExit(pytest.main([*options, "-n", str(given.processes), "-p", "mutate"]))
    given.record.touch()
    last = {line["mutant"]: line for line in map(json.loads, given.record.read_text(encoding="utf-8").splitlines())}
    mutants = chosen(given.seed, given.count)
    todo = [m for m in mutants if not m.equivalent and (m.key not in last or last[m.key]["outcome"] in given.again)]
    if todo:
        plugin = Mutations(todo, Map(given.map), given.record, given.processes, given.seconds)
        pytest.main([*options, "-p", "no:xdist"], plugins=[plugin])
    last = {line["mutant"]: line for line in map(json.loads, given.record.read_text(encoding="utf-8").splitlines())}
    outcomes: Counter[str] = Counter()
    for mutant in mutants:
        outcome = "equivalent" if mutant.equivalent else last.get(mutant.key, {"outcome": "not judged"})["outcome"]
        outcomes[outcome] += 1
        if outcome == "survived":
            sys.stdout.write(f"{mutant.file}:{mutant.line} {mutant.function}: {mutant.before} -> {mutant.after}\n")
    sys.stdout.write(", ".join(f"{count} {outcome}" for outcome, count in sorted(outcomes.items())) + "\n")


if __name__ == "__main__":
    main()
