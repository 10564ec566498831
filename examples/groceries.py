"""Five weeks in a shop: new products every week, and last week's photographs are thrown away.

    python examples/groceries.py            # writes groceries.png; about two minutes on two cores
    python examples/groceries.py --help

Real photographs, taken with a telephone in shops: 14 kinds of fruit of the Grocery Store Dataset (Klasson, Zhang, Kjellström, WACV
2019; 61 MB, fetched once). Each week the classifier is shown at most 24 photographs of each new product and none of the old ones;
then it is asked about photographs of all products so far that it has never seen. Needs: pip install 'smope[plot,parquet]'.
"""

from __future__ import annotations

import argparse
import random
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from PIL import Image, ImageOps

from smope import ContinualClassifier
from smope.classifier import Answer
from smope.data import ImageSet
from smope.data.groceries import load

WEEKS = (
    ("Golden-Delicious", "Granny-Smith", "Pink-Lady"),
    ("Red-Delicious", "Royal-Gala", "Orange"),
    ("Anjou", "Conference", "Kaiser"),
    ("Cantaloupe", "Galia-Melon", "Honeydew-Melon"),
    ("Satsumas", "Watermelon"),
)
SHOWN, ASKED = 24, 25  # photographs of a product, at most
INK, QUIET, GOOD, BAD, FIRST = "#1f2933", "#8a94a0", "#1b7f5c", "#c2410c", "#b8860b"


@dataclass
class Week:
    """What was asked at the end of a week: photograph, what it shows, what was said."""

    asked: list[tuple[Path, str, Answer]]

    def accuracy(self, *products: str) -> float:
        """Percent, over these products, or over all of them."""
        about = [answer.label == label for _, label, answer in self.asked if not products or label in products]
        return 100 * sum(about) / len(about)


def some(pictures: ImageSet, most: int) -> dict[str, list[Path]]:
    """At most so many photographs of each product, drawn once and for all."""
    by_product: dict[str, list[Path]] = defaultdict(list)
    for ref in pictures.refs:
        by_product[ref.label].append(ref.path)
    return {name: random.Random(0).sample(paths, min(most, len(paths))) for name, paths in by_product.items()}


def live_through(classifier: ContinualClassifier) -> list[Week]:
    """Five weeks: learn the new products, then be asked about all of them."""
    photographs = load()
    shown, asked = some(photographs.train, SHOWN), some(photographs.test, ASKED)
    weeks: list[Week] = []
    for number, products in enumerate(WEEKS, 1):
        print(f"\nweek {number}: {', '.join(products)}")
        print(classifier.learn([(path, name) for name in products for path in shown[name]]))
        questions = [(path, name) for name in classifier.classes for path in asked[name]]
        answers = classifier.classify([path for path, _ in questions])
        weeks.append(Week([(path, name, answer) for (path, name), answer in zip(questions, answers, strict=True)]))
        known, right = len(classifier.classes), weeks[-1].accuracy()
        print(f"all {known} products so far: {right:.0f} % of {len(questions)} new photographs are recognised")
    return weeks


