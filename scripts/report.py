"""The page of compare.py: tables, notes and figures in one HTML file that needs nothing else."""

from __future__ import annotations

import re
from html import escape
from pathlib import Path
from typing import Sequence

from runs import Group
from tables import Block, Blocks, Code, Note, Table

STYLE = """\
:root { color-scheme: light dark; --ink: #1d1d1f; --paper: #ffffff; --line: #d9d9dd; --soft: #5c5c63; --warn: #8a3b00;
  --warn-paper: #fff3e6; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e8e8ea; --paper: #17181a; --line: #3a3b40; --soft: #a5a5ad; --warn: #ffc38a; --warn-paper: #35240f; }
  svg { filter: invert(0.91) hue-rotate(180deg); }
}
body { margin: 0 auto; max-width: 62rem; padding: 1rem; font: 1rem/1.5 system-ui, sans-serif; color: var(--ink);
  background: var(--paper); }
h1 { font-size: 1.35rem; line-height: 1.25; overflow-wrap: anywhere; }
h2 { font-size: 1.1rem; margin: 2rem 0 0.5rem; }
.wide { overflow-x: auto; margin: 1rem 0; }
.wide svg { display: block; width: 100%; min-width: 34rem; height: auto; }
table { border-collapse: collapse; font-size: 0.875rem; font-variant-numeric: tabular-nums; }
caption { text-align: left; color: var(--soft); padding-bottom: 0.3rem; white-space: pre-line; }
th, td { padding: 0.2rem 0.7rem 0.2rem 0; border-bottom: 1px solid var(--line); text-align: right;
  white-space: nowrap; }
th { font-weight: 600; }
.words { text-align: left; }
.note { color: var(--soft); margin: 0.4rem 0; max-width: 46rem; }
.warning { color: var(--warn); background: var(--warn-paper); border-left: 4px solid; padding: 0.4rem 0.7rem; }
pre { overflow-x: auto; font-size: 0.8125rem; border: 1px solid var(--line); padding: 0.6rem; }
"""


def table_html(table: Table) -> str:
    def line(cells: Sequence[str], tag: str) -> str:
        kinds = [' class="words"' if table.is_words(i) else "" for i in range(len(cells))]
        written = (f"<{tag}{kind}>{escape(cell)}</{tag}>" for cell, kind in zip(cells, kinds))
        return f"<tr>{''.join(written)}</tr>"

    caption = f"<caption>{escape(table.title)}</caption>" if table.title else ""
    body = "\n".join(line(cells, "td") for cells in table.body)
    return (
        f'<div class="wide" tabindex="0"><table>{caption}<thead>{line(table.head, "th")}</thead>\n'
        f"<tbody>{body}</tbody></table></div>"
    )


def block_html(block: Block) -> str:
    if isinstance(block, Table):
        return table_html(block)
    if isinstance(block, Note):
        if block.warning:
            return f'<p class="warning"><strong>Warning:</strong> {escape(block.text)}</p>'
        return f'<p class="note">{escape(block.text)}</p>'
    return f"<h3>{escape(block.title)}</h3>\n<pre>{escape(block.text)}</pre>"


def inline_svg(path: Path, number: int, title: str) -> str:
    """The drawing alone, its ids made unique in the page; HTML needs no names of namespaces."""
    text = path.read_text(encoding="utf-8")
    text = text[text.index("<svg") :]
    text = re.sub(r' xmlns(:\w+)?="[^"]*"', "", text)
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.S)
    text = re.sub(r'(\bid="|href="#|url\(#)', rf"\1f{number}-", text)
    return text.replace("<svg", f'<svg role="img" aria-label="{escape(title)}"', 1)


def write_report(groups: Sequence[Group], blocks: Blocks, figures: Sequence[Path], prefix: Path) -> Path:
    """Writes PREFIX.html: warnings first, then the figures, the tables, and how to repeat it all."""
    title = ", ".join(group.label for group in groups)
    warnings = [block for block in blocks if isinstance(block, Note) and block.warning]
    codes = [block for block in blocks if isinstance(block, Code)]
    rest = [block for block in blocks if block not in warnings and block not in codes]
    names = ("loss over the updates", "attention diagnostics over the updates, by layer")
    drawn = [
        f'<div class="wide" tabindex="0">{inline_svg(path, number, name)}</div>'
        for number, (path, name) in enumerate(zip(figures, names), 1)
    ]
    parts = [
        f"<h1>Comparison: {escape(title)}</h1>",
        *map(block_html, warnings),
        *drawn[:1],
        "<h2>Tables</h2>",
        *map(block_html, rest),
        *(["<h2>Attention over the updates</h2>", *drawn[1:]] if drawn[1:] else []),
        "<h2>How to repeat this</h2>",
        '<p class="note">Save the config as base.json; the same program, config and text give the same results to '
        "the last bit, whatever the number of threads.</p>",
        *map(block_html, codes),
    ]
    page = (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>Comparison: {escape(title)}</title>\n<style>\n{STYLE}</style>\n</head>\n<body>\n"
    )
    path = prefix.with_name(prefix.name + ".html")
    path.write_text(page + "\n".join(parts) + "\n</body>\n</html>\n", encoding="utf-8")
    return path
