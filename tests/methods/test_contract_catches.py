"""For every promise, a method that breaks it the way a real one might; its check must say so. A check that cannot fail is a defect."""

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from smope.backbones import Prompter
from smope.methods import Method, MethodConfig
from smope.methods.one_prompt import OnePrompt
from smope.phases import Chance, Draws, Group
from smope.prompts import PrefixPrompter
from smope.testing import contract, streams, sums
from smope.testing.contract import ContractError, DoesNotApply, Subject, checks
from smope.testing.subject import SHORT_TAP

TAP = {**SHORT_TAP, "kind": "pooled", "first_task": True}
CAUGHT: list = []


def breaks(check, words, *, fields=None, tap=None, raises=ContractError):
    """Note that `check` must refuse the class below, with these words."""

    def note(broken):
        broken.name = broken.__name__
        CAUGHT.append(pytest.param(broken, check, words, fields or {}, tap or {"kind": "off"}, raises, id=broken.__name__))
        return broken

    return note


BLOCKS = {"blocks": [0, 1], "experts": 4}


class CarryingPrompter(PrefixPrompter):
    """Adds what the block asked before was given: in the backward pass that is another block."""

    before = torch.zeros((), dtype=torch.float64, requires_grad=True)

    def prefix(self, block, x_BNC, q_BHND):
        scores, values = super().prefix(block, x_BNC, q_BHND)
        before, self.before = self.before, scores.mean()
        return scores * (1 + before), values


@breaks(contract.check_activation_checkpointing_changes_nothing, "with activation checkpointing it learns another", fields=BLOCKS)
class CarriesFromBlockToBlock(OnePrompt):
    def make_prompter(self, batch, training):
        return CarryingPrompter(self.config.blocks, self.keys_LHPD, self.values_LHPD)


# -- prediction ----------------------------------------------------------------------------------------------------------


class MixingPrompter(Prompter):
    """Each image has its own prompt, stacked as B,2,P,H,D and *reshaped*, not permuted, to 2,B,H,P,D: it gets its neighbours'."""

    def __init__(self, keys_LHPD, values_LHPD):
        self.prompt_L2HPD = torch.stack([keys_LHPD, values_LHPD], 1)
        self.prefixed = range(len(keys_LHPD))

    def prefix(self, block, x_BNC, q_BHND):
        _, H, P, D = self.prompt_L2HPD[block.index].shape
        weight_B = x_BNC.mean((1, 2)).sigmoid()
        prompt_B2PHD = torch.einsum("b,xhpd->bxphd", weight_B, self.prompt_L2HPD[block.index])
        keys_BHPD, values_BHPD = prompt_B2PHD.reshape(2, len(x_BNC), H, P, D)
        return q_BHND @ keys_BHPD.transpose(-1, -2) * block.scale, values_BHPD


@breaks(contract.check_batch_neighbours_do_not_matter, "alone, an image has other logits than in a batch", fields=BLOCKS)
class ReshapesAcrossTheBatch(OnePrompt):
    def make_prompter(self, batch, training):
        return MixingPrompter(self.keys_LHPD, self.values_LHPD)


@breaks(contract.check_batch_neighbours_do_not_matter, "alone, an image has other logits than in a batch")
class CentresOnTheBatch(Method):
    def logits(self, batch, vit):
        feature = vit(batch.images)
        return self.head(feature - 1e-6 * feature.mean(0))


@breaks(contract.check_prediction_sees_no_label_and_no_chance, "changes with the labels")
class PeeksAtLabels(Method):
    def logits(self, batch, vit):
        return super().logits(batch, vit) + F.one_hot(batch.rows_B, len(self.head)) * 1e-3


@breaks(contract.check_prediction_sees_no_label_and_no_chance, "changes with the batch's chance")
class NoisyPrediction(Method):
    def logits(self, batch, vit):
        logits = super().logits(batch, vit)
        return logits + 1e-3 * torch.randn(logits.shape[1], generator=batch.chance.generator())


