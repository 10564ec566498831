"""Pictures within every limit that ask for all the time and memory there is, and what another client sees meanwhile.

    PYTHONPATH=tools python -m soak.hostile

A server of a tiny model is started on 127.0.0.1; each attack is one or two requests, bounded in number and time. For each the table says
the 99th percentile of another client's predictions at rest and under attack, its refusals, the server's memory (its processes' together)
before, at most and after, when it was back, and how long the server took to end afterwards.
"""

from __future__ import annotations

import argparse
import io
import os
import random
import re
import signal
import struct
import subprocess
import sys
import tempfile
import threading
import time
import zlib
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import httpx
import numpy as np
from PIL import Image

from soak.report import Row

_SECONDS = 20.0  #: that the other client watches an attack
_REST = 60  #: predictions at rest
_END = 30.0  #: seconds after which a server that does not end is killed
_PROBE_PAUSE = 0.05
_ALLOWED = 3.0  #: times the 99th percentile at rest
_FLOOR = 0.25  #: seconds: below, two cores that also attack decide
_MEMORY = 1.1
_SETTLES = 15.0  #: seconds in which memory must be back after the attack


def encoded(kind: str, side: int = 200, **options: object) -> bytes:
    """Noise of this size as a file."""
    pixels_HW3 = np.random.default_rng(0).integers(0, 256, (side, side + 3, 3), dtype=np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels_HW3).save(file, kind, **options)
    return file.getvalue()


def many_scans(side: int, scans: int) -> bytes:
    """A progressive JPEG of one grey, whose last scan comes again and again."""
    file = io.BytesIO()
    Image.new("L", (side, side), 128).save(file, "JPEG", progressive=True)
    data = file.getvalue()
    last = data.rindex(b"\xff\xda")
    return data[:last] + data[last:-2] * scans + b"\xff\xd9"


def many_segments(count: int) -> bytes:
    """A JPEG with so many segments of Exif."""
    data = encoded("JPEG")
    return data[:2] + (b"\xff\xe1" + struct.pack(">H", 12) + b"Exif\0\0" + b"abcd") * count + data[2:]


