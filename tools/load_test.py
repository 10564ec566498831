"""A bounded load test of `smope serve` on loopback: are answers right, and how long do they take, at rest and while an update is learned?

    python tools/load_test.py --predictions 5000 --clients 16

Starts a server of a tiny model (no downloads), asks each of a few pictures once alone to know the right answers, then lets the clients ask
for the same pictures, first at rest, then while an update is learned, again and again until the predictions are used up. An
answer is wrong if it is not the one the model of that moment gives: the one before an update or the one after it. Then the page is
opened in new servers that still load their model (tools/first_paint.py). Prints one table; exits with 1 if an answer failed or was
wrong, or the page was painted late.
"""

from __future__ import annotations

import argparse
import io
import json
import random
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
from PIL import Image, ImageDraw

COLOURS = {"red": (220, 40, 40), "blue": (40, 60, 220), "green": (30, 180, 60), "white": (250, 250, 250)}
QUICK = ["method.experts=8", "method.top_k=2", "method.blocks=[0,1]", "train.epochs=20", "tap.steps=500", "threads=1"]


def draw(colour: str, seed: int, size: int = 128) -> bytes:
    """A disc of this colour, somewhere, as a PNG."""
    chance = random.Random(f"{colour} {seed}")
    picture = Image.new("RGB", (size, size), (chance.randint(90, 140),) * 3)
    x, y, r = chance.randint(40, 88), chance.randint(40, 88), chance.randint(24, 38)
    ImageDraw.Draw(picture).ellipse((x - r, y - r, x + r, y + r), fill=COLOURS[colour])
    file = io.BytesIO()
    picture.save(file, "PNG")
    return file.getvalue()


def taught(path: Path) -> None:
    """A model of three colours."""
    from smope import ContinualClassifier

    classifier = ContinualClassifier("vit-tiny-test", method="smope", image_size=16, overrides=QUICK)
    classifier.learn([(draw(colour, seed), colour) for colour in ("red", "blue", "green") for seed in range(20)])
    classifier.save(path)


@contextmanager
def server(path: Path, *more: str) -> Iterator[tuple[str, int]]:
    """Address and process id."""
    command = [sys.executable, "-m", "smope", "serve", str(path), "--port=0", *more]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:  # also around the first line: one that is no address would be waited for without end
            said = process.stdout.readline()
            found = re.search(r"http://[\w.:]+", said)
            if found is None:
                raise SystemExit(f"the server did not say where it listens, but: {said.strip() or 'nothing'}")
            yield found.group(), process.pid
        finally:
            process.terminate()


class Asker:
    """Asks for pictures and keeps what came of it."""

    def __init__(self, client: httpx.Client, pictures: list[bytes]) -> None:
        self.client, self.pictures = client, pictures
        self.right: dict[int, list[Any]] = {}  #: by number of changes: the model's answer to each picture
        self.seconds: list[float] = []
        self.failed = 0
        self.seen: list[tuple[int, int, Any]] = []
        self._lock = threading.Lock()

    def ask(self, number: int) -> tuple[int, Any]:
        answer = self.client.post("/predict", files=[("picture", ("a.png", self.pictures[number], "image/png"))])
        answer.raise_for_status()
        told = answer.json()
        return told["changes"], [(guess["label"], round(guess["probability"], 4)) for guess in told["predictions"][0]["top"]]

    def learn_answers(self) -> None:
        """What the model of this moment says, each picture asked alone."""
        for number in range(len(self.pictures)):
            changes, answer = self.ask(number)
            self.right.setdefault(changes, []).append(answer)

    def one(self, number: int) -> None:
        began = time.monotonic()
        try:
            changes, answer = self.ask(number % len(self.pictures))
        except httpx.HTTPError:
            with self._lock:
                self.failed += 1
            return
        with self._lock:
            self.seconds.append(time.monotonic() - began)
            self.seen.append((number % len(self.pictures), changes, answer))

    def wrong(self) -> int:
        """Answers that are not their model's own; probabilities may differ in the last digit with the size of a batch."""
        return sum(not _same(self.right[changes][number], answer) for number, changes, answer in self.seen)

    def row(self, name: str) -> tuple[float, str]:
        ranked = sorted(self.seconds) or [0.0]
        p50, p99 = (1000 * ranked[min(len(ranked) - 1, int(share * len(ranked)))] for share in (0.50, 0.99))
        text = f"{name:16} {len(self.seen):6} {self.failed:7} {self.wrong():6} {p50:9.1f} {p99:9.1f} {1000 * ranked[-1]:9.1f}"
        return p99, text