@breaks(contract.check_prediction_changes_no_state, "changed its state: asked")
class CountsPredictions(Method):
    def __init__(self, *args):
        super().__init__(*args)
        self.register_buffer("asked", torch.zeros((), dtype=torch.int64))

    def logits(self, batch, vit):
        self.asked += 1
        return super().logits(batch, vit)


@breaks(contract.check_prediction_changes_no_state, "changed its state: last_batch from 0 to 10")
class RemembersThePrediction(Method):
    def __init__(self, *args):
        super().__init__(*args)
        self.last_batch = 0

    def logits(self, batch, vit):
        self.last_batch = len(batch.images)
        return super().logits(batch, vit)


@breaks(contract.check_only_seen_classes_are_predicted, "after 1 tasks a class it has never seen can be predicted")
class HeadForTenClasses(Method):
    def begin(self, update):
        if update.first:
            self.head.grow(10, update.chance.generator())


@breaks(contract.check_retired_classes_are_never_predicted, "still predicts them")
class IgnoresRetirement(Method):
    def logits(self, batch, vit):
        return F.linear(vit(batch.images), self.head.weight, self.head.bias)


# -- what moves in learning ----------------------------------------------------------------------------------------------


@breaks(contract.check_backbone_is_untouched, "learning changed the backbone: norm.weight")
class TrainsTheBackbone(Method):
    def loss(self, update):
        inner = super().loss(update)

        def loss(batch, vit):
            if vit.norm.weight.grad is not None:
                with torch.no_grad():
                    vit.norm.weight -= 1e-3 * vit.norm.weight.grad
            vit.norm.weight.requires_grad_(True)
            return inner(batch, vit)

        return loss


@breaks(contract.check_backbone_is_untouched, "asks for a gradient or keeps one")
class AsksForWeightGradients(Method):
    def loss(self, update):
        inner = super().loss(update)
        return lambda batch, vit: inner(batch, vit.requires_grad_(True))


@breaks(contract.check_only_declared_parameters_move, "phase train moved keys_LHPD, which is not in its groups", fields=BLOCKS)
class NudgesItsKeys(OnePrompt):
    def prompt_parameters(self):
        return [self.values_LHPD]

    def loss(self, update):
        inner = super().loss(update)

        def loss(batch, vit):
            with torch.no_grad():
                self.keys_LHPD.mul_(0.99)
            return inner(batch, vit)

        return loss


@breaks(contract.check_old_rows_stay_while_images_are_learned, "moved other head rows: weight")
class LearnsAgainstOldClasses(Method):
    def loss(self, update):
        return lambda batch, vit: {"ce": F.cross_entropy(self.head(vit(batch.images)), batch.rows_B)}


@breaks(contract.check_known_classes_only_leave_the_prompts, "an update without a new class changed keys_LHPD", fields=BLOCKS)
class AlwaysTrains(OnePrompt):
    def phases(self, update):
        return [*self.image_phases(update), *self.observations(update)]


@breaks(contract.check_known_class_is_merged_exactly, "the mean of a class seen in two parts")
class AveragesMeans(Method):
    def remember(self, seen, rows_N, update):
        old = self.head.statistics.mean_CD.clone()
        super().remember(seen, rows_N, update)
        for row in update.rows:
            if row < update.known:
                self.head.statistics.mean_CD[row] = (old[row] + seen["feature"][rows_N == row].mean(0)) / 2


@breaks(contract.check_known_class_is_merged_exactly, "the scatter of a class seen in two parts")
class ForgetsThatTheMeanMoved(Method):
    def remember(self, seen, rows_N, update):
        scatter = self.head.statistics.scatter_CD.clone()
        super().remember(seen, rows_N, update)
        for row in update.rows:
            mine = seen["feature"][rows_N == row]
            self.head.statistics.scatter_CD[row] = scatter[row] + (mine - mine.mean(0)).square().sum(0)


@breaks(contract.check_known_class_is_merged_exactly, "pictures of one class changed the mean of another")
class ShiftsEveryMean(Method):
    def remember(self, seen, rows_N, update):
        super().remember(seen, rows_N, update)
        self.head.statistics.mean_CD += 1e-12


