"""The paper's studies: which runs they need, how finished ones are found, and what is written."""

import json
import re
from dataclasses import replace

import pytest

from smope.engine.record import NUMERICS, digest, run_key
from smope.engine.run import run
from smope.errors import ConfigError
from smope.methods import resolve
from smope.recipes import list_recipes
from smope.reproduce import STUDIES, Cell, Store, find_study, plan
from smope.reproduce.figures import figure
from smope.reproduce.studies import paper_tables, read_seeds
from smope.reproduce.tables import cost_table, missing, table
from smope.reproduce.verify import verify
from smope.reproduce.work import carry_out, estimate, lacking, write_table
from soak import scene

RECIPES = {info.name for info in list_recipes()}


# -- studies ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("study", STUDIES.values(), ids=lambda study: study.name)
def test_every_cell_of_every_study_is_a_recipe_that_resolves(study):
    for dataset in (None, study.ground, "emoji-r"):
        cells = study.cells(dataset)
        assert len({(cell.row, cell.column) for cell in cells}) == len(cells)
        assert bool(cells) == (study.runs or study.name == "collapse")
        for cell in cells:
            assert cell.recipe in RECIPES
            cell.config(seed=3)


def test_the_papers_numbers_stand_beside_its_own_cells_and_no_others():
    main = {(cell.row, cell.column): cell for cell in STUDIES["main"].cells(None)}
    assert main["smope", "cub-200"].paper_faa == (87.43, 0.39) and main["smope", "cub-200"].paper_caa == (91.11, 0.55)
    assert main["joint", "imagenet-r"].paper_faa == (82.06, None) and main["joint", "imagenet-r"].paper_caa is None
    lengths = {(cell.row, cell.column): cell for cell in STUDIES["task-lengths"].cells(None)}
    assert lengths["vq-prompt", "20 tasks"].paper_faa[0] == 78.10 and lengths["vq-prompt", "20 tasks"].recipe == "imagenet-r/vq-prompt-20"
    for study in STUDIES.values():
        for cell in study.cells("emoji-r"):
            assert cell.paper_faa is None


def test_every_row_of_the_papers_tables_is_a_row_here():
    for name in ("main", "task-lengths", "self-supervised", "ablation"):
        assert {cell.row for cell in STUDIES[name].cells(None)} == set(paper_tables()[name]["rows"])


def test_the_ablation_adds_one_thing_a_row_and_ends_at_smope():
    cells = STUDIES["ablation"].cells("emoji-r-100")
    configs = [cell.config(0) for cell in cells]
    assert run_key(configs[-1].model_dump(mode="json")) == run_key(Cell("", "", "emoji-r-100/smope").config(0).model_dump(mode="json"))
    packaged = sorted(name for name in RECIPES if name.startswith("emoji-r-100/ablation-"))
    assert [config.method for config in configs] == [Cell("", "", name).config(0).method for name in packaged]
    assert [config.tap.kind for config in configs] == ["off"] * 4 + ["shared"] * 4


def test_sweeps_have_the_values_that_the_paper_searched():
    eps = [cell.config(0).method["eps"] for cell in STUDIES["epsilon"].cells(None)]
    assert eps == pytest.approx([tenth / 10 for tenth in range(11)])
    searched = [5e-6, 1e-5, 5e-5, 1e-4, 5e-4, 1e-3]
    methods = [cell.config(0).method for cell in STUDIES["loss-weights"].cells(None)]
    pairs = [(method["router_weight"], method["prototype_weight"]) for method in methods]
    assert pairs == [(router, prototype) for router in searched for prototype in searched]


def test_prototypes_of_important_experts_of_all_and_of_none_and_nothing_else_differ():
    important, every, none = (cell.config(0).method for cell in STUDIES["prototypes"].cells("emoji-r-100"))
    assert {key for key in important if important[key] != every[key]} == {"prototypes"}
    assert {key for key in important if important[key] != none[key]} == {"prototype_weight"} and none["prototype_weight"] == 0


