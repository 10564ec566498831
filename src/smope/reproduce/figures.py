"""The paper's figures from runs' own records: a PNG, an SVG, and beside them the numbers they were drawn from."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from smope.engine.analysis import analyse
from smope.engine.run import HISTORY
from smope.errors import ConfigError
from smope.files import read_json, write_json
from smope.progress import SILENT, Progress
from smope.report import curves
from smope.report.compare import Spread
from smope.report.drawing import COLOURS, FAINT, INK, save
from smope.report.usage import Usage
from smope.reproduce.plan import Planned
from smope.reproduce.store import Store
from smope.reproduce.studies import Study

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Data = dict[str, Any]
Places = Sequence[tuple[int, int]]  #: heads, by block and head, both counted from 0


def figure(
    study: Study, planned: Sequence[Planned], store: Store, stem: Path, progress: Progress = SILENT, places: Places = ((0, 0),)
) -> list[Path]:
    """Draw a study whose runs are all there; `places` are the heads that a figure of single heads shows."""
    if study.name == "accuracy-curves":
        records = {run.cell.row: run.record for run in planned if run.record is not None and run.seed == planned[0].seed}
        data: Data = {name: record["accuracy"] for name, record in records.items()}
        paths = [curves(records, stem.with_suffix(suffix), study.title) for suffix in (".png", ".svg")]
    else:
        gather, draw, size = _FIGURES[study.name]
        data = gather(planned, places) if study.heads else gather(planned, store, progress)
        paths = save(lambda page: draw(page, data), stem, size, study.title)
    write_json(stem.with_suffix(".json"), data)
    return [*paths, stem.with_suffix(".json")]


# -- what each shows -----------------------------------------------------------------------------------------------------


def _epsilon(planned: Sequence[Planned], store: Store, progress: Progress) -> Data:
    """What was run of the sweep; a value in between that was not is left out."""
    values: dict[str, list[float]] = {}
    for run in [one for one in planned if one.record is not None] or planned:
        values.setdefault(run.cell.column, []).append(_record(run)["faa"])
    spreads = {name: Spread.of(scores) for name, scores in values.items()}
    return {
        "eps": [float(name) for name in spreads],
        "faa": [one.mean for one in spreads.values()],
        "deviation": [one.deviation for one in spreads.values()],
    }


def _frequencies(planned: Sequence[Planned], places: Places) -> Data:
    """Of each head, by eps: the share of all images that chose each expert."""
    runs = [run for run in planned if run.seed == planned[0].seed]
    return {run.cell.row: {_name(at): _usage(run, at)[1][-1] for at in places} for run in runs}


def _evolution(planned: Sequence[Planned], places: Places) -> Data:
    """Of each head: the share of each task's own images that chose each expert."""
    return {_name(at): _usage(planned[0], at)[0] for at in places}


def _usage(run: Planned, place: tuple[int, int]) -> tuple[list[list[float]], list[list[float]]]:
    """The share of images that chose each expert of a head: of each task's own, and of all."""
    found, (block, head) = Usage.of(_record(run)), place
    if found is None:
        raise ConfigError(f"{run.name} counted no choices of experts.", "Name a data set with a recipe of smope.")
    if block not in found.blocks or head >= found.overall_LHP.shape[1]:
        blocks, heads = ", ".join(map(str, found.blocks)), found.overall_LHP.shape[1]
        raise ConfigError(f"There is no {_name(place)} in {run.name}.", f"Prompted blocks are {blocks}; heads are 0 to {heads - 1}.")
    slot = found.blocks.index(block)
    return found.by_task_TLHP[:, slot, head].tolist(), found.overall_LHP[None, slot, head].tolist()


def _name(place: tuple[int, int]) -> str:
    return f"block {place[0]}, head {place[1]}"


def _analysis(part: str) -> Callable[[Sequence[Planned], Store, Progress], Data]:
    def gather(planned: Sequence[Planned], store: Store, progress: Progress) -> Data:
        data: Data = analyse(_folder(planned[0], store), progress)[part]
        return data

    return gather


