"""Coloured shapes, a model on the tiny backbone that knows three colours, and clients of a server of it."""

from __future__ import annotations

import io
import random
import shutil
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import pytest
from PIL import Image, ImageDraw

pytest.importorskip("fastapi", reason="the extra 'serve' is not installed")
import uvicorn
from starlette.testclient import TestClient

from smope.classifier import ContinualClassifier
from smope.serve.api import make_app
from smope.serve.gate import Rules
from smope.serve.limits import Limits
from smope.serve.model import Model

COLOURS = {"red": (220, 40, 40), "blue": (40, 60, 220), "green": (30, 180, 60), "white": (250, 250, 250)}
QUICK = ["method.experts=4", "method.top_k=2", "method.blocks=[0,1]", "train.epochs=3", "tap.steps=20", "threads=1"]
NEW = {"backbone": "vit-tiny-test", "method": "smope", "image_size": 16, "overrides": QUICK}
HERE = "http://127.0.0.1:8000"
Serve = Callable[..., AbstractContextManager[TestClient]]


def draw(colour: str, seed: int, size: int = 24) -> Image.Image:
    """A disc or a box of this colour, somewhere."""
    chance = random.Random(seed)
    picture = Image.new("RGB", (size, size), (chance.randint(90, 140),) * 3)
    x, y, r = (chance.randint(size // 3, 2 * size // 3) for _ in range(3))
    r = min(r // 2 + 2, size // 3)
    pen = ImageDraw.Draw(picture)
    (pen.ellipse if seed % 2 else pen.rectangle)((x - r, y - r, x + r, y + r), fill=COLOURS[colour])
    return picture


def png(colour: str, seed: int, size: int = 24) -> bytes:
    """The same as a file."""
    file = io.BytesIO()
    draw(colour, seed, size).save(file, "PNG")
    return file.getvalue()


def pictures(*files: bytes | tuple[str, bytes]) -> list[tuple[str, tuple[str, bytes]]]:
    """Files as a form's `picture` parts."""
    named = [(f"{number}.png", file) if isinstance(file, bytes) else file for number, file in enumerate(files)]
    return [("picture", entry) for entry in named]


def lesson(*colours: str, count: int = 6, first: int = 500) -> dict[str, Any]:
    """What /learn is sent: `count` pictures of each colour."""
    return {
        "data": {"class": [colour for colour in colours for _ in range(count)]},
        "files": pictures(*(png(colour, first + number) for colour in colours for number in range(count))),
    }


def wait_for(condition: Callable[[], Any], seconds: float = 240) -> Any:
    """The first true answer; patient, for a machine on which others work too."""
    until = time.monotonic() + seconds
    while not (answer := condition()):
        assert time.monotonic() < until, "it did not come to pass"
        time.sleep(0.05)
    return answer


def finished(client: TestClient, job: str) -> dict[str, Any]:
    """The state of a job once it is over."""
    state: dict[str, Any] = wait_for(
        lambda: found if (found := client.get(f"/jobs/{job}").json())["state"] in ("done", "failed", "cancelled") else None
    )
    return state


@contextmanager
def listening(model: Model, limits: Limits | None = None, **options: Any) -> Iterator[int]:
    """A server in this process that can be reached by TCP; gives its port."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        app = make_app(model, Rules(port=port), limits or Limits(niceness=0))
        server = uvicorn.Server(uvicorn.Config(app, log_level="warning", ws="none", **options))
        thread = threading.Thread(target=server.run, args=([listener],))
        thread.start()
        try:
            wait_for(lambda: server.started)
            yield port
        finally:
            app.stop()  # as `serve` does
            server.should_exit = True
            thread.join(30)


@pytest.fixture(scope="session")
def taught_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Red and blue, then green."""
    path = tmp_path_factory.mktemp("taught") / "shop.smope"
    classifier = ContinualClassifier(**NEW)  # type: ignore[arg-type]
    for colours, count in ((("red", "blue"), 40), (("green",), 40)):
        classifier.learn([(draw(colour, seed), colour) for colour in colours for seed in range(count)])
        classifier.save(path)
    return path


@pytest.fixture
def shop(taught_file: Path, tmp_path: Path) -> Path:
    """A copy that may be changed."""
    for path in (taught_file, taught_file.with_name("shop.smope.before")):
        shutil.copy(path, tmp_path)
    return tmp_path / "shop.smope"


@pytest.fixture
def serve() -> Serve:
    """with serve(file, limits=..., rules=...) as client: a server in this process, its model loaded."""

    @contextmanager
    def serving(file: Path, limits: Limits | None = None, rules: Rules | None = None, loaded: bool = True) -> Iterator[TestClient]:
        app = make_app(Model(file, NEW), rules or Rules(), limits or Limits(niceness=0))
        with TestClient(app, base_url=HERE, raise_server_exceptions=False) as client:
            if loaded:
                wait_for(lambda: client.get("/health").json()["status"] == "ok")
            yield client

    return serving


@pytest.fixture
def client(serve: Serve, shop: Path) -> Iterator[TestClient]:
    with serve(shop) as made:
        yield made