def test_a_misspelt_study_gets_the_nearest_and_seeds_are_read_as_written():
    with pytest.raises(ConfigError, match="'ablation'"):
        find_study("ablatoin")
    assert read_seeds("0-2,7") == [0, 1, 2, 7] and read_seeds("3") == [3]
    for text in ("", "a", "4-2", "1-x", "4-2,7", "3-"):
        with pytest.raises(ConfigError, match="names no seeds"):
            read_seeds(text)


@pytest.mark.parametrize("name", ["main", "task-lengths", "self-supervised", "accuracy-curves"])
def test_a_set_without_recipes_is_told_and_no_empty_table_is_made(name):
    with pytest.raises(ConfigError, match=r"'emojir'.*Did you mean 'emoji-r'\?"):
        find_study(name).cells("emojir")


def test_cost_equals_the_papers_table_to_the_printed_digit():
    sheet = cost_table()
    place = {name: index for index, name in enumerate(sheet.columns)}
    for row in sheet.rows:
        assert row[place["counted as the paper"]] == row[place["paper"]], row
        assert row[place["test GFLOPs"]] == row[place["paper: test"]], row
        if row[0] != "dualprompt":  # the table claims one pass in training; its key loss needs two
            assert row[place["train GFLOPs"]] == row[place["paper: train"]], row
        assert bool(row[-1]) == (row[0] in ("deep-l2p", "dualprompt"))


# -- what a run is ---------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def recipe(tmp_path_factory):
    """SMoPE on a few drawn shapes."""
    root = tmp_path_factory.mktemp("reproduce")
    return str(scene.recipe(root / "small.yaml", scene.pictures(root / "pictures"), checkpoint_minutes=5.0))


def test_the_key_is_what_is_computed_not_its_name_nor_its_place(recipe):
    config = Cell("", "", recipe).config(0).model_dump(mode="json")
    same = {**config, "recipe": "other", "protocol": "other", "device": "cuda", "threads": 7, "checkpoint_minutes": 1.0}
    assert run_key(config) == run_key(same) == run_key({**config, "an_option_added_later": None})
    assert run_key(config) != run_key({**config, "seed": 1}) != run_key({**config, "train": {**config["train"], "lr": 1.0}})
    assert run_key(config) != run_key(config, NUMERICS + 1)


@pytest.fixture(scope="module")
def done(recipe, tmp_path_factory):
    """A small study carried out, and its store."""
    scratch = tmp_path_factory.mktemp("runs")
    cells = [Cell("plain", "A", recipe, (), (50.0, 1.0)), Cell("bare", "A", recipe, ("method.noise=none", "method.router_weight=0"))]
    store = Store((scratch,))
    planned = plan(cells, [0, 1], store)
    assert all(one.record is None for one in planned)
    return cells, store, scratch, list(carry_out(planned, store, scratch / "made"))


def test_finished_runs_are_found_again_and_not_run_twice(done, monkeypatch):
    cells, _, scratch, finished = done
    monkeypatch.setattr("smope.many.sequence.run", lambda *_, **__: pytest.fail("it ran again"))
    again = plan(cells, [0, 1], Store((scratch,)))
    assert [one.record["digest"] for one in again] == [one.record["digest"] for one in finished]
    assert [one.record["digest"] for one in carry_out(again, Store((scratch,)), scratch)] == [one.record["digest"] for one in finished]


def test_a_damaged_record_is_no_run_and_no_obstacle(done, tmp_path):
    cells, _, scratch, _ = done
    (tmp_path / "record.json").write_text("{ half")
    assert all(one.record for one in plan(cells, [0], Store((tmp_path, scratch))))


