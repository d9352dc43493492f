"""The report as one HTML file without network or script; its size does not grow with the trace."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from html import escape
from pathlib import Path

from npukit.errors import NpukitError
from npukit.performance.advise.advise import Advised, judge
from npukit.performance.advise.compare import kind_of
from npukit.performance.advise.flops import flops_of, peak_of
from npukit.performance.advise.rank import Rank
from npukit.performance.advise.rule import Advice
from npukit.performance.advise.rules import all_rules
from npukit.performance.advise.text import PARTS, SIMULATED, heading
from npukit.performance.read import read_profiles
from npukit.performance.read.model import Kernel, Sample, Work
from npukit.report.rendering import Format, render
from npukit.report.report import Report
from npukit.report.terminal import printable_line
from npukit.report.writing import write_text
from npukit.spans import Spans, union

WIDTH, LANE = 1200, 14  # of a drawing
SHOWN_RANKS, SHOWN_OPERATORS = 16, 25


def write_report(paths: Sequence[Path], file: Path) -> Advised:
    """Judge the profiles of a job and write the page, or SARIF for the findings with a source line.

    >>> write_report([Path("profile")], Path("report.html")).advice
    """
    if file.suffix not in (".html", ".sarif"):
        raise NpukitError(f"--report {file}: name a file that ends in .html or .sarif.")
    traces = read_profiles(paths)
    advised = judge(traces)
    write_text(file, page_of([Rank(trace) for trace in traces], advised) if file.suffix == ".html" else _sarif(advised))
    return advised


def _sarif(advised: Advised) -> str:
    placed = [advice for advice in advised.advice if advice.finding.place]
    verdict = f"{len(placed)} of {len(advised.advice)} findings have a source line"
    names = {rule.code: rule.name for rule in all_rules()}
    shares = ((advice.finding, f"({advice.percent:.1f}% of the step)") for advice in placed)
    findings = [replace(finding, what=f"{finding.what} {share}") for finding, share in shares]
    return render(Report("profile", verdict, findings, rule_names=names), Format.sarif)


def page_of(ranks: Sequence[Rank], advised: Advised) -> str:
    """The page of a profile.

    >>> write_text(Path("report.html"), page_of(ranks, advised))
    """
    template = Path(__file__).with_name("page.html").read_text(encoding="utf-8")
    simulated = f"{SIMULATED} " if advised.simulated else ""
    drawn = [rank for rank in ranks if rank.has_timeline][:SHOWN_RANKS]
    parts = {
        "TITLE": "Where the time of a step goes",
        "FACTS": _text(simulated + ", ".join(advised.profiles[:4])),
        "SPLIT": "".join(_split(advised)),
        "ADVICE": "".join(map(_advice, advised.advice)) or "<p>Nothing above 0.5% of the step.</p>",
        "TIMELINE": _timeline(drawn),
        "OPERATORS": _operators(drawn[0]) if drawn else "",
        "MEMORY": _memory(next((rank for rank in ranks if rank.trace.memory), None)),
        "MATRIX": _matrix(ranks),
        "UNJUDGED": _unjudged(advised),
    }
    for name, text in parts.items():
        template = template.replace("{{" + name + "}}", text)
    return template


def _text(text: str) -> str:
    return escape(printable_line(text))


def _split(advised: Advised) -> Iterator[str]:
    for rank in advised.ranks[:SHOWN_RANKS]:
        step = rank.step_ms or 1.0
        figures = {name: getattr(rank.split, name) or 0.0 for name in (*PARTS, "idle")}
        bars = "".join(_bar(name, ms, 100 * ms / step) for name, ms in figures.items() if ms > 0)
        yield f'<div class="row"><small>{_text(heading(rank))}</small><div class="bar">{bars}</div></div>'


def _bar(name: str, ms: float, percent: float) -> str:
    label = f"{percent:.0f}%" if percent >= 3 else ""
    return f'<span class="{name}" style="width:{percent:.2f}%" title="{name} {ms:.2f} ms">{label}</span>'


def _advice(advice: Advice) -> str:
    finding = advice.finding
    won = f"{advice.ms:.1f} ms" if advice.ms else "note"
    place = f" ({finding.place.file}:{finding.place.line})" if finding.place else ""
    return (
        f"<details><summary><b>{won}</b><code>{finding.code}</code><span>{_text(finding.what)}</span>"
        f"<small>{advice.percent:.1f}% · {advice.confidence.value} confidence</small></summary>"
        f"<p>{_text(finding.evidence + place)}</p><p>{_text(finding.why)}</p><p>{_text(finding.remedy)}</p></details>"
    )


def _timeline(ranks: Sequence[Rank]) -> str:
    """A timeline of one step of each rank: the second if there are several, because the first is often slow."""
    if not ranks:
        return ""
    steps = ranks[0].trace.steps
    base = ranks[0].trace.base
    start, end = ranks[0].window
    if len(steps) > 1:
        start, end = steps[1].start, max(steps[1].end, start)
    drawn = []
    for number, rank in enumerate(ranks):
        top = 18 + number * (LANE * 3 + 10)
        drawn.append(f'<text x="0" y="{top + 11}">rank {rank.trace.rank}</text>')
        shift = base - rank.trace.base
        lanes = {"compute": rank.computing, "communication": rank.communicating, "host": rank.waiting_for_host}
        for lane, (name, spans) in enumerate(lanes.items()):
            y = top + lane * LANE
            drawn += _boxes([(a - shift, b - shift) for a, b in spans], start, end, y, name)
    height = 24 + len(ranks) * (LANE * 3 + 10)
    axis = f'<text x="60" y="11">0 ms</text><text x="{WIDTH - 70}" y="11">{(end - start) / 1e6:.1f} ms</text>'
    return f'<h2>Time line of a step</h2><svg viewBox="0 0 {WIDTH} {height}">{axis}{"".join(drawn)}</svg>'


def _boxes(spans: Spans, start: int, end: int, y: int, name: str) -> Iterator[str]:
    """Rectangles; those that are closer than a pixel are drawn as one."""
    scale = (WIDTH - 60) / max(1, end - start)
    pixel = round(1 / scale) or 1
    near = union((a // pixel, max(b // pixel, a // pixel + 1)) for a, b in spans if b > start and a < end)
    for a, b in near:
        left = 60 + max(0.0, (a * pixel - start) * scale)
        width = min((b - a) * pixel * scale, WIDTH - left)
        yield f'<rect class="{name}" x="{left:.1f}" y="{y}" width="{width:.1f}" height="{LANE - 2}"/>'


def _operators(rank: Rank) -> str:
    """The operators that take longest, with their share of the device's peak."""
    groups: dict[str, list[Kernel]] = defaultdict(list)
    for kernel in rank.of(Work.compute, Work.aicpu, Work.communication):
        groups[kernel.op or kernel.type].append(kernel)
    longest = sorted(groups.items(), key=lambda group: -sum(kernel.duration for kernel in group[1]))[:SHOWN_OPERATORS]
    peak, step, rows = peak_of(rank.trace), rank.split.step or 1.0, []
    for name, kernels in longest:
        ms = rank.time_of(kernels)
        rate = sum(map(flops_of, kernels)) / max(1, sum(kernel.duration for kernel in kernels)) * 1e9
        reached = f"{rate / 1e12:.1f}" + (f" ({100 * rate / peak:.0f}%)" if peak else "") if rate else ""
        figures = (f"{len(kernels) / rank.steps:.0f}", f"{ms:.2f}", f"{100 * ms / step:.1f}%", reached)
        cells = "".join(f'<td class="n">{figure}</td>' for figure in figures)
        kind = kind_of(max(kernels, key=lambda kernel: kernel.duration))
        rows.append(f"<tr><td>{_text(name[:80])}</td><td>{kind}</td>{cells}</tr>")
    names = ("calls per step", "ms per step", "of the step", "TFLOP/s (of the peak)")
    head = "<th>operator</th><th>kind</th>" + "".join(f'<th class="n">{name}</th>' for name in names)
    return f"<h2>Operators of rank {rank.trace.rank}</h2><table><tr>{head}</tr>{''.join(rows)}</table>"


