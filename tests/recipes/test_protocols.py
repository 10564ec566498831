"""The recipes of each method: none is missing, each keeps the protocol it names, and its first lines quote the paper's scores."""

import re

import pytest

from smope.engine.schedule import learning_rate
from smope.methods import resolve
from smope.methods.ovor import OvorConfig
from smope.recipes import list_recipes, load_recipe
from smope.recipes.loader import _packaged
from smope.reproduce import STUDIES

LENGTHS = (5, 10, 20, 50)
STREAMS = ("imagenet-r", "cifar-100", "cub-200")
#: methods that the field runs in CODA-Prompt's protocol and in VQ-Prompt's, and how the other protocol is called in a recipe's name
FAMILY = {"l2p": "-vq", "deep-l2p": "-vq", "dualprompt": "-vq", "coda-prompt": "-vq", "ovor": "-vq", "vq-prompt": "-coda"}
NAMES = [info.name for info in list_recipes()]


def of_family(*methods, streams=STREAMS):
    """(recipe, protocol, tasks) for both protocols of these methods."""
    found = []
    for method in methods:
        for suffix in ("", FAMILY[method]):
            protocol = "vq" if (method == "vq-prompt") != bool(suffix) else "coda"
            ends = {stream: [f"-{tasks}" for tasks in LENGTHS] if stream == "imagenet-r" else [""] for stream in streams}
            found += [
                (f"{stream}/{method}{suffix}{end}", protocol, int(end[1:] or 10)) for stream, listed in ends.items() for end in listed
            ]
    return found


# -- all of them ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", FAMILY)
def test_every_promised_recipe_is_there_and_no_other(method):
    pattern = rf"({'|'.join(STREAMS)}|emoji-r)/{method}(-coda|-vq|-no-tap|-\d+)*"
    promised = [recipe for recipe, *_ in of_family(method)] + [f"emoji-r/{method}", f"emoji-r/{method}-no-tap"]
    assert sorted(name for name in NAMES if re.fullmatch(pattern, name)) == sorted(promised)


def score(mean, deviation):
    return f"{mean:.2f}" if deviation is None else f"{mean:.2f} +- {deviation:.2f}"


@pytest.mark.parametrize("study", ["main", "task-lengths"])
def test_a_recipe_that_reproduces_a_cell_of_the_paper_quotes_its_score_and_ours(study):
    cells = [cell for cell in STUDIES[study].cells(None) if cell.paper_faa is not None]
    assert len(cells) > 30
    for cell in cells:
        header = "\n".join(line for line in _packaged()[cell.recipe].read_text().splitlines() if line.startswith("#"))
        caa = "" if cell.paper_caa is None else f", CAA {score(*cell.paper_caa)}"
        assert f"FAA {score(*cell.paper_faa)}{caa}" in header and "Ours: not yet run" in header, cell.recipe


@pytest.mark.parametrize("name", [name.removesuffix("-no-tap") for name in NAMES if name.endswith("-no-tap")])
def test_on_emoji_r_all_methods_share_the_ruler_and_two_recipes_differ_in_tap_alone(name):
    with_tap, without, smope = (resolve(load_recipe(one)) for one in (name, f"{name}-no-tap", "emoji-r/smope"))
    assert with_tap.model_copy(update={"tap": without.tap, "recipe": without.recipe}) == without and without.tap.kind == "off"
    assert (with_tap.tap, with_tap.data, with_tap.backbone) == (smope.tap, smope.data, smope.backbone) and smope.tap.kind == "shared"
    one_rate = {"prompt_lr_multiplier": 1} if name == "emoji-r/convprompt" else {}  # for prompts and head, as it was released
    assert with_tap.train == smope.train.model_copy(update=one_rate)


# -- CODA-Prompt's protocol and VQ-Prompt's --------------------------------------------------------------------------------


@pytest.mark.parametrize(("recipe", "protocol", "tasks"), of_family(*FAMILY))
def test_a_recipe_keeps_its_protocol_and_its_number_of_tasks(recipe, protocol, tasks):
    config = resolve(load_recipe(recipe))
    assert recipe.startswith(f"{config.data.name}/{config.method['name']}") and config.data.tasks == tasks
    assert config.protocol == protocol and (config.tap.kind == "off") == (protocol == "coda")


