"""How the report looks: by day, by night, on a wide screen and on a phone."""

from typing import Final

__all__ = ["STYLE"]

STYLE: Final = """
:root {
  color-scheme: light dark;
  --paper: #f6f7f9; --card: #ffffff; --ink: #1c2230; --soft: #5c6575; --rule: #dfe3ea;
  --s0: #3b6fd4; --s1: #e8a013; --s2: #e4604e; --s3: #3fae9a;
  --s4: #7a57c9; --s5: #62a336; --s6: #d8679c; --s7: #8a6a4f; --rest: #a4abb8;
}
@media (prefers-color-scheme: dark) {
  :root {
    --paper: #12151c; --card: #1b202a; --ink: #e6e9f0; --soft: #9aa4b5; --rule: #303846;
    --s0: #6f9cf2; --s1: #f0b646; --s2: #f2816f; --s3: #5fcab6;
    --s4: #a68bea; --s5: #8bc95f; --s6: #ec8fba; --s7: #b8957a; --rest: #687183;
  }
}
* { box-sizing: border-box; }
body {
  margin: 0 auto; padding: 2rem 1.25rem 3rem; max-width: 60rem; background: var(--paper);
  color: var(--ink); font: 16px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, sans-serif;
}
h1 { margin: 0; font-size: 1.75rem; line-height: 1.2; overflow-wrap: anywhere; }
h2 { margin: 0 0 .25rem; font-size: 1.15rem; }
header p, footer p, p.note { margin: .35rem 0 0; color: var(--soft); }
p.note { margin: 0 0 .75rem; font-size: .9rem; }
footer { margin-top: 2rem; font-size: .85rem; }
section, .tiles > div {
  background: var(--card); border: 1px solid var(--rule); border-radius: .6rem;
}
section { margin-top: 1.25rem; padding: 1.1rem 1.25rem; }
.tiles {
  display: grid; grid-template-columns: repeat(auto-fit, minmax(8.5rem, 1fr)); gap: .75rem;
  margin: 1.5rem 0 0;
}
.tiles > div { padding: .8rem 1rem; min-width: 0; }
.tiles dt { color: var(--soft); font-size: .85rem; }
.tiles dd { margin: 0; }
.tiles .value { font-size: 1.4rem; font-weight: 600; line-height: 1.3; overflow-wrap: anywhere; }
.tiles .note { color: var(--soft); font-size: .8rem; }
svg { display: block; width: 100%; height: auto; overflow: visible; }
svg text { fill: var(--soft); font-size: 12px; font-variant-numeric: tabular-nums; }
svg text.title { fill: var(--ink); }
.grid { stroke: var(--rule); }
.ground { stroke: var(--soft); }
.line { fill: none; stroke: var(--s0); stroke-width: 1.75; stroke-linejoin: round; }
.area { fill: var(--s0); opacity: .15; }
.hit { fill: transparent; }
.dot { fill: var(--s0); opacity: 0; }
.point:hover .dot { opacity: 1; }
.point:hover .hit { fill: var(--soft); opacity: .12; }
rect.s0, i.s0 { fill: var(--s0); background: var(--s0); }
rect.s1, i.s1 { fill: var(--s1); background: var(--s1); }
rect.s2, i.s2 { fill: var(--s2); background: var(--s2); }
rect.s3, i.s3 { fill: var(--s3); background: var(--s3); }
rect.s4, i.s4 { fill: var(--s4); background: var(--s4); }
rect.s5, i.s5 { fill: var(--s5); background: var(--s5); }
rect.s6, i.s6 { fill: var(--s6); background: var(--s6); }
rect.s7, i.s7 { fill: var(--s7); background: var(--s7); }
rect.rest, i.rest { fill: var(--rest); background: var(--rest); }
rect[class^="s"]:hover, rect.rest:hover { opacity: .75; }
.legend {
  display: flex; flex-wrap: wrap; gap: .25rem 1.1rem; margin: .6rem 0 0; padding: 0;
  list-style: none; font-size: .9rem;
}
.legend li { overflow-wrap: anywhere; }
.legend i {
  display: inline-block; width: .75em; height: .75em; margin-right: .45em; border-radius: .15em;
}
.table { overflow-x: auto; }
table { width: 100%; border-collapse: collapse; font-size: .92rem; }
th, td { padding: .35rem .6rem; border-bottom: 1px solid var(--rule); text-align: left; }
th { color: var(--soft); font-weight: 500; white-space: nowrap; }
td.word { overflow-wrap: anywhere; min-width: 7rem; }
.number, .time { text-align: right; white-space: nowrap; font-variant-numeric: tabular-nums; }
tbody tr:last-child td { border-bottom: 0; }
.narrow { display: none; }
@media (max-width: 40rem) {
  body { padding: 1.25rem .75rem 2rem; }
  section { padding: .9rem .8rem; }
  .wide { display: none; }
  .narrow { display: block; }
  table { font-size: .85rem; }
  th, td { padding: .35rem .3rem; vertical-align: top; }
  td.word { min-width: 5rem; }
  .time { white-space: normal; min-width: 4.9rem; }
}
"""
