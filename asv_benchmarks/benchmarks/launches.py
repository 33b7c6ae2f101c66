"""Number of array library calls in a training step; on an accelerator, each call launches a kernel."""

import re

NO_WORK = {"parameter", "constant", "tuple", "get-tuple-element", "bitcast", "copy-start", "copy-done", "after-all"}
"""Instructions of a compiled JAX program that compute nothing."""


def launches(stepping):
    """Count the calls of one step; raise NotImplementedError for NumPy, whose operators cannot be counted."""
    name = stepping.B.name
    if name == "torch":
        return torch_calls(stepping.step)
    if name == "jax":
        return jax_instructions(stepping)
    raise NotImplementedError


def torch_calls(work):
    """Count the operators that torch dispatches, excluding views and including the backward pass."""
    from torch.utils._python_dispatch import TorchDispatchMode

    class Counter(TorchDispatchMode):
        calls = 0

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            aliases = [argument.alias_info for argument in func._schema.arguments]
            self.calls += not any(alias is not None and not alias.is_write for alias in aliases)
            return func(*args, **(kwargs or {}))

    with Counter() as counter:
        work()
    return counter.calls


def jax_instructions(stepping):
    """Count the top-level instructions of the compiled step; a fusion or a loop counts as one."""
    import jax

    from agp.repairs import collect_reports

    def step(model, states, batch):
        with collect_reports():
            return stepping.applied(model, states, batch)

    arguments = stepping.model, stepping.states, stepping.batch
    return top_level_instructions(jax.jit(step).lower(*arguments).compile().as_text())


def top_level_instructions(text):
    """Count the instructions in the entry computation of an HLO module that compute something."""
    entry = text.split("\nENTRY ", 1)[1].split("\n}", 1)[0].splitlines()[1:]
    operations = [found[1] for line in entry if (found := re.search(r"= .*?[\]\}\)] ([a-z][a-z0-9-]*)\(", line))]
    return sum(operation not in NO_WORK for operation in operations)