@breaks(contract.check_known_class_is_merged_exactly, "4 more pictures of a class were counted as 8")
class CountsTwice(Method):
    def observations(self, update):
        return super().observations(update) * 2


# -- the same again ------------------------------------------------------------------------------------------------------


@breaks(contract.check_saved_and_loaded_is_the_same, "saved and loaded, it answers differently")
class DoesNotSaveItsProjection(Method):
    def __init__(self, setup):
        super().__init__(setup)
        self.register_buffer("projection", torch.rand(setup.shape.dim, generator=setup.chance.generator()), persistent=False)

    def logits(self, batch, vit):
        return self.head(vit(batch.images) * self.projection)


@breaks(contract.check_saved_and_loaded_is_the_same, "saved and loaded, it learns the next task differently")
class DoesNotSaveItsCounter(Method):
    def __init__(self, *args):
        super().__init__(*args)
        self.register_buffer("tasks", torch.zeros(()), persistent=False)

    def begin(self, update):
        super().begin(update)
        self.tasks += 1

    def train_phase(self, name, loss, epochs):
        phase = super().train_phase(name, loss, epochs)
        return replace(phase, groups=tuple(Group(group.parameters, group.lr / float(self.tasks)) for group in phase.groups))


@breaks(contract.check_stopped_and_resumed_is_never_stopped, "not the one that was never stopped", fields=BLOCKS)
class AnchorsWhereItIsAsked(OnePrompt):
    """The anchor is where the prompt is when the phases are listed: after a restart, somewhere in the middle."""

    def loss(self, update):
        inner, anchor = super().loss(update), self.keys_LHPD.detach().clone()
        return lambda batch, vit: {**inner(batch, vit), "anchor": (self.keys_LHPD - anchor).square().sum()}


@breaks(contract.check_same_seed_same_result, "two runs with the same seed differ")
class UnseededDropout(Method):
    def loss(self, update):
        def loss(batch, vit):
            return {"ce": self.head.loss(F.dropout(vit(batch.images), 0.1), batch.rows_B, update.among(batch.rows_B.device))}

        return loss


@breaks(contract.check_other_seed_other_result, "two seeds give the same logits", tap=TAP)
class OneSeedForAll(Method):
    def begin(self, update):
        super().begin(replace(update, chance=Chance(0)))

    def image_phases(self, update):
        return []

    def head_phases(self, update, untaught):
        return [self.of_one_seed(phase) for phase in super().head_phases(update, untaught)]

    def of_one_seed(self, phase):
        return replace(phase, draws=Draws(phase.draws.steps, lambda epoch, chance: phase.draws.epoch(epoch, Chance(0, chance.address))))


@breaks(contract.check_all_state_is_in_the_state_dict, r"outside its state dict: kept\.features\.0 \(tensor\)")
class KeepsFeaturesInAList(Method):
    def remember(self, seen, rows_N, update):
        super().remember(seen, rows_N, update)
        self.kept = {"features": [seen["feature"]]}


@breaks(contract.check_all_state_is_in_the_state_dict, "learning changed what is not in its state dict: tasks from 0 to 2")
class CountsTasksInAnAttribute(Method):
    def __init__(self, *args):
        super().__init__(*args)
        self.tasks = 0

    def begin(self, update):
        super().begin(update)
        self.tasks += 1


@breaks(contract.check_all_state_is_in_the_state_dict, "keeps a tensor of a past step")
class KeepsItsLoss(Method):
    def loss(self, update):
        inner = super().loss(update)

        def loss(batch, vit):
            self.last = inner(batch, vit)
            return self.last

        return loss


# -- any stream ----------------------------------------------------------------------------------------------------------


@breaks(streams.check_nothing_is_asked_up_front, "its constructor asks for tasks")
class AsksForTasks(Method):
    def __init__(self, setup, tasks=10):
        super().__init__(setup)


class CountedConfig(MethodConfig):
    num_classes: int = 200


