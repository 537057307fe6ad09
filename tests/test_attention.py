"""Attention weights caught on the way: times the values, they must give what the layer gives."""

from __future__ import annotations

import torch

from cirkit.attention import attention

TEXTS = ["is red", "has long sleeves and a collar", ""]


def test_shapes_sums_and_padding(small_backbone):
    backbone = small_backbone()
    patches = torch.randn(3, 5, 24)
    got = attention(backbone, patches, TEXTS)
    length = backbone.tokenize(TEXTS).ids.shape[1]
    assert got.patches.shape == (1, 3, 3, 5) and got.words.shape == (2, 3, 3, length)
    torch.testing.assert_close(got.patches.sum(-1), torch.ones(1, 3, 3))
    assert ((got.words.sum(-1) > 0) & (got.words.sum(-1) < 1)).all()
    assert not got.words[:, 2, :, 2:].any() and got.words[:, 2, :, :2].all()  # padding behind "[CLS] [SEP]"


def test_one_head_reproduces_the_layers_output(small_backbone):
    backbone = small_backbone(heads=1)
    patches, seen = torch.randn(3, 5, 24), {}
    layers = backbone.qformer.encoder.layer
    places, hooks = {"patches": layers[0].crossattention, "words": layers[1].attention}, []
    for name, block in places.items():
        value, dense = block.attention.value, block.output.dense
        hooks.append(value.register_forward_hook(lambda _m, _i, out, n=name: seen.update({(n, "value"): out})))
        hooks.append(dense.register_forward_pre_hook(lambda _m, given, n=name: seen.update({(n, "out"): given[0]})))
    got = attention(backbone, patches, TEXTS)
    for hook in hooks:
        hook.remove()
    out = {name: value for (name, kind), value in seen.items() if kind == "out"}
    torch.testing.assert_close(got.patches[0] @ seen["patches", "value"], out["patches"], atol=1e-5, rtol=1e-4)
    # of self-attention only the text's part is handed out: what is missing is the query tokens' own
    value = seen["words", "value"]
    missing = out["words"][:, :3] - got.words[1] @ value[:, 3:]
    solved = torch.linalg.lstsq(value[:, :3].mT, missing.mT).solution.mT
    torch.testing.assert_close(solved.sum(-1) + got.words[1].sum(-1), torch.ones(3, 3), atol=1e-3, rtol=0)


def test_prompts_take_the_place_of_the_query_tokens_and_no_hook_stays(small_backbone):
    backbone = small_backbone()
    patches, prompts = torch.randn(3, 5, 24), torch.randn(2, 24)
    assert attention(backbone, patches, TEXTS, prompts).patches.shape == (1, 3, 2, 5)
    assert not any(module._forward_hooks for module in backbone.modules())
