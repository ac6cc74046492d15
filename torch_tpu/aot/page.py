"""A report as one HTML page: a memory bar and a roofline plot a program, as inline SVG; no scripts, nothing fetched."""

from __future__ import annotations

import html
import math
from typing import TYPE_CHECKING

from torch_tpu.aot.table import count, seconds, size

if TYPE_CHECKING:
    from torch_tpu.aot.report import ProgramReport, Report

_COLORS = {
    "weights": "#4269d0", "buffers": "#97bbf5", "optimizer": "#9467bd", "gradients": "#ff8ab7", "cache": "#3ca951",
    "activations": "#efb118", "inputs": "#6cc5b0", "outputs": "#a1d9ce", "temporaries": "#ff725c", "code": "#9c6b4e",
    "padding": "#9498a0",
}  # fmt: skip
_BOUND_COLORS = {"MXU": "#4269d0", "HBM": "#ff725c", "ICI": "#9467bd"}

_STYLE = """
:root { color-scheme: light dark; --line: #8886; --soft: #8882; }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.4rem; margin-bottom: .2rem; } h2 { font-size: 1.15rem; margin-top: 2.2rem; }
.verdict { display: inline-block; padding: .1rem .6rem; border-radius: .3rem; color: #fff; font-weight: 600; }
.yes { background: #2b8a3e; } .no { background: #c92a2a; }
dl { display: grid; grid-template-columns: repeat(auto-fit, minmax(11rem, 1fr)); gap: .6rem; }
dl div { border: 1px solid var(--line); border-radius: .4rem; padding: .4rem .7rem; }
dt { font-size: .8rem; opacity: .75; } dd { margin: 0; font-size: 1.1rem; font-weight: 600; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th, td { text-align: left; padding: .2rem .6rem; border-bottom: 1px solid var(--line); }
td.n, th.n { text-align: right; white-space: nowrap; }
td.op { font-family: ui-monospace, monospace; font-size: .8rem; overflow-wrap: anywhere; }
svg { width: 100%; height: auto; } svg text { fill: currentColor; font: 12px system-ui, sans-serif; }
.key { display: flex; flex-wrap: wrap; gap: .2rem 1rem; font-size: .85rem; }
.key i { display: inline-block; width: .8em; height: .8em; border-radius: .15em; margin-right: .35em; }
.word { font-family: ui-monospace, monospace; font-size: .8rem; background: var(--soft); padding: .5rem;
        overflow-wrap: anywhere; }
"""


def render(r: Report) -> str:
    facts = {
        "peak memory": f"{size(r.peak_bytes)} of {size(r.available_bytes)}",
        "time of a call, at best": seconds(r.seconds),
        "bound by": r.bound,
        "MFU, at most": f"{100 * r.mfu:.1f} %",
        "compile time": f"{r.compile_seconds:.1f} s",
    }
    if r.items_per_second:
        facts[f"{r.unit}/s, at most"] = count(r.items_per_second)
    if not r.fits and r.slice_needed:
        facts["smallest slice by memory"] = f"{r.slice_needed} ({r.chips_needed} chips)"
    cards = "".join(f"<div><dt>{_text(k)}</dt><dd>{_text(v)}</dd></div>" for k, v in facts.items())
    advice = "".join(f"<li>{_text(a)}</li>" for a in r.advice)
    verdict = '<span class="verdict yes">fits</span>' if r.fits else '<span class="verdict no">does not fit</span>'
    note = "" if r.fits else "<p>Times are bounds of what would run if it did fit.</p>"
    body = "".join(_program(p, r) for p in r.programs)
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        f"<title>{_text(r.title)} on {_text(r.topology)}</title>"
        f'<meta name="viewport" content="width=device-width"><style>{_STYLE}</style></head><body>'
        f"<h1>{_text(r.title)}</h1><p>{verdict} one of {r.devices} device(s) used, of {_text(r.topology)}</p>"
        f"<dl>{cards}</dl>{note}" + (f"<ul>{advice}</ul>" if advice else "") + body + "</body></html>\n"
    )


def _text(x: object) -> str:
    return html.escape(str(x))


def _program(p: ProgramReport, r: Report) -> str:
    word = f'<p class="word">{_text(p.message)}</p>' if p.message and not p.fits else ""
    place = f"<p>{len(p.in_place)} buffers are updated in place, {len(p.copied)} are copied.</p>" if p.in_place else ""
    rows = "".join(
        f'<tr><td class="n">{o.count}</td><td class="n">{count(o.flops)}</td><td class="n">{size(o.hbm_bytes)}</td>'
        f'<td class="n">{seconds(o.seconds)}</td><td>{o.bound}</td><td class="op">{_text(o.label)}</td></tr>'
        for o in p.largest
    )
    table = (
        '<h3>Largest operations</h3><table><tr><th class="n">count</th><th class="n">FLOP</th>'
        '<th class="n">HBM bytes</th>'
        f'<th class="n">at best</th><th>bound</th><th>operation</th></tr>{rows}</table>' if rows else ""
    )  # fmt: skip
    return (
        f"<h2>Program: {_text(p.name)}</h2><p>{count(p.matrix_flops, 'FLOP')} of products, {size(p.hbm_bytes)} of HBM "
        f"traffic; MXU {seconds(p.mxu_seconds)}, HBM {seconds(p.hbm_seconds)}, ICI {seconds(p.ici_seconds)}: bound by "
        f"{p.bound}.</p>{word}{_memory_bar(p)}{place}{_roofline(p, r)}{table}"
    )


