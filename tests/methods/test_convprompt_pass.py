"""ConvPrompt's pass written longhand, image by image, and its losses."""

import math

import pytest
import torch
import torch.nn.functional as F

from smope.methods.convprompt import ConvPrompt, generated
from smope.phases import Batch, Chance
from smope.testing.contract import Subject

from .convprompt_scene import CONSTANT, FROZEN_BY_HALF, TOLERANCE, batch_of, begun, dice, shaken

# -- the pass longhand -------------------------------------------------------------------------------------------------------


def longhand_feature(method, vit, image_3HW):
    """One image through the ViT, every convolution on its own, in the words of the paper."""
    norms = iter(method.offsets_NYC)

    def normed(own, x):
        weight, bias = next(norms)
        return F.layer_norm(x, x.shape[-1:], own.weight + weight, own.bias + bias, vit.shape.norm_eps)

    x, before = vit.embed(image_3HW.unsqueeze(0))[0], {}
    for block in vit.blocks:
        h = normed(block.norm1, x)
        own, heads = {}, []
        slot = method.config.blocks.index(block.index) if block.index in method.config.blocks else None
        for head in range(block.heads):
            width = slice(head * vit.shape.head_dim, (head + 1) * vit.shape.head_dim)
            q, k, v = (
                h @ block.attn.qkv.weight.unflatten(0, (3, -1))[part, width].T + block.attn.qkv.bias.unflatten(0, (3, -1))[part, width]
                for part in range(3)
            )
            if slot is not None:
                weights = longhand_weights(method, x[0])
                own |= {(kind, head): longhand_prefix(method, weights, slot, kind, head) for kind in (0, 1)}
                k, v = (torch.cat([own[kind, head] + before.get((kind, head), 0), rows]) for kind, rows in ((0, k), (1, v)))
            heads.append((q @ k.T / math.sqrt(vit.shape.head_dim)).softmax(-1) @ v)
        before = own if slot is not None and method.config.carry else before
        scaled = (lambda name, y, block=block: y * getattr(block, name).gamma) if block.layer_scale else (lambda name, y: y)
        x = x + scaled("ls1", torch.cat(heads, -1) @ block.attn.proj.weight.T + block.attn.proj.bias)
        inner = F.gelu(normed(block.norm2, x) @ block.mlp.fc1.weight.T + block.mlp.fc1.bias)
        x = x + scaled("ls2", inner @ block.mlp.fc2.weight.T + block.mlp.fc2.bias)
    return normed(vit.norm, x[0])


def longhand_weights(method, cls_C):
    hidden = torch.relu(method.matcher.weight_1 @ cls_C + method.matcher.bias_1)
    guess = method.matcher.weight_2 @ hidden + method.matcher.bias_2
    return [guess @ key / (guess.norm() * key.norm()) for key in method.keys_JX]


def longhand_prefix(method, weights, slot, kind, head):
    total = 0
    for weight, kernels, biases in zip(weights, method.kernels_JLWHKK, method.biases_JLWH, strict=True):
        kernel, bias = kernels[slot, kind, head], biases[slot, kind, head]
        total = total + weight * (F.conv2d(method.embedding_LWHRS[slot, kind, head][None, None], kernel[None, None])[0, 0] + bias)
    return total


def longhand_logits(method, feature):
    """LayerNorm and Linear of each task; a class without a task has a plain norm."""
    logits = []
    for row, task in enumerate(method.task_norms.task_M.tolist()):
        gamma, beta = method.task_norms.offsets_TYC[task] if task >= 0 else (0, 0)
        normed = (feature - feature.mean()) / (feature.var(unbiased=False) + 1e-5).sqrt() * (1 + gamma) + beta
        logits.append(method.head.weight[row] @ normed + method.head.bias[row])
    return torch.stack(logits)


@pytest.mark.parametrize("carry", [True, False])
def test_logits_are_those_of_the_paper_image_by_image(carry):
    subject = Subject(ConvPrompt, {**CONSTANT, "carry": carry})
    method = shaken(begun(subject, *subject.stream((2, 1, 2))))
    assert method.task_norms.task_M.tolist() == [0, 0, -1, 1, 1] and len(method.keys_JX) == 4
    images, _ = subject.images(range(5), per_class=1)
    logits = subject.logits(method, images)
    for image, seen in zip(images, logits, strict=True):
        assert torch.allclose(seen, longhand_logits(method, longhand_feature(method, subject.vit, image)), **TOLERANCE)