def _validation_losses(planned: Sequence[Planned], store: Store, progress: Progress) -> Data:
    """By line and task: the loss after each epoch."""
    data: Data = {}
    for run in planned:
        if run.seed != planned[0].seed:
            continue
        tasks: dict[int, list[float]] = {}
        for entry in read_json(_folder(run, store) / HISTORY):
            if "validation" in entry:
                tasks.setdefault(entry["task"], []).append(entry["validation"])
        data[run.cell.row] = list(tasks.values())
    return data


def _folder(run: Planned, store: Store) -> Path:
    """Where the run lies with all that the figure needs of it."""
    folder = store.folder_of(run.config, run.beside)
    return folder if folder is not None else _not_yet(run)


def _record(run: Planned) -> Mapping[str, Any]:
    return run.record if run.record is not None else _not_yet(run)


def _not_yet(run: Planned) -> NoReturn:
    kept = f", or no {' or '.join(run.beside)} of it is there" if run.beside else ""
    raise ConfigError(f"{run.name} is not yet run{kept}.", f"Run it: {run.cell.command(run.seed)}")


# -- how it looks --------------------------------------------------------------------------------------------------------


def _draw_epsilon(page: Figure, data: Data) -> None:
    axes = page.add_subplot()
    axes.errorbar(data["eps"], data["faa"], data["deviation"], color=COLOURS[0], marker="o", lw=1.8, capsize=3)
    axes.set_xlabel("eps")
    axes.set_title("FAA, %", loc="left", fontsize="medium")
    _dress(axes)


def _draw_frequencies(page: Figure, data: Data) -> None:
    """A row for each eps and a column for each head."""
    across = len(next(iter(data.values())))
    page.set_size_inches(max(6.6, 3.0 * across), 1.8 * len(data))
    rows = page.subplots(len(data), across, sharex=True, sharey=True, squeeze=False)
    for row, (name, heads) in zip(rows, data.items(), strict=True):
        for axes, (place, shares) in zip(row, heads.items(), strict=True):
            axes.bar(range(len(shares)), shares, color=COLOURS[0], width=0.8)
            said = f"{name}: share of all images that chose each expert ({place})" if across == 1 else f"{name}; {place}"
            axes.set_title(said, loc="left", fontsize="medium")
            axes.set_ylim(0, 1)
            _dress(axes)
    for axes in rows[-1]:
        axes.set_xlabel("expert")


def _draw_evolution(page: Figure, data: Data) -> None:
    """A panel for each head."""
    page.set_size_inches(6.6, 0.4 + 3.0 * len(data))
    panels = page.subplots(len(data), 1, squeeze=False)[:, 0]
    for axes, (place, share) in zip(panels, data.items(), strict=True):
        image = axes.imshow(share, cmap="viridis", vmin=0, vmax=1, aspect="auto")
        axes.set_ylabel("task")
        axes.set_yticks(range(len(share)), [str(task + 1) for task in range(len(share))])
        axes.set_title(f"share of a task's images that chose each expert ({place})", loc="left", fontsize="medium")
        page.colorbar(image, ax=axes)
    panels[-1].set_xlabel("expert")


def _draw_scores(page: Figure, data: Data) -> None:
    axes = page.add_subplot()
    boxes = [dict(zip(("whislo", "q1", "med", "q3", "whishi"), five, strict=True)) | {"fliers": []} for five in data["heads"]]
    axes.bxp(boxes, showfliers=False, patch_artist=True, boxprops={"facecolor": FAINT}, medianprops={"color": COLOURS[1]})
    axes.set_xlabel("head")
    axes.set_title("proxy scores over test images and experts; whiskers at the least and the most", loc="left", fontsize="medium")
    _dress(axes)


def _draw_plane(page: Figure, data: Data) -> None:
    axes = page.add_subplot()
    for name, marker, colour, size in (("inputs", "o", COLOURS[0], 10), ("keys", "^", COLOURS[1], 36)):
        across, up = zip(*data[name], strict=True)
        axes.scatter(across, up, s=size, marker=marker, color=colour, alpha=0.8, label=name, lw=0)
    first, second = data["explained"]
    axes.set_xlabel(f"first direction of the inputs ({100 * first:.0f} % of their variance)")
    axes.set_ylabel(f"second ({100 * second:.0f} %)")
    axes.legend(frameon=False)
    _dress(axes)