def _memory_bar(p: ProgramReport) -> str:
    """What lies in the memory, side by side, against what there is."""
    width, height, top = 900, 76, 24
    scale = width / max(p.peak_bytes, p.available_bytes, 1)
    x, boxes, keys = 0.0, [], []
    for name, nbytes in p.memory.items():
        w = max(nbytes, 0) * scale
        color = _COLORS.get(name, "#888")
        boxes.append(
            f'<rect x="{x:.1f}" y="{top}" width="{w:.2f}" height="36" fill="{color}"><title>{_text(name)}: '
            f"{size(nbytes)}</title></rect>"
        )
        keys.append(f'<span><i style="background:{color}"></i>{_text(name)} {size(nbytes)}</span>')
        x += w
    limit = p.available_bytes * scale
    boxes.append(
        f'<rect x="0" y="{top}" width="{limit:.1f}" height="36" fill="none" stroke="currentColor"/>'
        f'<line x1="{limit:.1f}" x2="{limit:.1f}" y1="{top - 6}" y2="{top + 42}" stroke="currentColor" '
        'stroke-width="2"/>'
        f'<text x="{min(limit, width - 4):.1f}" y="{top - 10}" text-anchor="end">HBM {size(p.available_bytes)}</text>'
    )
    return (
        f'<h3>Memory</h3><svg viewBox="0 0 {width} {height}" role="img" aria-label="memory by what">'
        f"{''.join(boxes)}</svg>"
        f'<div class="key">{"".join(keys)}</div>'
    )


def _roofline(p: ProgramReport, r: Report) -> str:
    """FLOP/s that the chip allows at each FLOP/byte; a circle an operation, its area its share of the time."""
    points = [(o.flops / o.hbm_bytes, o) for o in p.largest if o.flops and o.hbm_bytes]
    if not p.hbm_bytes or not p.matrix_flops:
        return ""
    width, height, left, bottom = 900, 340, 70, 40
    own = p.matrix_flops / p.hbm_bytes
    low = 10 ** math.floor(math.log10(min([x for x, _ in points] + [own, r.ridge]) / 2))
    high = 10 ** math.ceil(math.log10(max([x for x, _ in points] + [own, r.ridge]) * 2))
    ceiling, floor = r.peak_flops * 2, low * r.hbm_bandwidth / 2

    def at(intensity: float, rate: float) -> tuple[float, float]:
        x = left + (width - left - 10) * math.log(intensity / low) / math.log(high / low)
        y = 10 + (height - bottom - 10) * (1 - math.log(rate / floor) / math.log(ceiling / floor))
        return x, y

    def roof(intensity: float) -> float:
        return min(r.peak_flops, intensity * r.hbm_bandwidth)

    parts = []
    for e in range(round(math.log10(low)), round(math.log10(high)) + 1):
        x, y = at(10.0**e, floor)
        parts.append(
            f'<line x1="{x:.1f}" x2="{x:.1f}" y1="10" y2="{y:.1f}" stroke="var(--soft)"/>'
            f'<text x="{x:.1f}" y="{height - 22}" text-anchor="middle">{10.0**e:g}</text>'
        )
    for e in range(math.ceil(math.log10(floor)), math.floor(math.log10(ceiling)) + 1):
        x, y = at(low, 10.0**e)
        parts.append(
            f'<line x1="{left}" x2="{width - 10}" y1="{y:.1f}" y2="{y:.1f}" stroke="var(--soft)"/>'
            f'<text x="{left - 6}" y="{y + 4:.1f}" text-anchor="end">{count(10.0**e)}</text>'
        )
    corners = [at(i, roof(i)) for i in (low, r.ridge, high)]
    line = " ".join(f"{x:.1f},{y:.1f}" for x, y in corners)
    parts.append(f'<polyline points="{line}" fill="none" stroke="currentColor" stroke-width="2"/>')
    total = sum(o.seconds for o in p.largest) or 1.0
    for intensity, o in points:
        x, y = at(intensity, roof(intensity))
        radius = 3 + 22 * math.sqrt(o.seconds / total)
        parts.append(
            f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{radius:.1f}" fill="{_BOUND_COLORS[o.bound]}" fill-opacity=".45" '
            f'stroke="{_BOUND_COLORS[o.bound]}"><title>{_text(o.label)}: {o.count} x, {seconds(o.seconds)}</title>'
            "</circle>"
        )
    x, y = at(own, p.matrix_flops / p.seconds)
    parts.append(
        f'<path d="M{x:.1f} {y - 7:.1f} l7 7 l-7 7 l-7 -7 z" fill="currentColor"><title>the whole program</title>'
        "</path>"
        f'<text x="{(left + width) / 2:.0f}" y="{height - 4}" text-anchor="middle">FLOP per byte of HBM</text>'
        f'<text x="4" y="22">FLOP/s</text>'
    )
    return (
        f'<h3>Roofline</h3><svg viewBox="0 0 {width} {height}" role="img" aria-label="roofline plot">'
        f"{''.join(parts)}</svg>"
        '<p class="key">circle: an operation with products, its area its share of the time (blue: bound by the '
        "MXU, red: by HBM); diamond: the whole program</p>"
    )