def draw(weeks: list[Week], out: Path) -> None:
    """One picture: the weeks above, and below one photograph of each product with the answer, as chance drew it."""
    plt.rcParams.update({"font.family": "DejaVu Sans", "font.size": 10, "text.color": INK, "axes.labelcolor": INK})
    figure = plt.figure(figsize=(10, 7.6), dpi=100, facecolor="white")
    outer = figure.add_gridspec(2, 1, height_ratios=(1.0, 1.15), left=0.06, right=0.97, top=0.84, bottom=0.10, hspace=0.44)
    figure.text(0.06, 0.95, "Five weeks of new products, and no old photograph is kept", fontsize=16, weight="bold")
    last = weeks[-1]
    figure.text(
        0.06,
        0.905,
        f"After week {len(weeks)} it tells {len({name for _, name, _ in last.asked})} kinds of fruit apart, "
        f"{last.accuracy():.0f} % right on {len(last.asked)} photographs it has never seen.",
        color=QUIET,
        fontsize=11,
    )
    _curves(figure.add_subplot(outer[0]), weeks)
    columns = -(-sum(map(len, WEEKS)) // 2)
    below = outer[1].subgridspec(2, columns, hspace=0.55, wspace=0.12)
    for place, (path, label, answer) in enumerate(_one_each(last)):
        _thumbnail(figure.add_subplot(below[place // columns, place % columns]), path, label, answer)
    figure.text(
        0.06,
        0.015,
        "Photographs: Grocery Store Dataset (Klasson, Zhang, Kjellström, WACV 2019). Drawn at random.",
        fontsize=7.5,
        color=QUIET,
    )
    figure.canvas.draw()
    width, height = figure.canvas.get_width_height()
    picture = Image.frombuffer("RGBA", (width, height), figure.canvas.buffer_rgba(), "raw", "RGBA", 0, 1).convert("RGB")  # type: ignore[attr-defined]
    plt.close(figure)
    picture.quantize(256, Image.Quantize.MEDIANCUT, dither=Image.Dither.FLOYDSTEINBERG).save(out, optimize=True)


def _curves(axes: plt.Axes, weeks: list[Week]) -> None:
    numbers = range(1, len(weeks) + 1)
    everything = [week.accuracy() for week in weeks]
    first = [week.accuracy(*WEEKS[0]) for week in weeks]
    chance = [100 / sum(map(len, WEEKS[:number])) for number in numbers]
    axes.fill_between(numbers, everything, chance, color=GOOD, alpha=0.08, linewidth=0)
    for values, colour, width in ((first, FIRST, 1.5), (everything, GOOD, 2.8), (chance, QUIET, 1.2)):
        axes.plot(numbers, values, color=colour, linewidth=width, marker="o", markersize=2.4 * width, clip_on=False)
    for number, value in zip(numbers, everything, strict=True):
        axes.annotate(f"{value:.0f} %", (number, value), (0, 9), textcoords="offset points", ha="center", color=GOOD, weight="bold")
    ends = [
        (everything[-1], "all products so far", GOOD),
        (first[-1], "the first week's\nproducts", FIRST),
        (chance[-1], "guessing", QUIET),
    ]
    height = -100.0
    for value, words, colour in sorted(ends):
        height = max(value, height + 13)  # a label never on another
        axes.annotate(words, (len(weeks), height), (26, 0), textcoords="offset points", va="center", color=colour)
    labels = [f"week {number}\n" + "\n".join(name.replace("-", " ") for name in WEEKS[number - 1]) for number in numbers]
    axes.set_xticks(list(numbers), labels, fontsize=8.5)
    axes.set(ylim=(0, 100), xlim=(0.8, len(weeks) + 1.05), yticks=(0, 25, 50, 75, 100))
    axes.set_ylabel("recognised, %")
    axes.grid(axis="y", color="#e5e8eb", linewidth=0.8)
    axes.tick_params(length=0, colors=INK)
    for side in axes.spines.values():
        side.set_visible(False)


def _one_each(week: Week) -> list[tuple[Path, str, Answer]]:
    """A photograph of each product, drawn at random: right or wrong, as it comes."""
    of_product: dict[str, list[tuple[Path, str, Answer]]] = defaultdict(list)
    for entry in week.asked:
        of_product[entry[1]].append(entry)
    return [random.Random(1).choice(entries) for entries in of_product.values()]


def _thumbnail(axes: plt.Axes, path: Path, label: str, answer: Answer) -> None:
    with Image.open(path) as image:
        axes.imshow(ImageOps.fit(ImageOps.exif_transpose(image).convert("RGB"), (112, 112)))
    right = answer.label == label
    axes.set_xticks([])
    axes.set_yticks([])
    for side in axes.spines.values():
        side.set(color=GOOD if right else BAD, linewidth=2.2)
    said = answer.label.replace("-", " ")
    axes.set_xlabel(f"{said}\n{100 * answer.probability:.0f} %", fontsize=8.5, color=GOOD if right else BAD, labelpad=4)
    if not right:
        axes.set_title(f"is {label.replace('-', ' ')}", fontsize=8, color=INK, pad=3)


def main() -> None:
    parser = argparse.ArgumentParser(description="Five weeks of new products, learned one after another.")
    parser.add_argument("--out", type=Path, default=Path("groceries.png"), help="the picture to write (groceries.png)")
    parser.add_argument("--backbone", default="dinov2-s14-reg-mri", help="a name from `smope backbones`")
    parser.add_argument("--image-size", type=int, default=112, help="side of what the backbone sees, in pixels (112)")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="as in `smope learn`")
    given = parser.parse_args()
    classifier = ContinualClassifier(given.backbone, image_size=given.image_size, overrides=given.set)
    weeks = live_through(classifier)
    draw(weeks, given.out)
    print(f"\n{given.out}")


if __name__ == "__main__":
    main()