def test_the_table_has_ours_the_papers_and_the_difference_and_says_what_is_missing(done):
    cells, store, _, finished = done
    some = [*finished, *plan([Cell("other", "A", cells[0].recipe, ("method.eps=0.9",))], [0], store)]
    sheet = table(STUDIES["main"], some)
    assert sheet.columns == ("", "A FAA", "A FAA paper", "A FAA difference", "A CAA", "A CAA paper", "A CAA difference")
    mean = sum(one.record["faa"] for one in finished[:2]) / 2
    plain, bare, other = sheet.rows
    assert plain[1].startswith(f"{mean:.2f}") and plain[2] == "50.00 ± 1.00" and plain[3] == f"{mean - 50:+.2f}"
    assert bare[2:4] == ("–", "–") and other[1] == "not yet run"
    absent = missing(some)
    assert [row[0] for row in absent.rows] == ["other"] and absent.rows[0][-1].endswith("method.eps=0.9 --seed 0")


def test_tables_are_written_in_three_forms(done, tmp_path):
    paths = write_table(table(STUDIES["main"], done[3]), tmp_path / "new" / "main")
    assert [path.suffix for path in paths] == [".md", ".csv", ".tex"] and all(path.read_text() for path in paths)


def test_an_estimate_needs_something_measured(done):
    _, store, _, finished = done
    assert estimate(finished) is None  # nobody knows how many pictures a folder has
    emoji = plan([Cell("", "", "emoji-r/ncm")], [0], store)
    assert estimate(emoji) is None


@pytest.mark.parametrize("name", ["frequencies", "frequency-evolution", "score-distribution", "key-pca", "accuracy-curves", "epsilon"])
def test_figures_are_drawn_with_their_data_beside_them(done, name, tmp_path):
    _, store, _, finished = done
    runs = [one for one in finished if one.cell.row == "plain"]
    if name == "epsilon":
        runs = [type(one)(Cell("eps", "0.4", one.cell.recipe), one.seed, one.config, one.record) for one in runs]
    paths = figure(STUDIES[name], runs, store, tmp_path / name)
    assert [path.suffix for path in paths] == [".png", ".svg", ".json"]
    data = json.loads((tmp_path / f"{name}.json").read_text())
    svg = (tmp_path / f"{name}.svg").read_bytes()
    assert data and svg.startswith(b"<?xml")
    figure(STUDIES[name], runs, store, tmp_path / name)
    assert (tmp_path / f"{name}.svg").read_bytes() == svg  # the same data, the same bytes
    if name == "frequency-evolution":
        assert all(sum(row) == pytest.approx(2) for row in data["block 0, head 0"])  # K = 2 of each image
    if name == "score-distribution":
        assert len(data["heads"]) == 3 and all(five == sorted(five) for five in data["heads"])
    if name == "key-pca":
        assert len(data["keys"]) == 4 and len(data["inputs"]) == 8 and 0 < sum(data["explained"]) <= 1.0001


def test_a_sweep_is_drawn_of_the_values_that_were_run_and_of_none_if_none_was(done, tmp_path):
    _, store, _, (one, *_) = done
    run, lacking_one = (replace(one, cell=Cell("eps", value, "", ())) for value in ("0.4", "0.9"))
    lacking_one = replace(lacking_one, record=None)
    figure(STUDIES["epsilon"], [run, lacking_one], store, tmp_path / "epsilon")
    assert json.loads((tmp_path / "epsilon.json").read_text())["eps"] == [0.4]
    with pytest.raises(ConfigError, match=r"eps 0\.9 seed 0 is not yet run"):
        figure(STUDIES["epsilon"], [lacking_one], store, tmp_path / "epsilon")


@pytest.mark.parametrize("name", ["frequencies", "frequency-evolution"])
def test_any_head_of_any_prompted_block_can_be_shown_and_no_other(done, name, tmp_path):
    _, store, _, (one, *_) = done
    places = [(block, head) for block in range(2) for head in range(3)]
    figure(STUDIES[name], [one], store, tmp_path / name, places=places)
    data = json.loads((tmp_path / f"{name}.json").read_text())
    shown = data["plain"] if name == "frequencies" else {place: rows[0] for place, rows in data.items()}
    facts = one.record["facts"][-1 if name == "frequencies" else 0]
    wanted = {f"block {b}, head {h}": [count / facts["images_seen"] for count in facts["usage"][b][h]] for b, h in places}
    assert shown == wanted and len(set(map(tuple, wanted.values()))) > 2  # else a wrong head could not show
    for places in ([(2, 0)], [(0, 3)]):
        with pytest.raises(ConfigError, match="Prompted blocks are 0, 1; heads are 0 to 2"):
            figure(STUDIES[name], [one], store, tmp_path / name, places=places)


