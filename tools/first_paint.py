"""How soon the page is painted while the model is still being loaded: headless Chromium, loopback, Paint Timing's first-contentful-paint.

    python tools/first_paint.py --starts 5

Each start is a new server, and the page is opened as soon as it says that it listens: its model is loaded meanwhile.
"""

from __future__ import annotations

import argparse
import importlib.util
import shutil
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import load_test

BAR_MS = 1000.0
_PAINTED = "performance.getEntriesByName('first-contentful-paint')"
_HEALTH = "fetch('/health').then((answer) => answer.json()).then((health) => health.status)"
_BROWSERS = ("chromium", "chromium-browser", "google-chrome")


def browser() -> str | None:
    """A Chromium to drive, if there is one and something to drive it with."""
    if importlib.util.find_spec("playwright") is None:
        return None
    return next((path for name in _BROWSERS if (path := shutil.which(name))), None)


def paints(file: Path, starts: int, executable: str) -> list[tuple[float, bool]]:
    """For each start: milliseconds to the first paint, and whether the model was still being loaded after it."""
    from playwright.sync_api import sync_playwright

    seen = []
    with sync_playwright() as started:
        chromium = started.chromium.launch(executable_path=executable, args=["--no-sandbox"])
        for _ in range(starts):
            with load_test.server(file) as (address, _):
                page = chromium.new_page()
                page.goto(address)
                while not (entries := page.evaluate(f"{_PAINTED}.map((entry) => entry.startTime)")):
                    time.sleep(0.05)  # the page's own rules forbid Playwright's way of waiting
                seen.append((float(entries[0]), page.evaluate(_HEALTH) == "loading"))
                page.close()
        chromium.close()
    return seen


def row(file: Path, starts: int) -> dict[str, Any]:
    """The row of the soak's table."""
    began, executable = time.monotonic(), browser()
    told = {"what": "first paint while the model is loaded", "asked": f"under {BAR_MS:,.0f} ms, {starts} starts"}
    if executable is None:
        return {**told, "seen": "there is no Chromium here, or no playwright", "verdict": "not run", "seconds": 0.0}
    seen = paints(file, starts, executable)
    times = [milliseconds for milliseconds, _ in seen]
    still = sum(loading for _, loading in seen)
    words = f"median {statistics.median(times):.0f} ms, {min(times):.0f} to {max(times):.0f}; the model was still being loaded in {still}"
    good = statistics.median(times) < BAR_MS and still > 0
    return {**told, "seen": words, "verdict": "ok" if good else "FAILED", "seconds": time.monotonic() - began}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--starts", type=int, default=5)
    parser.add_argument("--model", type=Path, metavar="FILE", help="an adapter of your own; else a tiny one is made")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        file = given.model or Path(folder) / "shop.smope"
        if given.model is None:
            load_test.taught(file)
        told = row(file, given.starts)
    print(f"{told['what']}: {told['seen']} ({told['asked']}: {told['verdict']})")
    raise SystemExit(1 if told["verdict"] == "FAILED" else 0)


if __name__ == "__main__":
    main()
