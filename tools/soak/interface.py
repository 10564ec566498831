"""The interface, by its own description: Schemathesis makes requests of /openapi.json, sensible and senseless, and checks every answer.

    PYTHONPATH=tools python -m soak.interface --seconds 60

A real server on loopback, with a token and a throwaway model, which the requests teach, rename, merge, remove and undo. Any status but
2xx and 4xx, and any status, content type or document that the description does not promise, is a failure.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import httpx

import load_test
from smope import ContinualClassifier
from soak import scene

_HERE = Path(__file__).parent
_TOKEN = "the-token-of-the-soak"
_GRACE_SECONDS = 300  #: beyond the time it is given, for the last request and for what it reports


@dataclass
class Seen:
    """What came of it."""

    good: bool = False
    said: str = ""
    statuses: Counter[int] = field(default_factory=Counter)  #: as the server itself counted them

    @property
    def requests(self) -> int:
        return self.statuses.total()

    def __str__(self) -> str:
        kinds = Counter(f"{status // 100}xx" for status in self.statuses.elements())
        return f"{self.requests:,} requests: " + ", ".join(f"{count:,} {kind}" for kind, count in sorted(kinds.items()))


def _secret(folder: Path) -> Path:
    (path := folder / "token").write_text(_TOKEN)
    return path


def is_installed() -> bool:
    """Whether Schemathesis is there; it belongs to the extra 'dev'."""
    return importlib.util.find_spec("schemathesis") is not None


def tried(seconds: int, seed: int = 0, phases: str = "coverage,fuzzing,stateful") -> Seen:
    """Ask for so many seconds."""
    seen = Seen()
    with tempfile.TemporaryDirectory(prefix="smope-soak-") as scratch:
        file = Path(scratch) / "shop.smope"
        _teach(file, Path(scratch) / "pictures")
        with load_test.server(file, f"--token={_secret(Path(scratch))}") as (address, _):
            shown = {"Authorization": f"Bearer {_TOKEN}", "Connection": "close"}  # a kept one may be closed as it is used again
            with httpx.Client(base_url=address, headers=shown, timeout=120, trust_env=False) as client:
                while client.get("/health").json()["status"] != "ok":
                    time.sleep(0.1)
                done = _ask(address, Path(scratch), seconds, seed, phases)
                seen.said = done.stdout
                for status, count in re.findall(r'smope_requests_total{.*status="(\d+)"} (\d+)', client.get("/metrics").text):
                    seen.statuses[int(status)] += int(count)
                lives = client.get("/health").json()["status"] == "ok"
    seen.good = done.returncode == 0 and lives and not any(status >= 500 for status in seen.statuses)
    return seen


def _teach(file: Path, pictures: Path) -> None:
    settings = [option.removeprefix("--set=") for option in scene.new_adapter_options() if option.startswith("--set=")]
    classifier = ContinualClassifier("vit-tiny-test", method="smope", image_size=16, overrides=settings)
    classifier.learn(scene.draw_classes(pictures, scene.COLOURS, 6))
    classifier.save(file)


def _ask(address: str, scratch: Path, seconds: int, seed: int, phases: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "schemathesis.cli", f"--config-file={_HERE / 'interface.toml'}", "run", f"{address}/openapi.json"]
    command += [f"--header=Authorization: Bearer {_TOKEN}", f"--max-time={seconds}", f"--seed={seed}", f"--phases={phases}", "--no-color"]
    paths = os.pathsep.join(filter(None, [str(_HERE.parent), os.environ.get("PYTHONPATH", "")]))
    environment = {**os.environ, "PYTHONPATH": paths, "SCHEMATHESIS_HOOKS": "soak.interface_hooks"}
    return subprocess.run(
        command, cwd=scratch, env=environment, stdout=subprocess.PIPE, text=True, timeout=seconds + _GRACE_SECONDS, check=False
    )


def main() -> None:
    """Ask, and say what came of it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=int, default=60)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--phases", default="coverage,fuzzing,stateful")
    given = parser.parse_args()
    seen = tried(given.seconds, given.seed, given.phases)
    print(seen.said)
    print(seen, dict(sorted(seen.statuses.items())))
    raise SystemExit(0 if seen.good else 1)


if __name__ == "__main__":
    main()
