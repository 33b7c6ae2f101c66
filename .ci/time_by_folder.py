"""Print a table of the tests in each folder and their time.

Run ``pytest -n auto --junitxml=tests.xml`` first, then ``python .ci/time_by_folder.py tests.xml``.
"""

import sys
from collections import defaultdict
from xml.etree import ElementTree as ET

rows = defaultdict(lambda: [0, 0, 0.0])
for case in ET.parse(sys.argv[1]).iter("testcase"):
    names = case.get("classname").split(".")
    if len(names) > 2:  # if a whole file is skipped, the folder is unknown
        row = rows[names[1]]
        row[0] += 1
        row[1] += case.find("skipped") is not None
        row[2] += float(case.get("time"))
whole = sum(seconds for *_, seconds in rows.values())
lines = ["| folder | tests | skipped tests | share of the time |", "|---|---|---|---|"]
for folder, (count, skipped, seconds) in sorted(rows.items(), key=lambda item: -item[1][2]):
    lines.append(f"| {folder} | {count:,} | {skipped or ''} | {100.0 * seconds / whole:.1f} % |")
sys.stdout.write("\n".join(lines) + "\n")
