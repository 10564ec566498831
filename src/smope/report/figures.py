"""The figures of a comparison, each from its lines and their records alone."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from statistics import fmean

from smope.metrics import Matrix, task_averages
from smope.report.charts import Curve, Point, curve_chart, point_chart
from smope.report.compare import Line
from smope.report.forms import ranges
from smope.report.html import Html, el, join
from smope.report.records import Record
from smope.report.sheet import Sheet
from smope.report.svg import Look
from smope.report.tabular import matrix_table, sheet_table
from smope.report.usage import Usage, spread_table, usage_key, usage_maps

_TICKS = 12
_MOST_CURVES = 16  #: that one can follow in one drawing
_STROKES = ("solid", "dashed", "dotted", "dash-dotted")  #: the words for svg.DASHES


def looks(lines: Sequence[Line]) -> list[Look]:
    """A hue for each method, a stroke for each protocol; markers in turn, so that neighbours differ."""
    methods = list(dict.fromkeys(line.method for line in lines))
    protocols = list(dict.fromkeys(line.protocol for line in lines))
    return [Look.of(methods.index(line.method), index, protocols.index(line.protocol)) for index, line in enumerate(lines)]


def curves(lines: Sequence[Line], look: Sequence[Look], ident: str) -> Html:
    """A_t of every line, in the mean over its seeds; a drawing for each protocol where they are too many for one.

    A line of one task (an upper bound) stands where all classes are learned.
    """
    protocols = dict.fromkeys(line.protocol for line in lines)
    if len(lines) > _MOST_CURVES and len(protocols) > 1:
        groups = [[index for index, line in enumerate(lines) if line.protocol == protocol] for protocol in protocols]
        return join(
            curves([lines[index] for index in group], [look[index] for index in group], f"{ident}-{number}")
            for number, group in enumerate(groups)
        )
    drawn = []
    for line, its in zip(lines, look, strict=True):
        drawn.append(Curve(line.name, _so_far(line), tuple(task_averages(_mean_matrix(line.records))), its))
    ticks, x_label = _task_ticks(lines)
    chart = curve_chart(ident, "Accuracy over the tasks so far, after each task", drawn, ticks, x_label)
    strokes = "; ".join(f"{_STROKES[index % len(_STROKES)]}: {protocol}" for index, protocol in enumerate(protocols))
    told = f"Colour: the method; stroke: {strokes}." if len(protocols) > 1 else f"All lines: {strokes.partition(': ')[2]}."
    caption = f"Mean over the tasks so far, in percent, mean over seeds. {told}"
    return el("figure", chart, el("figcaption", caption))


def _task_ticks(lines: Sequence[Line]) -> tuple[list[tuple[float, str]], str]:
    """Where the axis is marked and what it counts: tasks where all lines have the same ones, otherwise classes."""
    cuts = {tuple(line.records[0]["task_sizes"]) for line in lines if line.tasks > 1} or {tuple(lines[0].records[0]["task_sizes"])}
    sizes = next(iter(cuts))
    if len(cuts) > 1:
        return [(share, f"{share * sum(sizes):.0f}") for share in (0.0, 0.25, 0.5, 0.75, 1.0)], "classes learned"
    step = -(-len(sizes) // _TICKS)
    shares = [count / sum(sizes) for count in accumulate(sizes)]
    ticks = [(share, str(task)) for task, share in enumerate(shares, 1) if task == 1 or task % step == 0]
    each = f" ({sizes[0]} classes each)" if len(set(sizes)) == 1 else ""
    return ticks, f"tasks learned{each}"


def _so_far(line: Line) -> tuple[float, ...]:
    """The share of all classes that was learned after each task."""
    sizes = line.records[0]["task_sizes"]
    return tuple(count / sum(sizes) for count in accumulate(sizes))


def cost(lines: Sequence[Line], look: Sequence[Look], ident: str) -> Html:
    """What is learned and how long it takes, against FAA."""

    def figure(name: str, title: str, costs: Sequence[float], x_label: str, caption: str) -> Html:
        points = [Point(line.name, one, line.faa.mean, its) for line, one, its in zip(lines, costs, look, strict=True)]
        return el("figure", point_chart(f"{ident}-{name}", f"{title} against FAA", points, x_label), el("figcaption", caption))

    learnable, minutes = [line.trainable_parameters for line in lines], [line.core_minutes for line in lines]
    head = "FAA in percent over learnable parameters, the head included."
    time = "FAA in percent over minutes of the processor of a whole run; where no record counted them, over wall time times threads."
    left = figure("parameters", "Learnable parameters", learnable, "learnable parameters", head)
    right = figure("minutes", "Core minutes", minutes, "core minutes of a run", time)
    return el("div", left, right, class_="pair")


def tasks(lines: Sequence[Line]) -> Html:
    """For each line, folded: the accuracy matrix, and each task when it was fresh and at the end."""
    folds = []
    for index, line in enumerate(lines):
        matrix = _mean_matrix(line.records)
        over = f"{line.name}, seed{'s' if len(line.seeds) > 1 else ''} {ranges(line.seeds)}"
        rows = []
        for task, size in enumerate(line.records[0]["task_sizes"]):
            learned, now = matrix[task][task], matrix[-1][task]
            rows.append((str(task + 1), str(size), f"{learned:.1f}", f"{now:.1f}", _signed(now - learned)))
        columns = ("task", "classes", "learned", "now", "change")
        each = sheet_table(Sheet("", columns, tuple(rows), numbers=columns[1:]), f"Each task as learned and now: {over}")
        heat = matrix_table(matrix, f"Accuracy on each task (across) after each task (down): {over}")
        summary = el("summary", el("b", line.name), f" {line.faa} FAA")
        folds.append(el("details", summary, el("div", heat, each, class_="pair"), open=index == 0))
    return join(folds)


def usage(lines: Sequence[Line], ident: str) -> Html | None:
    """Which experts were chosen, for lines whose records count it; one seed each, since experts of two seeds have nothing in common."""
    folds: list[Html] = []
    for line in lines:
        found = Usage.of(line.records[0])
        if found is None:
            continue
        seed, experts = line.seeds[0], found.overall_LHP.shape[-1]
        table = spread_table(found, f"Experts in use out of {experts}: exp of the entropy of their use, mean over heads")
        caption = (
            f"{line.name}, seed {seed}. Each map is a head. Across: its {experts} experts, the most used first; down: tasks 1 to "
            f"{len(found.by_task_TLHP)}, and under the gap all together. The further a cell's colour is from the ground's, the larger the "
            "share of the task's images that chose the expert."
        )
        maps = el("figure", el("figcaption", caption), usage_key(), usage_maps(found, f"{ident}-{len(folds)}"))
        folds.append(el("details", el("summary", el("b", line.name), f" seed {seed}"), table, maps, open=not folds))
    return join(folds) if folds else None


def _mean_matrix(records: Sequence[Record]) -> Matrix:
    matrices = [record["accuracy"] for record in records]
    return [[fmean(matrix[t][i] for matrix in matrices) for i in range(t + 1)] for t in range(len(matrices[0]))]


def _signed(change: float) -> str:
    return f"{change:+.1f}" if round(change, 1) else "0.0"
