from __future__ import annotations

import builtins
import sys
from pathlib import Path
from typing import Any

import pytest

from npukit.shim import own_code
from npukit.shim.names import BothNames, both_names
from npukit.shim.replaced import summary


@pytest.fixture(autouse=True)
def names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(builtins, own_code.BOTH_NAMES, both_names, raising=False)
    monkeypatch.setattr(builtins, own_code.ON_NPU, lambda value: str(value).replace("cuda", "npu"), raising=False)


class Thing:
    def __init__(self, **members: Any) -> None:
        self.__dict__.update(members)


NPU = Thing(device=Thing(type="npu"))


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("x.device.type == 'cuda'", True),
        ("x.device.type != 'cuda'", False),
        ("'cuda' == x.device.type", True),
        ("x.device.type in ('cuda', 'mps')", True),
        ("x.device.type in {'cuda': 1}", True),
        ("x.device.type.startswith('cuda')", True),
        ("'cuda' in x.device.type", True),
        ("f'{x.device.type}:0'", "npu:0"),
        ("x.device.type == 'cpu'", False),
        ("y.type == 'other'", True),
        ("y.type(3)", 4),
        ("z.device == 'cuda:0'", True),
    ],
)
def test_devices_answer_to_both_names(expression: str, value: object) -> None:
    class Callable_:
        def __call__(self, number: int) -> int:
            return number + 1

        def __eq__(self, other: object) -> bool:
            return other == "other"

        __hash__ = None  # type: ignore[assignment]

    namespace: dict[str, Any] = {"x": NPU, "y": Thing(type=Callable_()), "z": Thing(device="npu:0")}
    exec(own_code.compile_own(f"result = {expression}".encode(), "script.py"), namespace)
    assert namespace["result"] == value


def test_lines_of_errors_stay_where_they_are() -> None:
    code = own_code.compile_own(b"\n\nraise ValueError(x.type)\n", "script.py")
    with pytest.raises(ValueError) as error:
        exec(code, {"x": Thing(type="npu")})
    assert error.traceback[-1].lineno + 1 == 3


def test_only_the_users_modules_are_compiled_so_and_python_caches_none(tmp_path: Path) -> None:
    (tmp_path / "mine_of_own_code.py").write_text("def ask(x): return x.device.type == 'cuda'\n")
    library = tmp_path / "venv" / "site-packages"
    library.mkdir(parents=True)
    (library / "theirs_of_own_code.py").write_text("def ask(x): return x.device.type == 'cuda'\n")
    hooks, path = list(sys.path_hooks), list(sys.path)
    try:
        own_code.install(str(tmp_path), both_names, lambda value: value)
        sys.path[:0] = [str(tmp_path), str(library)]
        import mine_of_own_code
        import theirs_of_own_code

        assert mine_of_own_code.ask(NPU)
        assert not theirs_of_own_code.ask(NPU)
        assert not (tmp_path / "__pycache__").exists()
    finally:
        sys.path_hooks[:], sys.path[:] = hooks, path
        sys.path_importer_cache.clear()


def test_a_name_goes_on_to_torch_as_the_npus() -> None:
    import pickle

    name = BothNames("npu", "cuda")
    assert name + ":0" == "npu:0" and str(name) == "npu"
    assert type(pickle.loads(pickle.dumps(name))) is str


def test_summary() -> None:
    from collections import Counter

    text = summary(Counter({".cuda()": 2, '"cuda" as a device': 11}))
    assert text.splitlines()[1:] == ['      11  "cuda" as a device', "       2  .cuda()"]
    assert "nothing" in summary(Counter())
