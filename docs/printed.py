"""Run the blocks of a page in their order, and compare what they print with what the page shows.

A ``python`` block, or an ``sh`` block whose lines begin with ``agp``, is run; a ``text`` block right after it is what
it printed, or after a first line "..." its end. To write the outputs anew, and the pictures that the page saves:

    python docs/printed.py docs/start/ten-minutes.md --write --pictures docs/pictures
"""

import argparse
import contextlib
import io
import math
import os
import re
import shlex
import shutil
import sys
import tempfile
import types
from dataclasses import dataclass
from pathlib import Path

from agp.cli import main as agp_command

FENCE = re.compile(r"^```(python|sh)\n(.*?)^```$(?:\n\n```text\n(.*?)^```$)?", re.MULTILINE | re.DOTALL)
NUMBER = re.compile(r"[-+]?\d+(?:,\d{3})*(?:\.\d+)?(?:e[-+]?\d+)?")
PROGRESS = re.compile(r"^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d agp: .*\n", re.MULTILINE)
"""Lines of a long fit, instead of which a terminal shows a bar."""
TIME = re.compile(r"\d+(?:\.\d+)? (?:s|seconds|minutes)\b")
RULE = re.compile(r"[─-]{4,}")
RELATIVE = 0.02
"""By how much a number may differ on another machine, beside one in its last digit."""


@dataclass
class Block:
    """A block of a page: its language, its code, what it should print, and where that stands in the page."""

    language: str
    code: str
    line: int
    shown: str | None
    span: tuple[int, int]


def blocks(text):
    """The blocks of a page that run."""
    return [
        Block(m[1], m[2], text.count("\n", 0, m.start(2)), m[3], m.span(3))
        for m in FENCE.finditer(text)
        if m[1] == "python" or re.search(r"^agp ", m[2], re.MULTILINE)
    ]


def outputs(page, folder):
    """Run the blocks of a page in a folder, in a module of their own; yield each block with what it printed."""
    module = types.ModuleType("documented")
    sys.modules["documented"] = module
    before = Path.cwd()
    os.chdir(folder)
    try:
        for block in blocks(Path(page).read_text(encoding="utf-8")):
            printed = io.StringIO()
            with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
                _run(block, page, module)
            yield block, PROGRESS.sub("", printed.getvalue())
    finally:
        os.chdir(before)
        sys.modules.pop("documented", None)


def _run(block, page, module):
    if block.language == "python":
        exec(compile("\n" * block.line + block.code, str(page), "exec"), module.__dict__)
        return
    for line in block.code.replace("\\\n", " ").splitlines():
        if line.startswith("agp "):
            arguments = shlex.split(line, comments=True)[1:]
            if agp_command(arguments):
                msg = f"{page}: {line} failed"
                raise SystemExit(msg)


def tidy(printed):
    """The same without blanks at the ends of lines and empty lines around it."""
    return "\n".join(line.rstrip() for line in printed.strip("\n").splitlines()) + "\n"


def differences(shown, printed):
    """The lines that differ: words must be equal, numbers nearly, times need not be."""
    ours, theirs = tidy(shown).splitlines(), tidy(_cut(shown, printed)).splitlines()
    if len(ours) != len(theirs):
        return [f"{len(ours)} lines are shown, {len(theirs)} were printed:\n{printed}"]
    return [f"- {a}\n+ {b}" for a, b in zip(ours, theirs, strict=True) if not _alike(a, b)]


def _cut(shown, printed):
    """What was printed, without what is above where "..." stands for that: from the line on that follows."""
    first, _, rest = tidy(shown).partition("\n")
    _, line, end = printed.partition(f"\n{rest.partition(chr(10))[0]}\n")
    return f"...{line}{end}" if first == "..." and line else printed


def _alike(shown, printed):
    shown, printed = (RULE.sub("-", TIME.sub("TIME", x)) for x in (shown, printed))
    if " ".join(NUMBER.sub("0", shown).split()) != " ".join(NUMBER.sub("0", printed).split()):
        return False
    return all(map(_near, NUMBER.findall(shown), NUMBER.findall(printed)))


def _near(shown, printed):
    a, b = (float(x.replace(",", "")) for x in (shown, printed))
    decimals = shown.partition(".")[2] if "e" not in shown else ""
    digit = 10.0 ** -len(decimals) if decimals else 0.0
    return math.isclose(a, b, rel_tol=RELATIVE, abs_tol=1.01 * digit)


def rewrite(page, pictures=None):
    """Run a page, put what it printed into it, and copy its pictures to a folder."""
    page = Path(page).resolve()
    text = page.read_text(encoding="utf-8")
    with tempfile.TemporaryDirectory() as folder:
        found = list(outputs(page, folder))
        for picture in Path(folder).glob("*.png") if pictures else ():
            shutil.copy(picture, Path(pictures) / f"{page.stem}-{picture.name}")
    for block, printed in reversed(found):
        if block.shown is not None:
            text = text[: block.span[0]] + tidy(_cut(block.shown, printed)) + text[block.span[1] :]
        elif printed.strip():
            print(f"{page.name}:{block.line}: prints, but the page does not show it:\n{printed}")
    page.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("page", nargs="+")
    parser.add_argument("--write", action="store_true", help="put what was printed into the page")
    parser.add_argument("--pictures", help="a folder for the pictures that the page saves")
    chosen = parser.parse_args()
    for name in chosen.page:
        if chosen.write:
            rewrite(name, chosen.pictures)
            continue
        with tempfile.TemporaryDirectory() as scratch:
            for block, printed in outputs(Path(name).resolve(), scratch):
                print("\n".join(differences(block.shown or printed, printed)) or f"line {block.line}: as shown")
