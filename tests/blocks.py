"""The code of a page that moves from another library to agp: both sides, run section by section.

``python blocks.py PAGE theirs`` prints as JSON what the other library's blocks of each section compute. It needs NumPy
and that library alone, so that an interpreter without agp can run it. Blocks of agp are fenced as ``python``, those of
the other library as ``{code-block} python``; the first block, data, belongs to both.
"""

import json
import re
import sys
from pathlib import Path

import numpy as np

COMPARED = ("evidence", "optimum", "bound", "batch_bound", "total", "mean", "variance", "noisy", "probability", "again")
NEARLY = ("predicted", "class_1")
"""Those that stand for numbers of two approximations to the same model."""
"""The names that stand for the same number on both sides."""
FENCE = re.compile(r"^```(python|\{code-block\} python)\n(?::\w+:[^\n]*\n)*\n?(.*?)^```$", re.MULTILINE | re.DOTALL)


def sections(text):
    """Pairs of a heading and its blocks, pairs of a fence and the code, from the text of a page."""
    parts = re.split(r"^## (.*)$", text, flags=re.MULTILINE)
    headed = [("", parts[0]), *zip(parts[1::2], parts[2::2], strict=True)]
    return [(heading, FENCE.findall(body)) for heading, body in headed]


def host(x):
    """A number or an array of any library as a flat list."""
    return np.asarray(x.detach() if hasattr(x, "detach") else x, dtype=np.float64).ravel().tolist()


def results(page, side):
    """What the blocks of a side ("theirs" or "ours") compute: compared names and values by section."""
    headed = sections(Path(page).read_text(encoding="utf-8"))
    shared = headed[0][1][0][1]
    fence = "python" if side == "ours" else "{code-block} python"
    space = {"__name__": "moved"}
    exec(compile(shared, f"{page}, data", "exec"), space)
    found = {}
    for heading, blocks in headed:
        for name in (*COMPARED, *NEARLY):
            space.pop(name, None)
        for kind, code in blocks:
            if kind == fence and code != shared:
                exec(compile(code, f"{page}, {heading}, {side}", "exec"), space)
        if values := {name: host(space[name]) for name in (*COMPARED, *NEARLY) if name in space}:
            found[heading] = values
    return found


if __name__ == "__main__":
    printed = sys.stdout
    sys.stdout = sys.stderr  # libraries print
    told = json.dumps(results(*sys.argv[1:]))
    printed.write(told)
