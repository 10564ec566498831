"""A study on drawn pictures: what it tries, what it keeps, and what the best recipe is."""

import csv
import json
import sys

import pytest
from PIL import Image

from smope.engine.loop import Interrupted
from smope.errors import ConfigError, Problem, SmopeError, install_command
from smope.many import Outcome
from smope.methods import resolve
from smope.recipes import load_recipe
from smope.tune import Search, Space, tune
from smope.tune.space import Choice, Range

optuna = pytest.importorskip("optuna")

GRID = Space("a grid", {"head.distance": Choice(("cosine", "euclidean")), "train.batch_size": Choice((2, 4))})


@pytest.fixture
def recipe(tmp_path):
    """Nearest class means of four colours; the test pictures are missing, so that nobody can look at them unpunished."""
    for part, shades in (("train", (0, 30, 60, 90, 120)), ("test", (60,))):
        for colour, (red, green) in {"a": (200, 0), "b": (0, 200), "c": (200, 200), "d": (90, 120)}.items():
            folder = tmp_path / "pictures" / part / colour
            folder.mkdir(parents=True)
            for index, blue in enumerate(shades):
                path = folder / f"{index}.png"
                Image.new("RGB", (16, 16), (red, green, blue)).save(path)
                if part == "test":
                    path.write_bytes(path.read_bytes()[:40])  # opening it is an error
    path = tmp_path / "small.yaml"
    path.write_text(
        f"""# four colours
method: {{name: ncm}}
backbone: {{name: vit-tiny-test, image_size: 16}}
data: {{name: folder, root: {tmp_path / "pictures"}, tasks: 2, augmentation: none, evaluation: squash}}
threads: 1
device: cpu
"""
    )
    return str(path)


class Scores:
    """An executor that makes no runs: the score is a function of the config. Notes what it was asked."""

    def __init__(self, score, fail=lambda config: False, stop_after=None):
        self.score, self.fail, self.stop_after = score, fail, stop_after
        self.asked = []

    def carry_out(self, tasks, stop=lambda: False):
        for task in tasks:
            if len(self.asked) == self.stop_after:
                raise Interrupted("stopped")
            self.asked.append(task)
            if self.fail(task.config):
                yield Outcome(task, failure=Problem("it broke."))
            else:
                score = self.score(task.config)
                yield Outcome(task, {"faa": score, "caa": score / 2})


def batch(config):
    return float(config.train.batch_size) + config.seed


def test_every_point_of_a_grid_is_run_on_the_validation_share_and_the_best_becomes_a_recipe(recipe, tmp_path):
    tuning = tune(Search(recipe, GRID), "colours", tmp_path / "study")
    assert len(tuning.finished) == 4
    records = [json.loads(path.read_text()) for path in (tmp_path / "study" / "trials").rglob("record.json")]
    assert len(records) == 4 and {record["dataset"]["split"] for record in records} == {"tuning"}
    assert all(len(record["predictions"]) == 4 for record in records)  # a fifth of the training pictures
    best = max(record["faa"] for record in records)
    assert tuning.best_score == pytest.approx(best)
    text = tuning.recipe.read_text()
    assert text.startswith(f"# {recipe}, tuned: study colours, trial {tuning.best_number} of 4 finished.")
    assert f"FAA {best:.2f} on the validation share, seeds 0" in text
    again = resolve(load_recipe(tuning.recipe))
    asked = resolve(
        load_recipe(recipe, [f"head.distance={tuning.best['head.distance']}", f"train.batch_size={tuning.best['train.batch_size']}"])
    )
    assert again.model_copy(update={"recipe": ""}) == asked.model_copy(update={"recipe": ""}) and again.data.split == "final"
    with (tmp_path / "study" / "trials.csv").open() as stream:
        lines = list(csv.DictReader(stream))
    assert [line["trial"] for line in lines] == ["0", "1", "2", "3"] and {line["train.batch_size"] for line in lines} == {"2", "4"}


def test_a_trials_score_is_the_mean_over_its_seeds_and_ties_go_to_the_first(recipe, tmp_path):
    scores = Scores(batch)
    tuning = tune(Search(recipe, GRID, seeds=(0, 3)), "s", tmp_path / "s", scores)
    assert [(task.config.seed, task.config.train.batch_size) for task in scores.asked] == [(0, 2), (3, 2), (0, 4), (3, 4)] * 2
    assert tuning.best_score == 5.5 and tuning.best_number == 1
    assert tune(Search(recipe, GRID, score="caa"), "c", tmp_path / "c", Scores(batch)).best_score == 2


