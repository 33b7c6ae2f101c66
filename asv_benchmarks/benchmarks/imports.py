"""CPU time of `import agp`, compared with that of NumPy, and of everything that a model requires."""

import resource
import statistics
import subprocess
import sys

from .common import skip_elsewhere

PROGRAMS = {
    "numpy": "import numpy",
    "agp": "import agp",
    "agp and a model": "import agp; agp.SVGP, agp.train",
}


def _seconds(program):
    """CPU time of a new interpreter that runs the program."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, "-c", program], check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


class Import:
    """Imports in new interpreters, which must not load optional libraries."""

    params = list(PROGRAMS)
    param_names = ["what"]

    def setup(self, what):
        skip_elsewhere()

    def time_import(self, what):
        subprocess.run([sys.executable, "-c", PROGRAMS[what]], check=True)


class Ratio:
    """CPU time of an import divided by that of `import numpy`, medians of 15 runs; `import agp` must stay below 2."""

    params = [name for name in PROGRAMS if name != "numpy"]
    param_names = ["what"]
    unit = "times import numpy"
    timeout = 300

    def setup(self, what):
        skip_elsewhere()

    def track_ratio(self, what):
        pairs = [(_seconds(PROGRAMS[what]), _seconds(PROGRAMS["numpy"])) for _ in range(15)]
        ours, numpys = (statistics.median(column) for column in zip(*pairs, strict=True))
        return ours / numpys