def _same(expected: list[Any], answer: list[Any]) -> bool:
    return all(a[0] == b[0] and abs(a[1] - b[1]) < 2e-3 for a, b in zip(expected, answer, strict=True))


def memory(pid: int) -> float:
    """MB in use, where /proc says so."""
    try:
        found = re.search(r"VmRSS:\s+(\d+)", Path(f"/proc/{pid}/status").read_text())
    except OSError:
        return 0.0
    return int(found.group(1)) / 1024 if found else 0.0


def learn(client: httpx.Client, first: int, pictures: int) -> str:
    sent = [("picture", (f"{n}.png", draw("white", first + n), "image/png")) for n in range(pictures)]
    answer = client.post("/learn", data={"class": ["white"]}, files=sent)
    answer.raise_for_status()
    return str(answer.json()["id"])


def measure(client: httpx.Client, pid: int, predictions: int, clients: int, lesson: int) -> dict[str, Any]:
    """Ask, print a table, and give its row for `make soak`."""
    started = time.monotonic()
    pictures = [draw(colour, 500 + seed) for colour in ("red", "blue", "green") for seed in range(4)]
    rest, busy = Asker(client, pictures), Asker(client, pictures)
    rest.learn_answers()
    busy.right = dict(rest.right)
    begun = memory(pid)
    with ThreadPoolExecutor(clients) as pool:
        list(pool.map(rest.one, range(predictions // 2)))
        asked = updates = 0
        while asked < predictions - predictions // 2:
            job = learn(client, 1000 * (updates + 1), lesson)
            updates += 1
            while (state := client.get(f"/jobs/{job}").json())["share"] == 0 and state["state"] in ("waiting", "running"):
                time.sleep(0.05)  # a process that only starts holds up nobody
            while client.get(f"/jobs/{job}").json()["state"] in ("waiting", "running") and asked < predictions - predictions // 2:
                portion = min(4 * clients, predictions - predictions // 2 - asked)
                list(pool.map(busy.one, range(asked, asked + portion)))
                asked += portion
            while (state := client.get(f"/jobs/{job}").json())["state"] in ("waiting", "running"):
                time.sleep(0.1)
            if state["state"] != "done":
                raise SystemExit(f"the update failed: {json.dumps(state)}")
            busy.learn_answers()
    sys.stdout.write(f"{'':16} {'asked':>6} {'failed':>7} {'wrong':>6} {'p50 ms':>9} {'p99 ms':>9} {'max ms':>9}\n")
    at_rest, text = rest.row("at rest")
    sys.stdout.write(text + "\n")
    learning, text = busy.row("while learning")
    sys.stdout.write(text + "\n")
    bad = rest.failed + busy.failed + rest.wrong() + busy.wrong()
    seen = f"p99 while learning is {learning / at_rest:.1f} x that at rest; {updates} updates; server {begun:.0f} -> {memory(pid):.0f} MB"
    sys.stdout.write(seen + "\n")
    return {
        "what": "the server under load",
        "asked": f"{predictions:,} answers, {clients} clients",
        "seen": f"{predictions - bad:,} right; {seen}",
        "verdict": "ok" if bad == 0 and learning <= 4 * at_rest else "FAILED",
        "seconds": time.monotonic() - started,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--predictions", type=int, default=5000)
    parser.add_argument("--clients", type=int, default=16)
    parser.add_argument("--lesson", type=int, default=40, help="pictures of each update")
    parser.add_argument("--small", action="store_true", help="400 predictions from 8 clients")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the row of the soak's table there")
    given = parser.parse_args()
    import first_paint  # which starts its servers with what is above

    if given.small:
        given.predictions, given.clients = 400, 8
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "shop.smope"
        taught(file)
        with server(file) as (address, pid), httpx.Client(base_url=address, timeout=120, trust_env=False) as client:
            while client.get("/health").json()["status"] != "ok":
                time.sleep(0.1)
            load = measure(client, pid, given.predictions, given.clients, given.lesson)
        paint = first_paint.row(file, 2 if given.small else 5)
    print(f"{paint['what']}: {paint['seen']} ({paint['verdict']})")
    if given.json is not None:
        given.json.write_text(json.dumps([load, paint]), encoding="utf-8")
    sys.exit(1 if "FAILED" in (load["verdict"], paint["verdict"]) else 0)


if __name__ == "__main__":
    main()
