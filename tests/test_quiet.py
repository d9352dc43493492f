"""Of libraries that npukit runs nothing but errors is heard; in a script of the user's, all but what is useless."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator

import pytest

from npukit import quiet
from npukit.errors import NpukitWarning


@pytest.fixture(autouse=True)
def _process_of_its_own() -> Iterator[None]:
    yield
    quiet.install()


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
    assert [str(warning.message) for warning in heard] == ["torch.cuda.amp.GradScaler(args...) is deprecated."]


SAYS = """
import logging, warnings
warnings.filterwarnings("once", category=FutureWarning)  # as torch_npu does when it is imported
for kind in (UserWarning, FutureWarning, DeprecationWarning, RuntimeWarning):
    warnings.warn("of some kind", kind)
logger = logging.getLogger("a_library")
logger.setLevel("DEBUG")
logger.info("all is well")
logger.warning("nearly")
logger.error("broken")
"""


@pytest.mark.parametrize(
    ("file", "own", "warned", "logged"),
    [
        ("/venv/lib/site-packages/a_library.py", True, 0, ["ERROR"]),
        ("/venv/lib/site-packages/a_library.py", False, 4, ["INFO", "WARNING", "ERROR"]),
        ("/home/me/rewards.py", True, 4, ["INFO", "WARNING", "ERROR"]),
    ],
)
def test_libraries_are_npukits_affair_where_it_is_what_runs(
    file: str, own: bool, warned: int, logged: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    """Whatever they say, and however they set up Python's warnings and logging."""
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        quiet.install(own)
        exec(compile(SAYS, file, "exec"), {"__name__": "a_library"})
    assert (len(heard), [record.levelname for record in caplog.records]) == (warned, logged)


def test_what_npukit_warns_of_is_a_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    quiet.install(own=True)
    warnings.warn("The newest checkpoint is broken.", NpukitWarning, stacklevel=1)
    assert capsys.readouterr().err == "npukit: The newest checkpoint is broken.\n"


def test_with_verbose_everything_is_heard(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(quiet.VERBOSITY, "verbose")
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        quiet.install(own=True)
        warnings.warn("mkldnn_matmul failed, switching to BLAS gemm", stacklevel=1)
        exec(compile(SAYS, "/venv/lib/site-packages/a_library.py", "exec"), {"__name__": "a_library"})
    assert len(heard) == 5


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
    logging.getLogger("uvicorn.error").error("Cancel 3 running task(s), timeout graceful shutdown exceeded")
    assert caplog.messages == ["Some weights of the model were not used."]
