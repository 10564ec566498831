"""Peak memory of a training step, measured where nothing else has been: in a process of its own.

    python -m smope.benchmark.memory '{"kind": "smope", "backbone": "vit_base_patch16_224", "pixels": 224, "batch": 32}'

prints by how many MiB the process grew over what it held with the model and the batch loaded.
"""

from __future__ import annotations

import gc
import json
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

from smope.errors import SmopeError

_TIME_LIMIT = 600


def growth(kind: str, backbone: str, pixels: int, batch: int) -> float:
    """MiB that three steps of this kind add to a fresh process."""
    if sys.platform == "win32":
        raise SmopeError("This system tells no peak memory.", "Name the other sections: smope bench training prediction.")
    asked = json.dumps({"kind": kind, "backbone": backbone, "pixels": pixels, "batch": batch})
    command = [sys.executable, "-m", "smope.benchmark.memory", asked]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_TIME_LIMIT, check=False)
    except subprocess.TimeoutExpired:
        raise SmopeError(f"The process that measures memory took longer than {_TIME_LIMIT:g} s.", "Lower --batch-size.") from None
    if done.returncode:
        raise SmopeError(
            f"The process that measures memory failed: {done.stderr.strip()[-300:]}", "Free some memory, or lower --batch-size."
        )
    return float(done.stdout)


def _peak() -> float:
    """The most this process has held, in MiB: on Linux since `_forget_peak`, and not counting, as getrusage does, what its parent held."""
    with suppress(OSError, IndexError):  # a sandbox's /proc may not say it
        status = Path("/proc/self/status").read_text(encoding="ascii")
        return int(status.partition("VmHWM:")[2].split()[0]) / 1024
    import resource  # which Windows does not have: there the other sections must still be found

    kilobytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return kilobytes / (1024 * 1024 if sys.platform == "darwin" else 1024)


def _forget_peak() -> None:
    """Linux can begin anew: making the model took more at times than it takes to hold it. Elsewhere that much of a step is not seen."""
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")


def _measure(kind: str, backbone: str, pixels: int, batch: int) -> float:
    from smope.backbones import CLS
    from smope.benchmark.setting import Setting
    from smope.methods.smope import Smope

    setting = Setting(backbone, pixels, batch)
    learner = setting.taught("smope", fields=setting.released)
    assert isinstance(learner, Smope)
    setting.vit.checkpointing = kind == "smope, checkpointing"
    step = setting.naive_step(learner) if kind == "naive" else setting.step(learner)
    Setting(backbone, pixels, 1).plain_step(CLS)()  # libraries load themselves on first use; that is no part of the step
    gc.collect()
    _forget_peak()
    before = _peak()
    for _ in range(3):
        step()
    return _peak() - before


if __name__ == "__main__":
    sys.stdout.write(f"{_measure(**json.loads(sys.argv[1]))}\n")
