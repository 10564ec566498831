"""What Schemathesis cannot know by itself: what a picture is, and that a queue of jobs nobody waits for is only in the way."""

from __future__ import annotations

import io
import json
from typing import Any
from urllib.parse import urljoin

import requests
import schemathesis
from hypothesis import strategies
from PIL import Image

from soak.scene import COLOURS

_SECONDS = 120


def _picture(colour: str, form: str) -> bytes:
    file = io.BytesIO()
    Image.new("RGB", (24, 24), colour).save(file, form)
    return file.getvalue()


PICTURES = [_picture(colour, form) for colour in COLOURS for form in ("PNG", "JPEG")]
_DAMAGED = [picture[: len(picture) // 2] for picture in PICTURES[:2]]

schemathesis.openapi.format("binary", strategies.sampled_from([*PICTURES, *_DAMAGED]) | strategies.binary(max_size=400))


@schemathesis.hook
def after_call(context: Any, case: Any, response: Any) -> None:
    """Take a change out of the queue that would wait for others: with a full queue nothing but 429 would ever be answered."""
    if response.status_code == 202 and json.loads(response.content)["place"] > 0:
        job = urljoin(response.request.url, f"/jobs/{json.loads(response.content)['id']}")
        requests.delete(job, headers={"Authorization": response.request.headers["Authorization"]}, timeout=_SECONDS)
