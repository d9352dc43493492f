"""What is of no use to anybody is kept back; everything else is let through."""

from __future__ import annotations

import logging
import warnings

import pytest

from npukit import quiet


@pytest.fixture(autouse=True)
def _process_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quiet, "NATIVE", list(quiet.NATIVE))


def test_warnings() -> None:
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        quiet.install()
        warnings.warn("mkldnn_matmul failed, switching to BLAS gemm:mkldnn_matmul: …", stacklevel=1)
        warnings.warn("Warning: The /opt/torch_npu/lib owner does not match the current user.", stacklevel=1)
        for name in ("internal", "interal"):  # as torch_npu 2.13 and 2.11 write it
            text = f"Cannot create tensor with {name} format, tensor will be created with base format."
            warnings.warn(text, stacklevel=1)
        warnings.warn("torch.cuda.amp.GradScaler(args...) is deprecated.", stacklevel=1)
    assert [str(each.message) for each in heard] == ["torch.cuda.amp.GradScaler(args...) is deprecated."]


def test_deprecations_are_told_to_whoever_wrote_the_call() -> None:
    for own, told in ((True, 0), (False, 2)):
        with warnings.catch_warnings(record=True) as heard:
            warnings.simplefilter("always")
            quiet.install(own)
            warnings.filterwarnings("once", category=FutureWarning)  # as torch_npu does when it is imported
            warnings.warn("`gradient_checkpointing_enable` is deprecated", FutureWarning, stacklevel=1)
            warnings.warn("this function will be removed", DeprecationWarning, stacklevel=1)
        assert len(heard) == told


def test_what_npukit_causes_is_told_to_nobody() -> None:
    """As DeepSpeed makes torch and torch_npu say it in every training with ZeRO."""
    for own, told in ((False, 2), (True, 0)):
        with warnings.catch_warnings(record=True) as heard:
            warnings.simplefilter("always")
            quiet.install(own)
            warnings.warn("barrier(): using the device under current context. You can specify …", stacklevel=1)
            warnings.warn("Warning: Device do not support double dtype now, dtype cast …", stacklevel=1)
        assert len(heard) == told
        assert own == any("double" in each for each in quiet.NATIVE), "the simulated NPU reads them there"


def test_what_concerns_the_user_is_said_once() -> None:
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        quiet.install()
        text = "This DataLoader will create 4 worker processes in total."
        warnings.warn(text, stacklevel=1)
        warnings.warn(text, stacklevel=1)
    assert len(heard) == 1


def test_loggers(caplog: pytest.LogCaptureFixture) -> None:
    quiet.install()
    logger = logging.getLogger("transformers.modeling_utils")
    logger.warning("`loss_type=None` was set in the config but it is unrecognized.")
    logger.warning("Some weights of the model were not used.")
    logging.getLogger("uvicorn.error").warning("Invalid HTTP request received.")
    assert caplog.messages == ["Some weights of the model were not used."]
