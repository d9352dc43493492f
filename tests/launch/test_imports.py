"""Libraries are imported without the garbage collector; nobody else notices."""

from __future__ import annotations

import gc
import sys
import traceback
from collections.abc import Callable, Iterator
from importlib.machinery import SourceFileLoader
from pathlib import Path

import pytest

from npukit.launch.imports import quicken_imports

Library = Callable[[str], None]


@pytest.fixture
def library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Library]:
    """`library(code)` imports a library with this code."""
    monkeypatch.setattr(SourceFileLoader, "exec_module", SourceFileLoader.exec_module)
    quicken_imports()
    folder = tmp_path / "site-packages"
    folder.mkdir()
    monkeypatch.syspath_prepend(folder)
    thresholds = gc.get_threshold()

    def load(code: str) -> None:
        (folder / "some_library.py").write_text(code)
        exec("import some_library")

    yield load
    sys.modules.pop("some_library", None)
    gc.set_threshold(*thresholds)


def test_the_collector_pauses_in_a_library_and_goes_on_after_it(library: Library) -> None:
    before = gc.get_threshold()
    library("import gc; assert gc.isenabled(); seen = gc.get_threshold()")
    assert sys.modules["some_library"].seen[0] == 0
    assert gc.get_threshold() == before


def test_what_a_library_sets_stays(library: Library) -> None:
    library("import gc; gc.set_threshold(123)")
    assert gc.get_threshold()[0] == 123


def test_a_library_that_fails_shows_its_own_lines(library: Library) -> None:
    before = gc.get_threshold()
    with pytest.raises(ZeroDivisionError) as failed:
        library("1 / 0")
    assert gc.get_threshold() == before
    frames = [frame.filename for frame in traceback.extract_tb(failed.tb)]
    assert [Path(name).name for name in frames] == ["test_imports.py", "test_imports.py", "<string>", "some_library.py"]


def test_transformers_exports_are_found_from_the_ends_of_its_files() -> None:
    import_utils = pytest.importorskip("transformers.utils.import_utils")
    several = '__all__ = ["early"]\nx = 1\n__all__ = [\n    "One",\n    "Two",\n]\n'
    for content in (several, several.partition("x = 1\n")[2], "x = 1\n__all__ = ['A', 'B']", "x = '__all__'\n"):
        assert import_utils.fetch__all__(content) == import_utils.fetch__all__.__wrapped__(content)
