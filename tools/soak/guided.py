"""Pictures and adapters guided by coverage (atheris): what is not one of ours, or takes too long or too much memory, ends it.

    PYTHONPATH=.venv/fuzz:tools python -m soak.guided image --runs 20000 --seconds 60

Ends with 3 where atheris is not installed: `pip install --target .venv/fuzz atheris`.
"""

from __future__ import annotations

import argparse
import io
import os
import sys
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

Target = Callable[[Path, Path], Callable[[bytes], None]]  #: corpus, scratch -> what is done with one case
_MISSING = 3
_MEMORY_MB, _CASE_SECONDS = 3000, 20


def main() -> None:
    """Fuzz one target."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("target", choices=["image", "adapter"])
    parser.add_argument("--runs", type=int, default=20_000)
    parser.add_argument("--seconds", type=int, default=60)
    given = parser.parse_args()
    try:
        import atheris
    except ImportError:
        print("atheris is not installed: pip install --target .venv/fuzz atheris")
        raise SystemExit(_MISSING) from None
    _import_watched(atheris)
    warnings.simplefilter("ignore")
    options = [f"-runs={given.runs}", f"-max_total_time={given.seconds}", f"-timeout={_CASE_SECONDS}", f"-rss_limit_mb={_MEMORY_MB}"]
    with tempfile.TemporaryDirectory(prefix="smope-fuzz-") as scratch:
        done, code, found = _fuzz(atheris, _TARGETS[given.target], Path(scratch), options)
    print(f"about {done:,} cases" + ("" if code == 0 else f"; it ended with {code}, see {found}"))
    raise SystemExit(0 if code == 0 else 1)


def _import_watched(atheris: Any) -> None:
    """What is imported here is watched, if it was not imported before."""
    with atheris.instrument_imports(include=["PIL", "smope.data", "smope.classifier", "smope.files", "safetensors"]):
        import smope.classifier
        import smope.data.decoding  # noqa: F401


def _fuzz(atheris: Any, target: Target, scratch: Path, options: list[str]) -> tuple[int, int, str]:
    """How many cases there were, how it ended, and the folder of what was found, if anything was."""
    corpus, tally = scratch / "corpus", scratch / "count"
    corpus.mkdir()
    one, count = target(corpus, scratch), 0

    def counted(data: bytes) -> None:
        nonlocal count
        count += 1
        if count % 100 == 0 or count == 1:
            tally.write_text(str(count))
        one(data)

    found = tempfile.mkdtemp(prefix="smope-found-")
    pid = os.fork()  # libFuzzer ends its process itself; what it did is told from outside
    if pid == 0:
        atheris.Setup([sys.argv[0], *options, "-max_len=200000", f"-artifact_prefix={found}/", str(corpus)], counted)
        atheris.Fuzz()
        os._exit(0)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    if not os.listdir(found):
        os.rmdir(found)
    return int(tally.read_text()) if tally.exists() else 0, code, found


def _images(corpus: Path, scratch: Path) -> Callable[[bytes], None]:
    from PIL import Image

    from smope.data.decoding import FORMATS, decode_stream
    from smope.errors import DataError

    for form in FORMATS:
        for mode in ("L", "RGB"):
            Image.new(mode, (5, 4), 90 if mode == "L" else (90, 20, 200)).save(corpus / f"{mode}.{form}", form)

    def one(data: bytes) -> None:
        try:
            decode_stream(io.BytesIO(data), "fuzzed")
        except DataError:
            return

    return one


def _adapters(corpus: Path, scratch: Path) -> Callable[[bytes], None]:
    from smope.classifier import ContinualClassifier
    from smope.errors import SmopeError
    from soak import scene

    small = [option.removeprefix("--set=") for option in scene.new_adapter_options() if option.startswith("--set=")]
    taught = ContinualClassifier("vit-tiny-test", method="smope", image_size=16, overrides=small)
    taught.learn(scene.draw_classes(scratch / "pictures", scene.COLOURS[:2], 4))
    taught.save(corpus / "whole.smope")
    path = scratch / "fuzzed.smope"

    def one(data: bytes) -> None:
        path.write_bytes(data)
        try:
            ContinualClassifier.load(path)
        except SmopeError:
            return

    return one


_TARGETS: dict[str, Target] = {"image": _images, "adapter": _adapters}

if __name__ == "__main__":
    main()