@pytest.mark.parametrize(("recipe", "protocol", "tasks"), of_family("l2p", "deep-l2p"))
def test_l2p_trains_with_the_numbers_of_its_protocol(recipe, protocol, tasks):
    config = resolve(load_recipe(recipe))
    train, tap, dataset = config.train, config.tap, config.data.name
    assert config.method["preset"] == "released" and train.drop_last
    if protocol == "coda":
        assert (train.optimizer.kind, train.lr, train.prompt_lr_multiplier, train.batch_size) == ("adam", 1e-3, 1, 128)
        assert train.epochs == (50 if dataset == "imagenet-r" else 20)
    else:
        assert (train.optimizer.kind, train.lr, train.prompt_lr_multiplier, train.epochs) == ("adamw", 2.5e-3, 5, 20)
        assert train.batch_size == (64 if dataset == "imagenet-r" else 128)
        assert (tap.kind, tap.epochs, tap.ratio) == ("diagonal", 10, 2 if dataset == "cub-200" else 4)


@pytest.mark.parametrize(
    ("recipe", "epoch", "step", "base", "expected"),
    [
        ("imagenet-r/l2p-10", 0, 0, 1e-3, 1e-3),
        ("imagenet-r/l2p-10", 1, 40, 1e-3, 1e-3),
        ("imagenet-r/l2p-10", 25, 1000, 1e-3, 7.24e-4),
        ("imagenet-r/l2p-10", 49, 1960, 1e-3, 4.74e-5),
        ("imagenet-r/l2p-vq-10", 0, 0, 1.25e-2, 1.25e-2),
        ("imagenet-r/l2p-vq-10", 0, 1, 1.25e-2, 1e-6),
        ("imagenet-r/l2p-vq-10", 1, 40, 1.25e-2, 1e-6),
        ("imagenet-r/l2p-vq-10", 1, 41, 1.25e-2, 1.25e-2),
        ("imagenet-r/l2p-vq-10", 18, 739, 1.25e-2, 2.05e-4),
        ("imagenet-r/l2p-vq-10", 18, 739, 2.5e-3, 4.2e-5),
        ("imagenet-r/l2p-vq-10", 20, 820, 2.5e-3, 1e-6),
        ("cifar-100/l2p-vq", 2, 80, 2.5e-3, 1e-6),
        ("cifar-100/l2p-vq", 2, 81, 2.5e-3, 2.5e-3),
        ("cub-200/l2p-vq", 1, 4, 2.5e-3, 2.5e-3),
    ],
)
def test_learning_rates_of_the_protocols(recipe, epoch, step, base, expected):
    train = resolve(load_recipe(recipe)).train
    rate = learning_rate(train.schedule, base, step=step, epoch=epoch, steps_per_epoch=40, epochs=train.epochs)
    assert rate == pytest.approx(expected, rel=5e-3)


@pytest.mark.parametrize(("recipe", "protocol", "tasks"), of_family("dualprompt"))
def test_dualprompt_has_a_prompt_ready_for_each_task_as_released(recipe, protocol, tasks):
    method = resolve(load_recipe(recipe)).method
    assert (method["preset"], method["pool"]) == ("released", tasks)
    emoji = resolve(load_recipe("emoji-r/dualprompt")).method
    assert (emoji["preset"], emoji["pool"]) == (None, 0)  # and elsewhere none


@pytest.mark.parametrize(("recipe", "protocol", "tasks"), of_family("coda-prompt", streams=("imagenet-r",)))
def test_coda_prompt_shares_out_100_components(recipe, protocol, tasks):
    method = resolve(load_recipe(recipe)).method
    assert method["components_per_task"] * tasks == 100 and method["mu"] == 0


@pytest.mark.parametrize(("recipe", "protocol", "tasks"), of_family("vq-prompt"))
def test_vq_prompt_learns_prompts_faster_in_its_own_protocol_and_cub_has_a_temperature(recipe, protocol, tasks):
    config = resolve(load_recipe(recipe))
    assert config.train.prompt_lr_multiplier == (1 if protocol == "coda" else 5)
    assert config.method["tau"] == (5 if config.data.name == "cub-200" else 1)
    if protocol == "vq":
        assert (config.tap.kind, config.tap.ratio) == ("diagonal", 2 if config.data.name == "cub-200" else 4)


@pytest.mark.parametrize(("recipe", "protocol", "tasks"), of_family("ovor"))
def test_ovor_spends_a_fifth_of_its_epochs_on_outliers_around_the_released_origin(recipe, protocol, tasks):
    config = resolve(load_recipe(recipe))
    assert config.method["anchor"] == "origin" and config.train.drop_last == (protocol == "vq")
    own = OvorConfig.model_validate({key: value for key, value in config.method.items() if key not in ("name", "preset")})
    regularised = own.regularised_epochs(config.train.epochs)
    long = config.data.name == "imagenet-r" and protocol == "coda"
    assert (config.train.epochs - regularised, regularised) == ((40, 10) if long else (16, 4))
    assert resolve(load_recipe("emoji-r/ovor")).method["anchor"] == "boundary"  # where nothing is to be reproduced


