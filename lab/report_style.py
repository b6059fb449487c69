"""The report's style sheet: light and dark, readable at a laptop's width and on paper."""

from __future__ import annotations

from typing import Final

# Eight hues that stay apart for colour-blind readers; each line is named at its end besides.
STYLE: Final = """
:root { color-scheme: light dark; --page: #ffffff; --card: #ffffff; --ink: #1b1f24;
  --soft: #57606a; --grid: #e6e9ed; --axis: #aab2bb; --onset: #b3261e; --critical: #c62828;
  --warning: #b26a00; --down: #c6282822; --s0: #0b62a8; --s1: #c25e00; --s2: #00795c;
  --s3: #a23b78; --s4: #2f8fd0; --s5: #8a6d00; --s6: #5f4bb6; --s7: #5a6570; }
@media (prefers-color-scheme: dark) { :root { --page: #14171b; --card: #1b1f24; --ink: #e8ebee;
  --soft: #a3acb6; --grid: #2c3239; --axis: #59626c; --onset: #ff8a80; --critical: #d9534f;
  --warning: #c98a1b; --down: #ff8a8026; --s0: #62b0f0; --s1: #f2a154; --s2: #4cc9a4;
  --s3: #e58fc0; --s4: #9fd3ff; --s5: #d9bf4d; --s6: #b3a5f5; --s7: #b6c0ca; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--page); color: var(--ink);
  font: 15px/1.45 system-ui, -apple-system, "Segoe UI", "DejaVu Sans", sans-serif; }
main { max-width: 1120px; margin: 0 auto; padding: 28px 24px 48px; }
h1 { font-size: 24px; margin: 0 0 2px; font-weight: 650; }
h2 { font-size: 16px; margin: 30px 0 2px; font-weight: 650; }
p { margin: 0 0 6px; color: var(--soft); }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(170px, 1fr)); gap: 10px;
  margin: 18px 0 4px; }
.tile { background: var(--card); border: 1px solid var(--grid); border-radius: 8px;
  padding: 10px 14px; }
.tile b { display: block; font-size: 20px; font-weight: 650; font-variant-numeric: tabular-nums; }
.tile span { color: var(--soft); font-size: 13px; }
.tile.bad b { color: var(--critical); }
svg { width: 100%; height: auto; display: block; font: 12px system-ui, "DejaVu Sans", sans-serif; }
.grid { stroke: var(--grid); } .axis { stroke: var(--axis); }
.tick, .small { fill: var(--soft); font-size: 11.5px; font-variant-numeric: tabular-nums; }
.line { fill: none; stroke-width: 1.8; stroke-linejoin: round; } .dot { fill-opacity: .72; }
.dot.open { fill: none; stroke: var(--onset); stroke-width: 1.4; }
.key i.open { border: 1.5px solid var(--onset); border-radius: 50%; }
.limit { stroke: var(--axis); stroke-dasharray: 4 4; }
.onset { stroke: var(--onset); stroke-width: 1.5; stroke-dasharray: 5 3; }
.onset-name { fill: var(--onset); font-size: 11.5px; font-weight: 600; }
.down { fill: var(--down); } .critical { fill: var(--critical); } .warning { fill: var(--warning); }
.info { fill: var(--s7); } .inbar { fill: #ffffff; font-size: 12px; font-weight: 600; }
.key { display: inline-flex; align-items: center; gap: 6px; margin-right: 16px; font-size: 13px;
  color: var(--soft); }
.key i { width: 11px; height: 11px; border-radius: 3px; display: inline-block; }
table { border-collapse: collapse; width: 100%; margin-top: 8px; font-size: 14px; }
th, td { text-align: left; padding: 6px 10px 6px 0; border-bottom: 1px solid var(--grid);
  vertical-align: top; } th { color: var(--soft); font-weight: 600; }
td.n, th.n { text-align: right; font-variant-numeric: tabular-nums; }
td b, code { white-space: nowrap; }
code { font: 13px ui-monospace, "DejaVu Sans Mono", monospace; }
""" + "".join(
    f".line.s{i} {{ stroke: var(--s{i}); }} .dot.s{i}, .bar.s{i}, .name.s{i} "
    f"{{ fill: var(--s{i}); }} .key i.s{i} {{ background: var(--s{i}); }}\n"
    for i in range(8)
)