_LOOKS = {  #: what is measured when -> how it is drawn, how far it stands off its line, and what the legend says
    "start": ({"marker": "o", "mfc": "white", "mec": INK}, -0.16, "untrained"),
    "router": ({"marker": "^", "mfc": COLOURS[5], "mec": COLOURS[5]}, 0.0, "after the router loss alone (first block)"),
    "trained": ({"marker": "o", "mfc": COLOURS[0], "mec": COLOURS[0]}, 0.16, "after the first task"),
}
_MEASURES = {"collapsed": "heads that collapsed", "unused": "experts never chosen", "gap": "gap, last chosen to next"}


def draw_collapse(page: Figure, data: Data) -> None:
    """A line for each setting, a panel for each measure."""
    settings = data["settings"]
    panels = page.subplots(1, len(_MEASURES), sharey=True)
    for axes, (measure, title) in zip(panels, _MEASURES.items(), strict=True):
        for when, (look, aside, said) in _LOOKS.items():
            points = [(one[when][measure], row + aside) for row, one in enumerate(settings) if when in one]
            axes.plot(*zip(*points, strict=True), ls="", ms=6, **look, label=said, clip_on=False, zorder=3)
        axes.set_title(title, loc="left", fontsize="medium")
        axes.set_xlim(-0.04, 1.04)
        axes.set_xlabel("share of the range" if measure == "gap" else "share")
        _dress(axes)
        axes.set_xticks([0, 0.5, 1], ["0", "0.5", "1"])
        axes.grid(axis="x", color=FAINT, lw=0.8)
        axes.tick_params(axis="y", length=0)
        axes.spines["left"].set_visible(False)
    panels[0].set_yticks(range(len(settings)), [one["name"] for one in settings])
    panels[0].set_ylim(len(settings) - 0.5, -0.5)
    page.legend(*panels[0].get_legend_handles_labels(), frameon=False, loc="outside lower center", ncols=3)


def _draw_losses(page: Figure, data: Data) -> None:
    """A panel a task; the axis of losses is one for all, so that tasks can be compared."""
    tasks = len(next(iter(data.values())))
    across = min(tasks, 5)
    down = -(-tasks // across)
    page.set_size_inches(8.0, 0.6 + 2.4 * down)
    panels = page.subplots(down, across, sharey=True, squeeze=False).flat
    for task, axes in enumerate(panels):
        axes.set_visible(task < tasks)
        for colour, stroke, (name, losses) in zip(COLOURS, ("-", "--"), data.items(), strict=False):  # both show where they coincide
            if task < tasks:
                axes.plot(range(1, len(losses[task]) + 1), losses[task], stroke, color=colour, lw=1.6, label=name)
        axes.set_title(f"task {task + 1}", loc="left", fontsize="medium")
        axes.set_xlabel("epochs")
        _dress(axes)
    page.legend(*panels[0].get_legend_handles_labels(), frameon=False, loc="outside lower center", ncols=2)


def _dress(axes: Axes) -> None:
    axes.grid(axis="y", color=FAINT, lw=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(labelcolor=INK)


_FIGURES: dict[str, tuple[Callable[..., Data], Callable[[Any, Data], None], tuple[float, float]]] = {
    "epsilon": (_epsilon, _draw_epsilon, (5.0, 3.2)),
    "frequencies": (_frequencies, _draw_frequencies, (6.6, 5.4)),
    "frequency-evolution": (_evolution, _draw_evolution, (6.6, 3.4)),
    "score-distribution": (_analysis("scores"), _draw_scores, (6.6, 3.2)),
    "key-pca": (_analysis("key_pca"), _draw_plane, (5.4, 4.2)),
    "sample-efficiency": (_validation_losses, _draw_losses, (8.0, 3.0)),
}
