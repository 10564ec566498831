"""Two checkouts in one measurement: they take turns contestant by contestant, and what goes wrong in a process is reported."""

from pathlib import Path

import pytest

from smope.benchmark import Setting, measure
from smope.benchmark.against import against_checkout
from smope.errors import ConfigError, SmopeError

ROOT = Path(__file__).resolve().parents[2]
SETTING = Setting("vit-tiny-test", batch_size=2)


SECTIONS = """
import os
import smope.benchmark.timing
from smope.benchmark.timing import interleaved

def write(name, contestant):
    if contestant == "bad":
        raise ValueError("two lines\\nand the last one")
    with open(os.environ["TURNS"], "a") as log:
        print(name, contestant, file=log)

def turns(setting, rounds):
    assert (setting.backbone, setting.batch_size) == ("vit-tiny-test", 2)
    CALLER({name: lambda name=name: write("NAME", name) for name in CONTESTANTS}, rounds)

SECTIONS = {"turns": turns, "sizes": lambda setting, rounds: None}
"""


@pytest.fixture
def fake(tmp_path, monkeypatch):
    """Make a checkout with a section whose contestants write its name and their own to one log; it knows no torch."""
    monkeypatch.setenv("TURNS", str(tmp_path / "log"))

    def make(name: str, *contestants: str, caller: str = "smope.benchmark.timing.interleaved") -> Path:
        package = tmp_path / name / "src" / "smope" / "benchmark"
        package.mkdir(parents=True)
        (package.parent / "__init__.py").touch()
        (package.parents[1] / "torch.py").write_text("def set_num_threads(number):\n    assert number == 1\n")
        setting = (
            "from dataclasses import make_dataclass\nSetting = make_dataclass('S', 'backbone image_size batch_size classes'.split())\n"
        )
        (package / "__init__.py").write_text(f"{setting}from .sections import SECTIONS\n")
        (package / "timing.py").write_text("def interleaved(contestants, rounds):\n    raise RuntimeError('not replaced')\n")
        sections = SECTIONS.replace("NAME", name).replace("CONTESTANTS", repr(contestants)).replace("CALLER", caller)
        (package / "sections.py").write_text(sections)
        return tmp_path / name

    make.log = tmp_path / "log"
    return make


@pytest.mark.parametrize("caller", ["smope.benchmark.timing.interleaved", "interleaved"])  # its own name for it, until commit c347b30
def test_contestants_of_both_take_turns_and_those_of_one_alone_are_left_out(fake, caller):
    this, other = fake("this", "a", "b", "new"), fake("other", "old", "b", "a", caller=caller)
    measured = against_checkout("turns", other, SETTING, rounds=2, threads=1, source=this / "src")
    assert fake.log.read_text().splitlines() == ["this a", "other a", "this b", "other b"] * 3
    assert [(ratio.what, ratio.against) for ratio in measured.ratios] == [("a", f"a in {other}"), ("b", f"b in {other}")]
    for ratio in measured.ratios:
        assert 0 < ratio.quartiles[0] <= ratio.value <= ratio.quartiles[1] and ratio.bar is None


def test_an_error_in_one_of_them_is_reported_with_its_last_line(fake):
    this, other = fake("this", "bad"), fake("other", "bad")
    with pytest.raises(SmopeError, match=r"this/src ended: and the last one"):
        against_checkout("turns", other, SETTING, rounds=1, threads=1, source=this / "src")


def test_a_section_without_contestants_is_refused(fake):
    this, other = fake("this"), fake("other")
    with pytest.raises(SmopeError, match="'sizes' is not a matter of seconds"):
        against_checkout("sizes", other, SETTING, rounds=1, threads=1, source=this / "src")


def test_a_folder_that_is_not_a_checkout_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="is not a checkout of smope"):
        against_checkout("turns", tmp_path, SETTING, rounds=1, threads=1)


def test_this_checkout_can_be_measured_against_itself():
    (section,) = measure(["training"], SETTING, rounds=1, threads=1, against=ROOT)["sections"]
    assert [ratio["against"] for ratio in section["ratios"]] == [f"{ratio['what']} in {ROOT}" for ratio in section["ratios"]]
    assert {"smope", "naive"} <= {ratio["what"] for ratio in section["ratios"]}