@breaks(streams.check_nothing_is_asked_up_front, "its config asks for num_classes")
class AsksForClasses(Method):
    Config = CountedConfig


@breaks(streams.check_nothing_is_asked_up_front, "its first task is another when no task follows")
class LearnsFromOtherRuns(Method):
    runs = 0

    def begin(self, update):
        super().begin(update)
        type(self).runs += 1
        with torch.no_grad():
            self.head.bias.add_(1e-9 * self.runs)


class RowsStartAtZero(Method):
    """A class alone is left at zero: cross-entropy over one class has no gradient, and nothing else sets its row."""

    def begin(self, update):
        super().begin(update)
        with torch.no_grad():
            for row in update.new_rows:
                self.head.weight[row], self.head.bias[row] = 0.0, 0.0

    def observations(self, update):
        return []


@breaks(streams.check_one_class_a_task, "class 1, learned alone, is predicted for 0% of its pictures")
class LeavesOneByOneAtZero(RowsStartAtZero):
    pass


@breaks(streams.check_class_learned_alone_is_recognised, "class 3, learned alone, is predicted for 0% of its pictures")
class LeavesTheLastAtZero(RowsStartAtZero):
    pass


@breaks(streams.check_one_image_a_class, "spread are not finite")
class DividesByOneLess(Method):
    def __init__(self, *args):
        super().__init__(*args)
        self.register_buffer("spread", torch.zeros(()))

    def remember(self, seen, rows_N, update):
        super().remember(seen, rows_N, update)
        mine = seen["feature"][rows_N == update.rows[0]]
        self.spread.copy_((mine - mine.mean(0)).square().sum() / (len(mine) - 1))


@breaks(streams.check_unequal_tasks, "out of bounds", raises=IndexError)
class TakesTasksForEqual(Method):
    def loss(self, update):
        size = update.rows[0] // update.index if update.index else len(update.rows)

        def loss(batch, vit):
            first = update.index * size
            return {"ce": F.cross_entropy(self.head(vit(batch.images))[:, first : first + size], batch.rows_B - first)}

        return loss


@breaks(streams.check_memory_is_flat, "its state grows with the tasks: prompts.1 from 0 to 48, prompts.2 from 0 to 48")
class APromptATask(Method):
    def __init__(self, *args):
        super().__init__(*args)
        self.prompts = nn.ParameterList()

    def begin(self, update):
        super().begin(update)
        self.prompts.append(torch.zeros(self.shape.dim, dtype=torch.float64))


@breaks(streams.check_it_learns, "of the pictures just learned")
class ForgetsToTrainTheHead(Method):
    def image_phases(self, update):
        return []


# -- sums -----------------------------------------------------------------------------------------------------------------


class WithRidge(Method):
    has_prompts = False

    @staticmethod
    def default_head(tap):
        return {"name": "ridge"}


@breaks(sums.check_any_split_in_any_order_gives_the_same_head, "give other scores than at once")
class FadesWithEveryUpdate(WithRidge):
    def remember(self, seen, rows_N, update):
        self.head.sums.total_CF *= 0.9
        super().remember(seen, rows_N, update)


@breaks(sums.check_two_models_add_up, "two models added up score otherwise")
class ForgetsTheOther(WithRidge):
    def make_head(self, setup):
        head = super().make_head(setup)
        head.add = lambda other: None
        return head


@pytest.mark.parametrize(("broken", "check", "words", "fields", "tap", "raises"), CAUGHT)
def test_the_check_refuses_it(broken, check, words, fields, tap, raises):
    with pytest.raises(raises, match=words):
        check(Subject(broken, fields, tap=tap))


def test_every_check_has_been_seen_to_fail():
    assert {case.values[1] for case in CAUGHT} == set(checks())


def test_a_method_that_grows_may_say_so():
    class Growing(APromptATask):
        name = "growing"
        flat = False

    with pytest.raises(DoesNotApply, match="does not promise"):
        streams.check_memory_is_flat(Subject(Growing))
