"""What `import agp` costs, in processor time: beside the import of NumPy, and with all that a model needs."""

import resource
import statistics
import subprocess
import sys

PROGRAMS = {
    "numpy": "import numpy",
    "agp": "import agp",
    "agp and a model": "import agp; agp.SVGP, agp.train",
}


def _seconds(program):
    """Processor time of a fresh interpreter that runs the program."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, "-c", program], check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


class Import:
    """Fresh interpreters; no optional library may be loaded."""

    params = list(PROGRAMS)
    param_names = ["what"]

    def time_import(self, what):
        subprocess.run([sys.executable, "-c", PROGRAMS[what]], check=True)


class Ratio:
    """Processor time beside that of `import numpy`, medians of 15 runs in turn; `import agp` must stay below 2."""

    params = [name for name in PROGRAMS if name != "numpy"]
    param_names = ["what"]
    unit = "times import numpy"
    timeout = 300

    def track_ratio(self, what):
        pairs = [(_seconds(PROGRAMS[what]), _seconds(PROGRAMS["numpy"])) for _ in range(15)]
        ours, numpys = (statistics.median(column) for column in zip(*pairs, strict=True))
        return ours / numpys
