#!/usr/bin/env python3
"""Compares runs: what differs in their configs, whether they started alike, their losses and how sure the
differences are.

    scripts/compare.py RUN [RUN ...] [--out PREFIX]
    scripts/compare.py NAME: RUN [RUN ...] NAME: RUN [RUN ...] ... [--out PREFIX]

Runs that differ in nothing but the seed are one group; the first group is the one compared against. A word that
ends in a colon starts a group by hand, for instance to compare a thing with itself; its name may be missing.
The tables go to stdout and PREFIX.html (default: `compare` beside the first run) and need Python alone. The
statistics need scipy, and PREFIX.png and PREFIX.svg, and PREFIX_attention.png and .svg, matplotlib; where they
are missing this says how to get them.
"""

from __future__ import annotations

import argparse
import sys
import textwrap
from pathlib import Path

import tables
from command import FOR_FIGURES, InputError, refuse, run_script
from report import write_report
from runs import Group, read_groups
from tables import Block, Blocks, Code, Note, Table

WIDTH = 80  # of sentences; tables are as wide as their columns


def print_table(table: Table) -> None:
    """Columns two blanks apart, the first `left` and the last of words flush left."""
    lines = [table.head, *table.body]
    widths = [max(len(line[column]) for line in lines) for column in range(len(table.head))]
    for sentence in table.title.splitlines():
        print(textwrap.fill(sentence, WIDTH))
    for line in lines:
        cells = [c.ljust(w) if table.is_words(i) else c.rjust(w) for i, (c, w) in enumerate(zip(line, widths))]
        print("  ".join(cells).rstrip())


def print_blocks(blocks: Blocks) -> None:
    """Tables stand apart, notes follow what they are about."""
    before: list[Block] = []
    for block in blocks:
        if before and not (isinstance(block, Note) and isinstance(before[-1], Note)):
            print()
        if isinstance(block, Table):
            print_table(block)
        elif isinstance(block, Note):
            prefix = "WARNING: " if block.warning else ""
            print(textwrap.fill(prefix + block.text, WIDTH, subsequent_indent="  " if prefix else ""))
        before.append(block)
    print()


def blocks_of(groups: list[Group]) -> tuple[Blocks, list[str]]:
    """What there is to say, and what could not be done."""
    blocks = tables.about_groups(groups) + tables.about_starts(groups) + tables.about_missing(groups)
    blocks += tables.about_losses(groups) + tables.about_attention(groups) + tables.about_ends(groups)
    try:
        blocks += tables.about_statistics(groups)
    except ImportError as error:
        return blocks, [f"no statistics: {missing(error)}"]
    return blocks, []


def missing(error: ImportError) -> str:
    return f"{(error.name or 'a module').partition('.')[0]} is missing"


def figures(groups: list[Group], prefix: Path) -> tuple[list[Path], list[str]]:
    try:
        from curves import draw
    except ImportError as error:
        return [], [f"no figures: {missing(error)}"]
    return draw(groups, prefix), []


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__.partition("\n\n    ")[0],
        epilog="""Runs that differ in nothing but the seed are one group; the first group is the one compared against.
            With `NAME:` before some of the runs, the groups are those put together this way, for instance
            `first: runs/a_1 runs/a_2 again: runs/b_1 runs/b_2`; a colon alone starts a group without a name.""",
    )
    what = "a run directory, or NAME: to start a group by hand"
    parser.add_argument("runs", nargs="+", metavar="RUN", help=what)
    what = "write PREFIX.html, PREFIX.png, PREFIX.svg and so on (default: compare, beside the first run)"
    parser.add_argument("--out", type=Path, metavar="PREFIX", help=what)
    options = parser.parse_args(arguments)
    try:
        groups = read_groups(options.runs)
        blocks, undone = blocks_of(groups)
        print_blocks(blocks)
        prefix = options.out or groups[0].runs[0].path.resolve().parent / "compare"
        prefix.parent.mkdir(parents=True, exist_ok=True)
        written, more = figures(groups, prefix)
        undone += more
        svgs = [path for path in written if path.suffix == ".svg"]
        blocks += [Note(text, warning=True) for text in undone] + tables.about_repeating(groups, arguments)
        written.append(write_report(groups, blocks, svgs, prefix))
    except (InputError, OSError) as error:
        return refuse("compare.py", error)
    for path in written:
        print(f"wrote {path}")
    if undone:
        print("\n".join(undone) + f"; one of these brings it\n{FOR_FIGURES}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    run_script(main)