def test_the_gradient_is_the_one_of_convolving_for_every_image():
    subject = Subject(ConvPrompt, CONSTANT)
    lessons = subject.stream((2, 2), per_class=1)
    method = shaken(begun(subject, *lessons))
    method.loss(lessons[1].update)(batch_of(lessons[1]), subject.vit)["ce"].backward()
    ours = {name: parameter.grad for name, parameter in method.named_parameters()}
    method.zero_grad(set_to_none=True)
    features = torch.stack([longhand_feature(method, subject.vit, image) for image in lessons[1].images_N3HW])
    logits = torch.stack([longhand_logits(method, feature) for feature in features])[:, 2:]
    F.cross_entropy(logits, lessons[1].rows_N - 2).backward()
    for name, parameter in method.named_parameters():
        if name != "keys_JX":
            frozen = len(parameter) // 2 if name in FROZEN_BY_HALF else 0
            assert not ours[name][:frozen].any() and ours[name][frozen:].any(), name
            assert torch.allclose(ours[name][frozen:], parameter.grad[frozen:], **TOLERANCE), name
    assert ours["keys_JX"] is None  # a fixed key gathers no gradient that a clipped norm could see


def test_every_generator_is_its_own_convolution_pixel_by_pixel():
    L, W, H, J, P, D, K = 2, 2, 2, 3, 3, 2, 2
    embedding, kernels, biases = dice(0, L, W, H, P + K - 1, D + K - 1), dice(1, J, L, W, H, K, K), dice(2, J, L, W, H)
    made = generated(embedding, kernels, biases)
    assert made.shape == (L, W, H, J, P, D)
    for at in torch.cartesian_prod(*map(torch.arange, made.shape)).tolist():
        block, kind, head, j, p, d = at
        want = biases[j, block, kind, head].item()
        for y in range(K):
            for x in range(K):
                want += (kernels[j, block, kind, head, y, x] * embedding[block, kind, head, p + y, d + x]).item()
        assert made[tuple(at)].item() == pytest.approx(want, abs=1e-12)


def test_keys_come_from_the_first_kind_and_values_from_the_second():
    subject = Subject(ConvPrompt, {**CONSTANT, "most": 1})
    method = begun(subject, subject.stream()[0])
    with torch.no_grad():
        method.kernels_JLWHKK.zero_()
        method.biases_JLWH[:, :, 0], method.biases_JLWH[:, :, 1] = 1.0, 2.0
    block, x, q = subject.vit.blocks[0], dice(0, 2, 5, 48), dice(1, 2, 3, 5, 16)
    scores, values = method.prompter(Batch(torch.zeros(2), Chance(0)), training=True).prefix(block, x, q)
    for b in range(2):
        (weight,) = longhand_weights(method, x[b, 0])
        assert torch.allclose(values[b], 2 * weight.expand(3, 4, 16), **TOLERANCE)
        assert torch.allclose(scores[b], (weight * q[b].sum(-1, keepdim=True) / 4).expand(3, 5, 4), **TOLERANCE)


def test_before_anything_is_learned_the_norms_are_the_backbones_own():
    subject = Subject(ConvPrompt, CONSTANT)
    method, images = begun(subject, subject.stream()[0]), subject.images([0])[0]
    prompter = method.prompter(Batch(torch.zeros(1), Chance(0), images_B3HW=images), training=False)
    prompter.prefixed = ()
    assert torch.equal(subject.vit(images, prompter), subject.vit(images))


# -- the losses ----------------------------------------------------------------------------------------------------------------


def test_the_pull_is_the_plain_sum_of_distances_to_where_the_task_started():
    subject = Subject(ConvPrompt, {**CONSTANT, "pull": 0.7})
    method = subject.after(1)
    before = [parameter.detach().clone() for parameter in (method.embedding_LWHRS, *method.matcher.parameters())]
    lesson = subject.stream()[1]
    method.begin(lesson.update)
    assert method.loss(lesson.update)(batch_of(lesson), subject.vit)["pull"] == 0
    shaken(method.double())
    total = 0.0
    for old, new in zip(before, (method.embedding_LWHRS, *method.matcher.parameters()), strict=True):
        total += sum(abs(a - b) for a, b in zip(old.flatten().tolist(), new.flatten().tolist(), strict=True))
    assert method.loss(lesson.update)(batch_of(lesson), subject.vit)["pull"].item() == pytest.approx(0.7 * total, rel=1e-12)


def test_the_first_task_is_pulled_nowhere_and_nothing_is_kept_of_a_start_afterwards():
    subject = Subject(ConvPrompt, CONSTANT)
    lesson = subject.stream()[0]
    assert begun(subject, lesson).loss(lesson.update)(batch_of(lesson), subject.vit).keys() == {"ce"}
    assert len(subject.after(2).start) == 0
    free, lessons = Subject(ConvPrompt, {**CONSTANT, "pull": 0}), subject.stream()[:2]
    assert begun(free, *lessons).loss(lessons[1].update)(batch_of(lessons[1]), free.vit).keys() == {"ce"}


def test_a_strong_pull_holds_embedding_and_matcher_near():
    loose, held = (Subject(ConvPrompt, {**CONSTANT, "pull": pull}) for pull in (0.0, 1e4))
    way = [(s.after(2).embedding_LWHRS - s.after(1).embedding_LWHRS).abs().sum() for s in (loose, held)]
    assert way[1] < 0.5 * way[0]