@pytest.mark.parametrize("name", ["key-pca", "score-distribution", "sample-efficiency"])
def test_what_a_record_alone_cannot_show_is_not_there_until_it_lies_beside_it(done, name, tmp_path):
    cells, _, scratch, finished = done
    (tmp_path / "alone").mkdir()
    (tmp_path / "alone" / "record.json").write_text(json.dumps(finished[0].record))
    study, alone = STUDIES[name], Store((tmp_path / "alone",))
    (bare,) = plan(cells[:1], [0], alone)
    (wanted,) = plan(cells[:1], [0], alone, beside=study.beside)
    assert bare.record is not None and wanted.record is None and lacking([wanted]) == [wanted]
    with pytest.raises(ConfigError, match=f"plain A seed 0 is not yet run, or no .*{study.beside[-1]} of it is there.*smope run"):
        figure(study, [wanted], alone, tmp_path / name)
    both = Store((tmp_path / "alone", scratch))
    (found,) = plan(cells[:1], [0], both, beside=study.beside)
    assert found.record is not None and both.folder_of(found.config) == tmp_path / "alone"
    assert both.folder_of(found.config, study.beside).is_relative_to(scratch)


def test_loss_curves_are_drawn_from_a_watched_run(recipe, tmp_path):
    store = Store((tmp_path,))
    watched = ("data.split=tuning", "data.validation_share=0.4", "watch_validation=true")
    finished = list(carry_out(plan([Cell("with", "", recipe, watched)], [0], store), store, tmp_path))
    figure(STUDIES["sample-efficiency"], finished, store, tmp_path / "figure")
    data = json.loads((tmp_path / "figure.json").read_text())
    assert [len(losses) for losses in data["with"]] == [1 + 2, 2]  # one dense epoch, then two a task


def test_a_record_is_verified_by_running_it_again(done, tmp_path):
    record = done[3][0].record
    (tmp_path / "record.json").write_text(json.dumps(record))
    assert verify(tmp_path / "record.json") == []
    older = {**record, "config": {key: value for key, value in record["config"].items() if key != "precision"}}
    assert older["config"].keys() < record["config"].keys()  # made before that option was there
    older["overrides"] = {**record["overrides"], "tap.optimizer": {"weight_decay": 0.0}}  # when sections were kept whole
    (tmp_path / "record.json").write_text(json.dumps({**older, "digest": digest(older)}))
    assert verify(tmp_path / "record.json") == []
    (tmp_path / "record.json").write_text(json.dumps({**record, "digest": "0" * 64, "faa": 1.0}))
    (difference,) = verify(tmp_path / "record.json")
    assert re.fullmatch(rf"another faa: 1\.0 and {record['faa']}", difference)


def test_analysis_refuses_what_has_no_scores(recipe, tmp_path):
    from smope.engine.analysis import analyse

    run(resolve({**Cell("", "", recipe).config(0).model_dump(mode="json"), "method": {"name": "linear"}}), tmp_path / "linear")
    with pytest.raises(ConfigError, match="run of linear, which has no proxy scores"):
        analyse(tmp_path / "linear")


@pytest.mark.parametrize("missing", ["record.json", "checkpoint.safetensors"])
def test_analysis_refuses_a_run_that_is_not_finished_or_not_whole(tmp_path, missing):
    """An analysis is made once and then found: one of a run under way would stay for ever."""
    from smope.engine.analysis import analyse

    for name in {"record.json", "checkpoint.safetensors"} - {missing}:
        (tmp_path / name).touch()
    with pytest.raises(ConfigError, match=f"has no {missing}"):
        analyse(tmp_path)