def wide_png(side: int, colour: int = 6) -> bytes:
    """So many pixels of one colour, in few bytes; colour 6 has alpha, 2 has none."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    packer = zlib.compressobj(9)
    line = bytes(1 + side * {6: 4, 2: 3}[colour])
    body = b"".join(packer.compress(line) for _ in range(side)) + packer.flush()
    header = struct.pack(">IIBBBBB", side, side, 8, colour, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", body) + chunk(b"IEND", b"")


def packed_bmp(moves: int) -> bytes:
    """A small BMP in run lengths with so many moves by nothing, each of which Pillow takes in Python."""
    side, palette = 400, bytes(4 * 256)
    body = b"\0\2\0\0" * moves + (b"\1\7" * side + b"\0\0") * side + b"\0\1"
    start = 14 + 40 + len(palette)
    header = b"BM" + struct.pack("<IHHI", start + len(body), 0, 0, start)
    return header + struct.pack("<IiiHHIIiiII", 40, side, side, 1, 8, 1, len(body), 0, 0, 256, 0) + palette + body


def stripped_tiff(strips: int) -> bytes:
    """A TIFF that is one pixel wide, with a strip for each of its rows, all at one place: Pillow lists them in Python."""
    end = 8 + 1
    offsets, counts = end, end + 4 * strips
    entries = [
        (256, 3, 1, 1),
        (257, 4, 1, strips),
        (258, 3, 1, 8),
        (259, 3, 1, 1),
        (262, 3, 1, 1),
        (273, 4, strips, offsets),
        (277, 3, 1, 1),
        (278, 4, 1, 1),
        (279, 4, strips, counts),
    ]
    table = struct.pack("<H", len(entries)) + b"".join(struct.pack("<HHII", *entry) for entry in entries) + bytes(4)
    values = struct.pack("<I", 8) * strips + struct.pack("<I", 1) * strips
    return b"II*\0" + struct.pack("<I", end + len(values)) + b"\7" + values + table


@dataclass(frozen=True)
class Attack:
    """So many requests at once, each of the same pictures."""

    name: str
    picture: Callable[[], bytes]
    pictures: int = 1
    requests: int = 2


ATTACKS = {
    attack.name: attack
    for attack in (
        Attack("JPEG of many scans", lambda: many_scans(3984, 4000)),
        Attack("PNGs of 62 megapixels", lambda: wide_png(7900), pictures=32, requests=1),
        Attack("JPEG of many segments", lambda: many_segments(200_000)),
        Attack("BMP of run lengths, 30 MB", lambda: packed_bmp(7_500_000)),
        Attack("TIFF of 3 million strips, 24 MB", lambda: stripped_tiff(3_000_000)),
    )
}


@dataclass
class Seen:
    """What another client and the system saw."""

    rest: float
    attacked: float
    refused: int
    asked: int
    before: int
    most: int
    after: int
    settled: float  #: seconds from the attack's last answer until the memory was back
    ended: float
    answers: list[int]  #: to the attacker

    @property
    def good(self) -> bool:
        calm = self.attacked <= max(_ALLOWED * self.rest, _FLOOR) and not self.refused
        return calm and self.after <= _MEMORY * self.before and self.ended <= 10

    def __str__(self) -> str:
        return (
            f"p99 {1000 * self.rest:.0f} ms at rest, {1000 * self.attacked:.0f} ms under attack; {self.refused} of {self.asked} refused; "
            f"memory {self.before / 1e6:.0f}, at most {self.most / 1e6:.0f}, {self.settled:.0f} s after it {self.after / 1e6:.0f} MB; "
            f"ended in {self.ended:.1f} s; the attacker got {self.answers or 'no answer'}"
        )


def tried(attack: Attack, model: Path) -> Seen:
    """One attack on a fresh server."""
    command = [sys.executable, "-m", "smope", "serve", str(model), "--port=0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            found = re.search(r"http://\S+", server.stdout.readline())
            assert found is not None
            return _watched(attack, server, found.group().rstrip("/"))
        finally:
            server.kill()


def _watched(attack: Attack, server: subprocess.Popen[str], address: str) -> Seen:
    own, sizes, answers = encoded("PNG", 64), list[int](), list[int]()
    with httpx.Client(base_url=address, timeout=90) as client:
        until = time.monotonic() + 120
        while client.get("/health").json()["model"] != "ready" and time.monotonic() < until:
            time.sleep(0.1)

        def ask() -> tuple[float, int]:
            began = time.monotonic()
            status = client.post("/predict", files=[("picture", ("a.png", own))]).status_code
            time.sleep(_PROBE_PAUSE)
            return time.monotonic() - began - _PROBE_PAUSE, status

        client.post("/predict", files=[("picture", ("large.png", wide_png(5000)))])  # each of its processes is there
        for _ in range(5):
            ask()
        rest = [ask()[0] for _ in range(_REST)]
        before, data = _memory(server.pid), attack.picture()
        ways = [threading.Thread(target=_send, args=(address, data, attack.pictures, answers), daemon=True) for _ in range(attack.requests)]
        for way in ways:
            way.start()
        told, until = list[tuple[float, int]](), time.monotonic() + _SECONDS
        while time.monotonic() < until:
            told.append(ask())
            sizes.append(_memory(server.pid))
        for way in ways:
            way.join(70)
        began = time.monotonic()  # what its client no longer waits for is read to its end
        while (after := _memory(server.pid)) > _MEMORY * before and time.monotonic() - began < _SETTLES:
            time.sleep(0.2)
        settled = time.monotonic() - began
        again = threading.Thread(target=_send, args=(address, data, attack.pictures, answers), daemon=True)
        again.start()  # it must end in the middle of an attack, too
        time.sleep(1)
        asked = time.monotonic()
        server.send_signal(signal.SIGTERM)
        try:
            server.wait(_END)
        except subprocess.TimeoutExpired:
            server.kill()
        ended = time.monotonic() - asked
    refused = sum(status != 200 for _, status in told)
    return Seen(_p99(rest), _p99([seconds for seconds, _ in told]), refused, len(told), before, max(sizes), after, settled, ended, answers)


def _send(address: str, data: bytes, count: int, told: list[int]) -> None:
    with suppress(httpx.HTTPError):  # the server is gone, or hangs up: the other client says what that means
        files = [("picture", (f"{number}.jpg", data)) for number in range(count)]
        told.append(httpx.post(f"{address}/predict", files=files, timeout=70).status_code)


def _p99(seconds: list[float]) -> float:
    return sorted(seconds)[min(len(seconds) - 1, int(0.99 * len(seconds)))]


def _memory(pid: int) -> int:
    """Bytes that a process and its children have in memory."""
    total = 0
    for one in (pid, *_children(pid)):
        try:
            total += int(Path(f"/proc/{one}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
        except OSError:  # it has ended meanwhile
            continue
    return total


def _children(pid: int) -> list[int]:
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[1]) == pid:
            found.append(int(path.parent.name))
    return found


def taught(folder: Path) -> Path:
    """A model that knows two colours, on the tiny backbone."""
    from smope.classifier import ContinualClassifier

    dice, path = random.Random(0), folder / "shop.smope"
    classifier = ContinualClassifier("vit-tiny-test", image_size=16, overrides=["threads=1"])
    colours = {"red": (220, 40, 40), "blue": (40, 60, 220)}
    picture = {name: [Image.new("RGB", (20, 20), (*colour[:2], dice.randrange(256))) for _ in range(8)] for name, colour in colours.items()}
    classifier.learn([(image, name) for name, images in picture.items() for image in images])
    classifier.save(path)
    return path


def rows(names: list[str]) -> list[Row]:
    """A row for each attack."""
    made = []
    with tempfile.TemporaryDirectory(prefix="smope-soak-") as scratch:
        model = taught(Path(scratch))
        for name in names:
            began = time.monotonic()
            seen = tried(ATTACKS[name], model)
            made.append(
                Row(f"attack: {name}", "others calm", str(seen), "ok" if seen.good else "FAILED", round(time.monotonic() - began, 1))
            )
    return made


def main() -> None:
    """Try them and say what was seen."""
    parser = argparse.ArgumentParser(prog="soak.hostile", description=main.__doc__)
    parser.add_argument("--only", nargs="*", choices=list(ATTACKS), default=list(ATTACKS))
    for row in rows(parser.parse_args().only):
        print(row.verdict, row.what, row.seen, sep=" | ", flush=True)


if __name__ == "__main__":
    main()
