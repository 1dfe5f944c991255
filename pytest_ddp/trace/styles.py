"""Style sheets of the pages that this project writes, for light and dark mode.

The colours of operations are those of Okabe and Ito, which people with any kind of colour vision
can distinguish; red is reserved for failures.
"""

from __future__ import annotations

BASE = """
:root { color-scheme: light dark;
  --ground: #ffffff; --lane: #f4f6f9; --ink: #1b2330; --soft: #5d6878; --grid: #dfe4ea;
  --bad: #c8102e; --waits: #b45309; --good: #1a7f4b; --mark-ink: #ffffff; }
@media (prefers-color-scheme: dark) { :root {
  --ground: #10151c; --lane: #1a212b; --ink: #e8edf4; --soft: #9aa7b8; --grid: #2c3644;
  --bad: #ff5c6c; --waits: #f5a84b; --good: #4cc38a; --mark-ink: #10151c; } }
body { margin: 0; background: var(--ground); color: var(--ink);
  font: 14px/1.45 system-ui, "Segoe UI", "DejaVu Sans", sans-serif; }
main { max-width: 1216px; margin: 0 auto; padding: 20px 32px 28px; }
@media (max-width: 600px) { main { padding: 14px 14px 20px; } }
h1 { font-size: 21px; line-height: 1.3; margin: 0 0 6px; overflow-wrap: anywhere; }
h2 { font-size: 16px; margin: 26px 0 6px; overflow-wrap: anywhere; }
.facts { margin: 0 0 14px; color: var(--soft); overflow-wrap: anywhere; }
code, pre { font: 12.5px/1.4 ui-monospace, "DejaVu Sans Mono", monospace; }
table { border-collapse: collapse; width: 100%; }
th, td { text-align: left; vertical-align: top; overflow-wrap: anywhere; }
summary { cursor: pointer; }
"""
"""What all pages share."""

COLOURED = (
    *("all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce", "gather", "scatter"),
    *("all_to_all", "barrier", "send", "other"),
)
PICTURE = """
:root { --phase: #c9d3df; --setup: #dbe3ec; --inner: #d5cdec; --inner-ink: #352a5e;
  --all_reduce: #0072b2; --all_gather: #009e73; --reduce_scatter: #a34a86; --broadcast: #d98200;
  --reduce: #3f51b5; --gather: #2f8f9d; --scatter: #7a5195; --all_to_all: #8a6d00;
  --barrier: #64748b; --send: #8d6e63; --other: #7b8794; }
@media (prefers-color-scheme: dark) { :root {
  --phase: #3a4757; --setup: #2c3745; --inner: #4a4173; --inner-ink: #ece8fb;
  --all_reduce: #3d9fdb; --all_gather: #29b98d; --reduce_scatter: #cc79a7; --broadcast: #e69f00;
  --reduce: #8090f0; --gather: #56c1d0; --scatter: #b08ad0; --all_to_all: #c9a227;
  --barrier: #8b9bb0; --send: #b99686; --other: #93a1b0; } }
figure { margin: 0; overflow-x: auto; }
svg { display: block; width: 100%; min-width: 900px; height: auto;
  font: 12px system-ui, "Segoe UI", "DejaVu Sans", sans-serif; }
.lane { fill: var(--lane); }
.name { font-size: 15px; font-weight: 600; fill: var(--ink); }
.end { font-size: 12px; }
.grid { stroke: var(--grid); }
.tick { fill: var(--soft); font-size: 11px; }
.silence { fill: var(--ground); opacity: .55; }
.tick.silent { font-style: italic; }
.phase { fill: var(--phase); }
.phase.setup, .phase.teardown { fill: var(--setup); }
.phase.inner { fill: var(--inner); }
.label { font-size: 10.5px; fill: var(--ink); pointer-events: none; }
.phase.inner + .label { fill: var(--inner-ink); }
.op-label { font-size: 11.5px; font-weight: 600; fill: #ffffff; pointer-events: none;
  paint-order: stroke; stroke: rgb(0 0 0 / .45); stroke-width: 2px; }
.op { stroke: var(--lane); stroke-width: .5px; }
.call:hover .op, g:hover > .phase { filter: brightness(1.15); }
.unawaited { opacity: .55; }
rect.unfinished { fill: url(#open); stroke: var(--bad); stroke-width: 2px; }
.stripe { fill: var(--lane); opacity: .55; }
.ribbon { opacity: .16; }
.gone { stroke: var(--soft); stroke-width: 1.5px; stroke-dasharray: 2 5; }
.mark circle { stroke: var(--lane); stroke-width: 2px; }
.mark text { font-size: 11px; font-weight: 700; fill: var(--mark-ink); pointer-events: none; }
.mark.bad circle { fill: var(--bad); } .mark.waits circle { fill: var(--waits); }
.mark.good circle { fill: var(--good); }
.end.bad { fill: var(--bad); } .end.waits { fill: var(--waits); } .end.good { fill: var(--good); }
.legend { list-style: none; display: flex; flex-wrap: wrap; gap: 6px 20px; padding: 0;
  margin: 0 0 10px; color: var(--soft); font-size: 13px; }
.legend i { display: inline-block; width: 22px; height: 12px; border-radius: 3px;
  margin-right: 7px; vertical-align: -1px; }
.legend .unfinished { box-sizing: border-box; border: 2px solid var(--bad);
  background: repeating-linear-gradient(135deg, var(--soft) 0 4px, transparent 4px 8px); }
.legend .inner { background: var(--inner); }
.legend .silent { background: var(--ground); border: 1px dashed var(--soft);
  box-sizing: border-box; }
""" + "\n".join(
    f".op-{name} {{ fill: var(--{name}); background: var(--{name}); }}" for name in COLOURED
)
"""The picture of a trace, and its legend."""

RANKS = """
table { margin-top: 16px; }
th[scope=row], th:nth-child(2) { width: 92px; } th:nth-child(4) { width: 30%; }
th, td { padding: 6px 12px 6px 0; border-top: 1px solid var(--grid); }
thead th { border: 0; color: var(--soft); font-weight: 400; font-size: 12px; }
th[scope=row] { white-space: nowrap; }
.pill { display: inline-block; padding: 0 9px; border-radius: 9px; font-size: 12.5px;
  color: var(--mark-ink); white-space: nowrap; }
.pill.bad { background: var(--bad); } .pill.waits { background: var(--waits); }
.pill.good { background: var(--good); }
"""
"""The table of ranks below a picture."""
