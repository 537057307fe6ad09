"""Devices are checked before anything long starts."""

from __future__ import annotations

import pytest
import torch

from cirkit.device import check_device


def test_devices_that_are_there():
    assert check_device("cpu") == check_device(torch.device("cpu")) == torch.device("cpu")
    assert check_device("auto").type == check_device().type == ("cuda" if torch.cuda.is_available() else "cpu")
    assert check_device("cpu", "bf16").type == "cpu"


@pytest.mark.parametrize("name", ["foo", "", "cuda:-1", "cuda:99", "meta", "CPU"])
def test_devices_that_are_not_there_are_one_sentence(name):
    with pytest.raises(
        ValueError, match=rf"^device '{name}' cannot be used here \([^\n]+\); 'auto' takes what there is$"
    ):
        check_device(name)


def test_a_gpu_that_is_absent_is_one_sentence():
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    with pytest.raises(ValueError, match=r"^device 'cuda' cannot be used here \([^\n]+\); 'auto' takes what there is$"):
        check_device("cuda")


@pytest.mark.parametrize(("precision", "message"), [("fp16", "needs a GPU"), ("fp8", "none of no, bf16, fp16")])
def test_precisions_that_the_cpu_lacks(precision, message):
    with pytest.raises(ValueError, match=f"^mixed_precision '{precision}' .*{message}"):
        check_device("cpu", precision)