def test_a_stopped_study_goes_on_with_what_it_had_begun_and_tries_nothing_twice(recipe, tmp_path):
    search = Search(recipe, GRID, seeds=(0, 1))
    first = Scores(batch, stop_after=3)  # a trial and a half
    with pytest.raises(Interrupted):
        tune(search, "s", tmp_path / "s", first)
    assert "trial 0 of 1 finished" in (tmp_path / "s" / "best.yaml").read_text()
    second = Scores(batch)
    tuning = tune(search, "s", tmp_path / "s", second)
    assert second.asked[0].folder == first.asked[2].folder  # whose checkpoint is there
    assert len(second.asked) == 6 and len(tuning.finished) == 4
    third = Scores(batch)
    assert tune(search, "s", tmp_path / "s", third).best == tuning.best and third.asked == []
    assert len(optuna.load_study(study_name="s", storage=f"sqlite:///{tmp_path / 's' / 'study.db'}").trials) == 4


def test_a_failed_trial_is_no_score_and_is_tried_again_in_the_next_session(recipe, tmp_path):
    said = []
    broken = Scores(batch, fail=lambda config: config.train.batch_size == 4)
    tuning = tune(Search(recipe, GRID), "s", tmp_path / "s", broken, say=said.append)
    assert [point["train.batch_size"] for _, point, _ in tuning.finished] == [2, 2] and any("it broke" in text for text in said)
    mended = Scores(batch)
    assert tune(Search(recipe, GRID), "s", tmp_path / "s", mended).best_score == 4
    assert len(mended.asked) == 2
    hopeless = Scores(batch, fail=lambda config: True)
    with pytest.raises(SmopeError, match=r"3 runs failed: trial 0 .* The first: it broke"):
        tune(Search(recipe, GRID), "t", tmp_path / "t", hopeless)
    assert len(hopeless.asked) == 3  # the fourth would have failed alike


def test_ranges_are_searched_for_as_many_trials_as_asked_and_going_on_draws_new_points(recipe, tmp_path):
    space = Space(
        "a range", {"train.lr": Range(1e-4, 1e-1, None, True), "train.epochs": Range(2, 8, 2), "head.distance": Choice(("cosine",))}
    )
    scores = Scores(lambda config: -abs(config.train.lr - 0.01))
    tune(Search(recipe, space, trials=3), "s", tmp_path / "s", scores)
    tuning = tune(Search(recipe, space, trials=5), "s", tmp_path / "s", scores)
    rates = [task.config.train.lr for task in scores.asked]
    assert len(rates) == len(set(rates)) == 5 and all(1e-4 <= rate <= 1e-1 for rate in rates)
    assert {task.config.train.epochs for task in scores.asked} <= {2, 4, 6, 8}
    assert tuning.best["train.lr"] == min(rates, key=lambda rate: abs(rate - 0.01))


def test_a_list_of_lists_reaches_the_run_and_the_recipe_as_it_was(recipe, tmp_path):
    space = Space("lists", {"data.sizes": Choice(([1, 3], [3, 1]))})
    scores = Scores(lambda config: float(config.data.sizes[0]))
    tuning = tune(Search(recipe, space, ("data.tasks=null",)), "s", tmp_path / "s", scores)
    assert [task.config.data.sizes for task in scores.asked] == [[1, 3], [3, 1]]
    assert resolve(load_recipe(tuning.recipe)).data.sizes == [3, 1]


def test_a_study_is_not_continued_with_other_questions(recipe, tmp_path):
    tune(Search(recipe, GRID), "s", tmp_path / "s", Scores(batch))
    with pytest.raises(ConfigError, match="another seeds"):
        tune(Search(recipe, GRID, seeds=(1,)), "s", tmp_path / "s", Scores(batch))
    text = (tmp_path / "small.yaml").read_text()
    (tmp_path / "small.yaml").write_text(text + "eval_batch_size: 3\n")
    with pytest.raises(ConfigError, match="another content"):
        tune(Search(recipe, GRID), "s", tmp_path / "s", Scores(batch))


def test_what_cannot_be_is_refused_before_anything_is_run(recipe, tmp_path):
    with pytest.raises(ConfigError, match="has a range"):
        Search(recipe, Space("r", {"train.lr": Range(1e-4, 1e-2)}))
    with pytest.raises(ConfigError, match=r"sets data\.split"):
        Search(recipe, GRID, ("data.split=final",))
    scores = Scores(batch)
    with pytest.raises(ConfigError, match="distance"):
        tune(Search(recipe, Space("g", {"head.distance": Choice(("cosine", "manhattan"))})), "s", tmp_path / "s", scores)
    assert scores.asked == [] and not (tmp_path / "s").exists()


def test_without_optuna_it_says_what_to_install(recipe, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(ConfigError, match="needs Optuna") as error:
        tune(Search(recipe, GRID), "s", tmp_path / "s")
    assert install_command("tune") in error.value.remedy
