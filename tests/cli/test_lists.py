"""What there is, for people and for programs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import typer

import smope
from smope.backbones.registry import BACKBONES
from smope.cli.app import app
from smope.data import describe as describe_data
from smope.methods import known_methods
from smope.recipes import list_recipes

from .conftest import Call

LISTS = {
    "methods": lambda: list(known_methods()),
    "data": lambda: [row.name for row in describe_data()],
    "backbones": lambda: list(BACKBONES),
    "recipes": lambda: [row.name for row in list_recipes()],
}


@pytest.mark.parametrize("command", LISTS)
def test_a_list_names_everything_there_is(call: Call, command: str) -> None:
    shown = call(command, env={"COLUMNS": "80"})
    assert shown.exit_code == 0
    assert all(name in shown.output for name in LISTS[command]())
    assert max(map(len, shown.output.splitlines())) <= 120


@pytest.mark.parametrize("command", LISTS)
def test_json_names_the_same_and_nothing_else_is_printed(call: Call, command: str) -> None:
    assert [row["name"] for row in json.loads(call(command, "--json").stdout)] == LISTS[command]()


def test_a_method_is_listed_with_its_passes_and_parameters(call: Call) -> None:
    rows = {row["name"]: row for row in json.loads(call("methods", "--json").stdout)}
    assert rows["smope"]["trainable_parameters"] == 384_200
    assert rows["smope"]["passes"] == {"train": 1, "test": 1}
    assert rows["smope"]["presets"] == ["paper", "released"]


def test_one_method_shows_its_settings_as_they_are_written_on_the_command_line(call: Call) -> None:
    shown = call("methods", "smope").output
    assert "method.top_k" in shown and "method.eps" in shown


def test_cost_is_the_papers_number(call: Call) -> None:
    words = ("cost", "smope", "--classes", "200", "--tasks", "10", "--backbone", "vit_base_patch16_224")
    counted = json.loads(call(*words, "--json").stdout)
    assert counted["trainable_parameters"] == 384_200 and sum(counted["parameters_by_part"].values()) == 384_200
    shown = call(*words).output
    assert "384,200" in shown and f"{counted['gflops']['test']:g}" in shown and f"{counted['gflops_with_attention']['test']:g}" in shown


def test_cost_takes_the_methods_settings_and_no_others(call: Call) -> None:
    half = json.loads(call("cost", "smope", "method.experts=20", "method.top_k=2", "--json").stdout)
    assert half["trainable_parameters"] == 384_200 - 5 * 2 * 6 * 768  # five experts fewer: key and value in six blocks
    refused = call("cost", "smope", "train.lr=1")
    assert refused.exit_code == 2 and "method." in refused.stderr


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (["methods", "smop"], "'smope'"),
        (["cost", "smop"], "'smope'"),
        (["cost", "smope", "--backbone", "vit_base_patch16"], "'vit_base_patch16_224'"),
        (["data", "prepare", "emoji"], "'emoji-r'"),
        (["data", "prepare", "folder"], "data.root="),
        (["backbones", "fetch", "dinov2-s14-reg-mr"], "'dinov2-s14-reg-mri'"),
        (["backbones", "fetch", "vit-tiny-test"], "nothing to fetch"),
    ],
)
def test_an_unknown_name_gets_the_nearest(call: Call, words: list[str], hint: str) -> None:
    done = call(*words)
    assert done.exit_code == 2 and hint in done.stderr and not done.stdout


def test_the_version_is_the_packages_own(call: Call) -> None:
    assert call("version").output == call("--version").output == f"smope {smope.__version__}\n"


def commands(command: Any, words: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """The program, its commands, and theirs."""
    yield words
    for name, below in getattr(command, "commands", {}).items():
        yield from commands(below, (*words, name))


@pytest.mark.parametrize("words", list(commands(typer.main.get_command(app))), ids=" ".join)
def test_every_help_ends_in_an_example(call: Call, words: tuple[str, ...]) -> None:
    shown = call(*words, "--help")
    assert shown.exit_code == 0 and "smope" in shown.output.split("╰")[-1]


def test_help_and_the_recipes_do_not_wait_for_torch() -> None:
    code = """
import sys
from smope.cli.app import app
for words in (["--help"], ["run", "--help"], ["recipes"]):
    try:
        app(words)
    except SystemExit as end:
        assert end.code == 0, words
    assert "torch" not in sys.modules, words
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0 and "emoji-r/smope" in done.stdout, done.stderr


@pytest.mark.parametrize(("typed", "word"), [("smope le", "learn"), ("smope learn --im", "--image-size")])
def test_a_shell_can_complete_commands_and_options(typed: str, word: str) -> None:
    asked = {"_SMOPE_COMPLETE": "complete_bash", "COMP_WORDS": typed, "COMP_CWORD": str(typed.count(" "))}
    done = subprocess.run([sys.executable, "-m", "smope"], capture_output=True, text=True, env={**os.environ, **asked})
    assert done.stdout.split() == [word], done.stderr


def test_what_a_practitioner_needs_stands_apart_from_what_a_researcher_does(call: Call) -> None:
    teach, _, _, study = (set(panel.split()) for panel in call("--help").output.split("╭─ ")[2:])
    assert {"learn", "predict", "serve", "undo"} <= teach and "reproduce" not in teach
    assert {"run", "reproduce", "tune", "verify", "compare"} <= study and "predict" not in study