def _memory(rank: Rank | None) -> str:
    if rank is None:
        return ""
    samples = _thinned(rank.trace.memory, WIDTH // 2)
    highest = max(max(sample.reserved, sample.allocated) for sample in samples) or 1
    start, end = samples[0].time, max(samples[-1].time, samples[0].time + 1)

    def line(name: str, values: Iterable[tuple[int, int]]) -> str:
        points = " ".join(
            f"{WIDTH * (time - start) / (end - start):.1f},{125 - 115 * value / highest:.1f}" for time, value in values
        )
        return f'<polyline class="{name}" points="{points}"/>'

    lines = line("compute", ((sample.time, sample.allocated) for sample in samples))
    lines += line("host", ((sample.time, sample.reserved) for sample in samples if sample.reserved))
    held = f", the whole process {rank.trace.process_memory / 2**30:.2f} GiB" if rank.trace.process_memory else ""
    return (
        f"<h2>Memory of rank {rank.trace.rank}</h2><p class='dim'>allocated (green) and reserved (orange), at most "
        f"{highest / 2**30:.2f} GiB{held}</p><svg viewBox='0 0 {WIDTH} 130'>{lines}</svg>"
    )


def _thinned(samples: Sequence[Sample], count: int) -> list[Sample]:
    """At most as many samples as can be drawn, the highest of each interval."""
    ordered = sorted(samples)
    size = -(-len(ordered) // count)
    return [max(ordered[at : at + size], key=lambda sample: sample.allocated) for at in range(0, len(ordered), size)]


def _matrix(ranks: Sequence[Rank]) -> str:
    """The links between ranks: GB/s, coloured by it."""
    moved: dict[tuple[int, int], list[float]] = defaultdict(lambda: [0.0, 0.0])
    for rank in ranks:
        for link in rank.trace.links:
            if link.transport != "LOCAL" and link.seconds > 0:
                pair = moved[link.source, link.target]
                pair[0], pair[1] = pair[0] + link.bytes, pair[1] + link.seconds
    if not moved:
        return ""
    rates = {pair: size / seconds / 1e9 for pair, (size, seconds) in moved.items()}
    sources, targets = sorted({a for a, _ in rates}), sorted({b for _, b in rates})
    highest, rows = max(rates.values()) or 1.0, []
    for source in sources[:64]:
        cells = "".join(_cell(rates.get((source, target)), highest) for target in targets[:64])
        rows.append(f"<tr><th>{source}</th>{cells}</tr>")
    head = "".join(f"<th>{target}</th>" for target in targets[:64])
    return (
        "<h2>Links between ranks</h2><p class='dim'>GB/s, from the rank of the row to that of the column</p>"
        f"<table class='matrix'><tr><th></th>{head}</tr>{''.join(rows)}</table>"
    )


def _cell(rate: float | None, highest: float) -> str:
    if rate is None:
        return "<td></td>"
    return f'<td style="background:hsl({120 * rate / highest:.0f} 60% 70%)">{rate:.1f}</td>'


def _unjudged(advised: Advised) -> str:
    rows = [f"<li><code>{rule.code}</code> {rule.name}: needs {_text(rule.needs)}</li>" for rule in advised.unjudged]
    rows += [f"<li>not read: {_text(note)}</li>" for note in advised.notes]
    return f"<h2>Not judged</h2><ul>{''.join(rows)}</ul>" if rows else ""