# -- protocols of their own ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("tasks", LENGTHS)
def test_convprompt_on_imagenet_r_trains_as_its_released_script(tasks):
    config = resolve(load_recipe(f"imagenet-r/convprompt-{tasks}"))
    assert config.data.tasks == tasks and config.protocol == "convprompt" and config.tap.kind == "off"
    assert config.train.lr == pytest.approx(0.005 * 128 / 256) and config.train.epochs == 10 and config.train.clip_norm is None
    assert config.train.prompt_lr_multiplier == 1 and config.train.optimizer.kind == "adam"
    assert (config.train.schedule.kind, config.train.schedule.floor) == ("annealing", 0)


def test_convprompt_elsewhere_clips_its_gradients():
    cifar, cub = (resolve(load_recipe(f"{name}/convprompt")) for name in ("cifar-100", "cub-200"))
    assert cub.train.lr == pytest.approx(0.001 * 24 / 256, rel=1e-3) and (cub.train.epochs, cub.train.batch_size) == (60, 24)
    assert (cifar.train.epochs, cifar.train.batch_size, cifar.train.clip_norm, cub.train.clip_norm) == (10, 128, 1.0, 1.0)


OWN_SETTINGS = {"cifar-100/cprompt": (18, 1.2, 0.0), "cub-200/cprompt": (120, 1.15, 0.1)}


@pytest.mark.parametrize("recipe", [*(f"imagenet-r/cprompt-{tasks}" for tasks in LENGTHS), *OWN_SETTINGS])
def test_cprompt_trains_as_published_on_the_data_of_all_methods(recipe):
    config = resolve(load_recipe(recipe))
    dataset = recipe.partition("/")[0]
    tasks = int(recipe.rpartition("-")[2]) if dataset == "imagenet-r" else 10
    assert (config.train.epochs, config.method["temperature"], config.method["margin"]) == OWN_SETTINGS.get(recipe, (10, 1.15, 0.1))
    assert config.data.tasks == tasks and config.protocol == "cprompt" and config.tap.kind == "off"
    train = config.train
    assert (train.batch_size, train.lr, train.prompt_lr_multiplier, train.clip_norm) == (16, 0.01, 1, None)
    assert (train.optimizer.kind, train.optimizer.momentum, train.optimizer.weight_decay) == ("sgd", 0.9, 0)
    assert (train.schedule.kind, train.schedule.floor) == ("annealing", 0) and config.method["decay"] == 5e-4
    assert (config.method["length"], config.method["second_length"], config.method["second_block"]) == (50, 50, 5)
    other = resolve(load_recipe(f"{dataset}/smope{'-10' if dataset == 'imagenet-r' else ''}"))
    assert config.backbone == other.backbone and config.data == other.data.model_copy(update={"tasks": tasks})


def test_cprompt_has_shorter_prompts_on_emoji_r():
    method = resolve(load_recipe("emoji-r/cprompt")).method
    assert (method["length"], method["second_length"]) == (10, 10)


# the paper's table of settings: a_router, a_proto, eps, rate of the head, batch, TAP's epochs and ratio, backbone
SMOPE = {
    "imagenet-r/smope-5": (1e-4, 1e-5, 0.7, 2.5e-3, 64, 60, 2, "sup1k-b16"),
    "imagenet-r/smope-10": (5e-5, 1e-4, 0.5, 2.5e-3, 64, 50, 6, "sup1k-b16"),
    "imagenet-r/smope-20": (1e-4, 5e-5, 0.3, 2.5e-3, 64, 50, 4, "sup1k-b16"),
    "cifar-100/smope": (1e-5, 1e-5, 0.4, 5e-3, 128, 50, 1, "sup1k-b16"),
    "cub-200/smope": (1e-5, 5e-5, 0.4, 5e-3, 128, 50, 1, "sup21k-b16"),
}


@pytest.mark.parametrize("name", SMOPE)
def test_smope_has_the_papers_numbers_on_every_set(name):
    config = resolve(load_recipe(name))
    method, train, tap = config.method, config.train, config.tap
    found = (method["router_weight"], method["prototype_weight"], method["eps"], train.lr, train.batch_size, tap.epochs, tap.ratio)
    assert (*found, config.backbone.name) == SMOPE[name]
    assert (method["experts"], method["top_k"], method["blocks"]) == (25, 5, [0, 1, 2, 3, 4, 5])
    assert (train.epochs, train.prompt_lr_multiplier, train.optimizer.kind, train.optimizer.weight_decay) == (20, 5, "adamw", 0)
    kind, freeze = (
        ("cosine-epoch", 0) if name == "cub-200/smope" else ("cosine", {"5": 80, "10": 40, "20": 20}.get(name.rpartition("-")[2], 80))
    )
    assert (train.schedule.kind, train.schedule.freeze_steps, train.schedule.off_by_one) == (kind, freeze, True)
