"""Joint training against fine-tuning an ordinary, unfrozen ViT by hand."""

import copy

import pytest
import torch
import torch.nn.functional as F

from smope.backbones import PLAIN
from smope.backbones.vit import resize_positions
from smope.config import TrainConfig, validate
from smope.engine.cost import cost
from smope.errors import ConfigError
from smope.methods.joint import Joint
from smope.methods.one_prompt import OnePrompt
from smope.phases import Batch, Chance, Train
from smope.testing.subject import TRAIN, Subject

FIELDS = {"blocks": [0, 1], "experts": 3}
GENTLE = TRAIN.model_copy(update={"prompt_lr_multiplier": 0.01})


def features_by_hand(vit, images):
    """A ViT of which every weight may learn, the position grid through its resizing too."""
    proj = vit.patch_embed.proj
    patches = F.conv2d(images, proj.weight, proj.bias, stride=vit.shape.patch).flatten(2).transpose(1, 2)
    x = torch.cat([vit.cls_token.expand(len(patches), -1, -1), patches], dim=1)
    x = x + resize_positions(vit.pos_embed, vit.image_size // vit.shape.patch, vit.shape.antialias)
    for block in vit.blocks:
        x = block(x, PLAIN, cls_only=False)
    return vit.final_norm(x[:, 0])


@pytest.mark.parametrize("image_size", [16, 24])
def test_full_is_fine_tuning_every_weight_step_by_step(image_size):
    subject = Subject(Joint, FIELDS, train=GENTLE)
    method, lesson, vit = subject.fresh(), subject.stream()[0], copy.deepcopy(subject.vit)
    vit.image_size = image_size
    images = F.interpolate(lesson.images_N3HW, size=(image_size, image_size))
    method.begin(lesson.update)
    (train,) = [phase for phase in method.phases(lesson.update) if isinstance(phase, Train)]
    ours = torch.optim.Adam([{"params": list(group.parameters), "lr": group.lr} for group in train.groups])
    tuned, head = copy.deepcopy(vit).requires_grad_(True), copy.deepcopy(method.head)
    theirs = torch.optim.Adam([{"params": list(head.parameters()), "lr": 0.03}, {"params": list(tuned.parameters()), "lr": 0.0003}])
    for _ in range(3):
        (loss,) = train.loss(Batch(lesson.rows_N, Chance(0), images_B3HW=images), vit).values()
        by_hand = F.cross_entropy(head(features_by_hand(tuned, images)), lesson.rows_N)
        assert loss.item() == pytest.approx(by_hand.item(), rel=1e-9)
        for optimizer, value in ((ours, loss), (theirs, by_hand)):
            optimizer.zero_grad()
            value.backward()
            optimizer.step()
    own = dict(vit.named_parameters())
    for name, weight in tuned.named_parameters():
        assert not torch.equal(weight, own[name]), name  # it learned
        assert torch.allclose(weight - own[name], method.change[name.replace(".", "/")], atol=1e-9), name
    answer = method.logits(Batch(lesson.rows_N, Chance(0), images_B3HW=images), vit)
    assert torch.allclose(answer, head(features_by_hand(tuned, images)), atol=1e-8)


def test_frozen_is_one_prompt_on_all_classes():
    lesson = Subject(Joint).stream((7,))[0]
    joint, one = (Subject(method, fields) for method, fields in ((Joint, {**FIELDS, "mode": "frozen"}), (OnePrompt, FIELDS)))
    learned, expected = (subject.learn(subject.fresh(), lesson) for subject in (joint, one))
    assert learned.state_dict().keys() == expected.state_dict().keys()
    assert torch.equal(joint.logits(learned, lesson.images_N3HW), one.logits(expected, lesson.images_N3HW))


def test_weight_decay_would_pull_to_the_start_and_is_refused():
    train = validate(TrainConfig, {"optimizer": {"weight_decay": 0.1}})
    with pytest.raises(ConfigError, match=r"train\.optimizer\.weight_decay is 0\.1"):
        Subject(Joint, FIELDS, train=train).fresh()
    Subject(Joint, {**FIELDS, "mode": "frozen"}, train=train).fresh()


def test_what_learns():
    vit, head = 85_798_656, 153_800
    full = cost("joint", classes=200, tasks=1, backbone="vit_base_patch16_224")
    assert full["trainable_parameters"] == vit + head and full["passes"] == {"train": 1, "test": 1}
    frozen = cost("joint", classes=200, tasks=1, backbone="vit_base_patch16_224", fields={"mode": "frozen"})
    assert frozen["trainable_parameters"] == 6 * 2 * 25 * 768 + head
