"""The page itself: its style, its sections, its tables. Everything put into it is escaped here.

One file without scripts, fonts or pictures from elsewhere, so that it opens from a disk, a mail or a bundle on a Pi.
Colours follow the reader's light or dark scheme; on a phone's width the columns become one and wide tables scroll
inside their own box.
"""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

_STYLE = """
:root { color-scheme: light dark; --page: #fbfbf9; --card: #ffffff; --ink: #1d2330; --dim: #5b6472; --line: #e2e4e8;
  --good: #1a7f4b; --bad: #c0362c;
  --c0: #2f6fb7; --c1: #e08a2c; --c2: #3a9a73; --c3: #8f6bb8; --c4: #c9566f; --c5: #9aa3ad; }
@media (prefers-color-scheme: dark) {
  :root { --page: #14171c; --card: #1c2128; --ink: #e6e9ee; --dim: #9aa5b1; --line: #323943;
    --good: #4cc38a; --bad: #ff7b72;
    --c0: #5b9be0; --c1: #e6a04f; --c2: #55b891; --c3: #a98bd3; --c4: #e07f95; --c5: #77818c; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--page); color: var(--ink); font: 16px/1.5 system-ui, sans-serif; }
main { max-width: 62rem; margin: 0 auto; padding: 1.5rem 1rem 3rem; }
h1 { font-size: 1.6rem; line-height: 1.25; margin: 0 0 .25rem; overflow-wrap: anywhere; }
h2 { font-size: 1.15rem; margin: 0 0 .5rem; }
h3 { font-size: 1rem; margin: 1.25rem 0 .4rem; }
p { margin: .4rem 0; }
.dim { color: var(--dim); font-size: .9rem; }
code { font: .88em ui-monospace, monospace; overflow-wrap: anywhere; }
section { background: var(--card); border: 1px solid var(--line); border-radius: .6rem; padding: 1rem 1.1rem;
  margin-top: 1rem; }
.figures { display: grid; grid-template-columns: repeat(auto-fit, minmax(9.5rem, 1fr)); gap: .75rem; margin-top: 1rem; }
.figure { background: var(--card); border: 1px solid var(--line); border-radius: .6rem; padding: .7rem .9rem; }
.figure b { display: block; font-size: 1.35rem; line-height: 1.3; font-variant-numeric: tabular-nums; }
.figure span { color: var(--dim); font-size: .85rem; }
.wide { overflow-x: auto; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .2rem 1rem; margin: 0; font-size: .92rem; }
dd { margin: 0; overflow-wrap: anywhere; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: .92rem; }
th, td { padding: .25rem .8rem .25rem 0; text-align: right; border-bottom: 1px solid var(--line); white-space: nowrap; }
th:first-child, td:first-child { text-align: left; white-space: normal; }
th { color: var(--dim); font-weight: 600; }
.good { color: var(--good); } .bad { color: var(--bad); }
.bars { display: grid; grid-template-columns: max-content 1fr max-content; gap: .3rem .7rem; align-items: center;
  font-size: .9rem; font-variant-numeric: tabular-nums; }
.track { position: relative; height: 1rem; background: var(--line); border-radius: .2rem; display: flex; }
.track i { display: block; height: 100%; min-width: 1px; }
.track u { position: absolute; top: -.2rem; bottom: -.2rem; width: 2px; background: var(--ink); }
.legend { display: flex; flex-wrap: wrap; gap: .2rem 1rem; font-size: .85rem; color: var(--dim); margin: .5rem 0 0; }
.legend i { display: inline-block; width: .8em; height: .8em; border-radius: .15em; margin-right: .4em; }
.heat td { text-align: center; padding: .25rem .5rem; }
.row { display: contents; }
.plot { position: relative; height: 15rem; margin: .5rem 1rem 1.8rem 3rem; border: solid var(--line);
  border-width: 0 0 1px 1px; }
.plot i { position: absolute; width: .7rem; height: .7rem; margin: 0 0 -.35rem -.35rem; border-radius: 50%;
  opacity: .85; }
.plot i.ring { background: none !important; border: 2px solid var(--ink); width: 1.3rem; height: 1.3rem;
  margin: 0 0 -.65rem -.65rem; }
.plot span { position: absolute; font-size: .8rem; color: var(--dim); font-variant-numeric: tabular-nums; }
.plot .x { top: calc(100% + .4rem); transform: translateX(-50%); }
.plot .y { right: 100%; transform: translateY(50%); padding-right: .4rem; }
details { margin-top: .6rem; } summary { cursor: pointer; color: var(--dim); font-size: .9rem; }
@media (max-width: 34rem) { .bars, dl { display: block; }
  .row { display: grid; grid-template-columns: minmax(6rem, 1fr) minmax(0, max-content); gap: 0 .7rem;
    margin-bottom: .55rem; }
  .row .track { grid-column: 1 / -1; grid-row: 2; } .row span { overflow-wrap: anywhere; } }
"""
COLOURS = 6  # --c0 … --c5


@dataclass(frozen=True)
class Markup:
    """HTML that is safe to put into a page as it is. Only this package makes one."""

    html: str


Cell = "str | Markup"


def text(value: object) -> Markup:
    """Anything else, escaped."""
    return value if isinstance(value, Markup) else Markup(html.escape(str(value), quote=True))


def joined(parts: Iterable[object], between: str = "") -> Markup:
    return Markup(between.join(text(part).html for part in parts))


def element(tag: str, content: object = "", **attributes: str) -> Markup:
    """<tag …>content</tag>; `class_` for the attribute of that name."""
    said = "".join(
        f' {name.rstrip("_").replace("_", "-")}="{html.escape(value, quote=True)}"'
        for name, value in attributes.items()
    )
    return Markup(f"<{tag}{said}>{text(content).html}</{tag}>")


def paragraph(content: object, class_: str = "") -> Markup:
    return element("p", content, class_=class_) if class_ else element("p", content)


def table(header: Sequence[object], rows: Iterable[Sequence[object]], class_: str = "") -> Markup:
    """A table in a box that scrolls sideways where the page is too narrow for it."""
    head = element("tr", joined(element("th", cell) for cell in header))
    body = joined(element("tr", joined(element("td", cell) for cell in row)) for row in rows)
    inner = joined([element("thead", head), element("tbody", body)])
    whole = element("table", inner, class_=class_) if class_ else element("table", inner)
    return element("div", whole, class_="wide")


def facts(pairs: Iterable[tuple[str, object]]) -> Markup:
    """A list of (name, what it is)."""
    items = (joined([element("dt", name, class_="dim"), element("dd", value)]) for name, value in pairs)
    return element("dl", joined(items))


def section(title: str, *parts: object) -> Markup:
    return element("section", joined([element("h2", title), *parts]))


def figures(pairs: Iterable[tuple[object, str]]) -> Markup:
    """The key figures: (value, what it is), large."""
    boxes = (
        element("div", joined([element("b", value), element("span", name)]), class_="figure") for value, name in pairs
    )
    return element("div", joined(boxes), class_="figures")


def page(title: str, *parts: object) -> str:
    """The whole document."""
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<link rel="icon" href="data:,">\n'
        f"<title>{html.escape(title)}</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n<main>\n"
        f"{joined(parts, chr(10)).html}\n</main>\n</body>\n</html>\n"
    )
