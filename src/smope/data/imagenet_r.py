"""ImageNet-R (Hendrycks et al., 2021): 30,000 renditions (art, cartoons, toys, tattoos ...) of 200 ImageNet classes.

Read from `imagenet-r/<wnid>/*.jpg`. A class is called by its WordNet id. Classes stand in the order of the published lists
(`imagenet_r_lists`), which also say what is for testing; without the lists a fifth of each class is, drawn by seed, and the record
says so.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from smope.data.decoding import EXTENSIONS
from smope.data.imagenet_r_lists import CLASSES, LISTS, PICTURES, SplitList, check_disjoint, class_ids, find_list, read_list
from smope.data.images import ImageRef, ImageSet, Skipped
from smope.data.published import Published, few, files_in_folders
from smope.data.stream import Dataset
from smope.download import Remote, download
from smope.errors import AssetError, DataError
from smope.progress import SILENT, Progress

NAME = "imagenet-r"
SUMMARY = "renditions of 200 ImageNet classes, 24,000 to learn and 6,000 to test"
LICENCE = "collection MIT; the pictures belong to their makers"
SIZE = "2.2 GB"
TRAIN = PICTURES["train"]
TEST_SHARE = 0.2  # of each class, where the lists are missing

HOME = Published(
    name=NAME,
    title="ImageNet-R",
    archive=Remote(url="https://people.eecs.berkeley.edu/~hendrycks/imagenet-r.tar", filename="imagenet-r.tar"),
    folder="imagenet-r",
    signs=tuple(f"{wnid}/" for wnid in class_ids()),
    beside=tuple(LISTS.values()),
)
_REMEDY = f"Unpack {HOME.archive.filename} again, or delete the folder and get it anew with: {HOME.command(None)}"


def load(*, root: Path | None = None, seed: int = 0, tuning: bool = False, progress: Progress = SILENT) -> Dataset:
    """ImageNet-R as it lies in `root`, split by the published lists, or by `seed` where they are missing."""
    place = HOME.find(root)
    files = files_in_folders(place)
    lists = _lists(root, place)
    if lists is None:
        progress.say(f"The published lists of ImageNet-R are not there; a split is drawn. To get them: {HOME.command(root)}")
        train, test, skipped, notes = _seeded_split(place, files, seed)
    else:
        train, test, skipped, notes = _listed_split(place, files, *lists, tuning=tuning)
    if tuning:
        test = ImageSet()
    present = {*train.labels, *test.labels}
    classes = tuple(wnid for wnid in class_ids() if wnid in present)
    dataset = Dataset(NAME, classes, train, test, skipped=tuple(skipped), licence=LICENCE, notes=notes)
    return dataset.without_test() if tuning else dataset


def prepare(progress: Progress = SILENT, root: Path | None = None) -> Path:
    """The checked folder and, beside it, the checked lists: found, or fetched."""
    place = HOME.prepare(root, _check_pictures, progress)
    if any(find_list(part, HOME.root(root), place) is None for part in LISTS):
        with HOME.alone(root, progress) as above:
            for part, remote in LISTS.items():
                if find_list(part, above, place) is None:
                    _fetch_list(remote, root, progress)
    lists = _lists(root, place)
    assert lists is not None
    for one in lists:
        if not one.is_published and one.oddity:
            raise DataError(f"'{one.path}' is not the published list: {one.oddity}.", f"Remove it, then: {HOME.command(root)}")
    _listed_split(place, files_in_folders(place), *lists, tuning=False)
    how = "by their hashes" if all(one.is_published for one in lists) else "by their counts; their bytes are not the published ones"
    progress.say(f"The split: {lists[0].path.name} and {lists[1].path.name}, checked {how}.")
    return place


def is_prepared() -> bool:
    """Whether the cache has the pictures and the lists."""
    return HOME.is_cached(HOME.signs) and all(find_list(part, HOME.root(None), HOME.find(None)) for part in LISTS)


def _fetch_list(remote: Remote, root: Path | None, progress: Progress) -> None:
    try:
        download(remote, HOME.root(root) / remote.filename, progress)
    except AssetError as error:
        raise AssetError(
            f"The pictures of ImageNet-R are ready, the lists of its split are not. {error.problem}",
            f"{error.remedy} Then: {HOME.command(root)}",
        ) from error


def _check_pictures(place: Path) -> str:
    seen = Counter(file.partition("/")[0] for file in _pictures(files_in_folders(place)))
    empty = [wnid for wnid in class_ids() if not seen[wnid]]
    if empty:
        raise DataError(f"'{place}' has no pictures of {few(empty)}.", _REMEDY)
    if seen.total() != sum(PICTURES.values()):
        raise DataError(f"'{place}' holds {seen.total():,} pictures, not {sum(PICTURES.values()):,}.", _REMEDY)
    return f"{CLASSES} classes, {seen.total():,} pictures, as published."


def _lists(root: Path | None, place: Path) -> tuple[SplitList, SplitList] | None:
    """Both lists, or None if there is none of them; one alone is a mistake."""
    paths = {part: find_list(part, HOME.root(root), place) for part in LISTS}
    train, test = paths["train"], paths["test"]
    if train is None or test is None:
        if train is None and test is None:
            return None
        there, lacking = (train or test), "test" if test is None else "train"
        remedy = f"Put {LISTS[lacking].filename} beside it; to get it: {HOME.command(root)}"
        raise DataError(f"There is '{there}', but no list of the {lacking} pictures.", remedy)
    lists = read_list("train", train), read_list("test", test)
    check_disjoint(*lists)
    return lists


Split = tuple[ImageSet, ImageSet, list[Skipped], tuple[str, ...]]


def _listed_split(place: Path, files: list[str], train: SplitList, test: SplitList, *, tuning: bool) -> Split:
    present = set(files)
    for one in (train,) if tuning else (train, test):
        missing = [id for id in one.ids if id not in present]
        if missing:
            raise DataError(f"'{place}' lacks pictures that {one.path.name} names: {few(missing)}.", _REMEDY)
    listed = {*train.ids, *test.ids}
    skipped = [Skipped(file, "no list names it") for file in files if file not in listed]
    changed = [one for one in (train, test) if not one.is_published]
    notes = tuple(f"{one.path.name} is not the published list, byte for byte (md5 {one.md5}): {_verdict(one)}." for one in changed)
    return _set(place, train.ids), _set(place, test.ids), skipped, notes


def _verdict(one: SplitList) -> str:
    return one.oddity or "but its counts per task are the published ones"


def _seeded_split(place: Path, files: list[str], seed: int) -> Split:
    pictures = _pictures(files)
    train, test = _set(place, pictures).split(TEST_SHARE, seed)
    note = f"Test pictures are {TEST_SHARE:.0%} of each class, drawn with seed {seed}: the published lists were not there."
    chosen = set(pictures)
    skipped = [Skipped(file, "it is no picture in one of the 200 class folders") for file in files if file not in chosen]
    return train, test, skipped, (note,)


def _pictures(files: list[str]) -> list[str]:
    known = set(class_ids())
    return [file for file in files if file.partition("/")[0] in known and file.rpartition(".")[2].lower() in EXTENSIONS]


def _set(place: Path, ids: tuple[str, ...] | list[str]) -> ImageSet:
    return ImageSet(ImageRef(id, id.partition("/")[0], place / id) for id in ids)
