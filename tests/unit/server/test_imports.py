"""What is imported for good is neither walked while it comes in nor ever again, and what transformers reads for it is read once."""

import gc
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from pratique_server.imports import import_large

SOURCE = "import gc\ncollects = gc.isenabled()\nkept = [[number] for number in range(1000)]\n"


@pytest.fixture(autouse=True)
def _as_it_was() -> Iterator[None]:
    was_enabled, modules = gc.isenabled(), set(sys.modules)
    gc.enable()
    yield
    if not was_enabled:
        gc.disable()
    for name in set(sys.modules) - modules:
        del sys.modules[name]


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    name = f"large_{tmp_path.name}"
    (tmp_path / f"{name}.py").write_text(SOURCE)
    monkeypatch.syspath_prepend(tmp_path)
    return name


def test_rests_while_a_module_comes_in_and_never_looks_at_it_again(module: str) -> None:
    before = gc.get_freeze_count()
    import_large(module)
    assert sys.modules[module].collects is False
    assert gc.isenabled()
    assert gc.get_freeze_count() >= before + 1000


def test_what_is_there_already_costs_nothing(module: str) -> None:
    import_large(module)
    before, garbage = gc.get_freeze_count(), [[number] for number in range(1000)]
    import_large(module, "sys")
    assert gc.get_freeze_count() == before, "objects of a later time are not the import's"
    assert garbage


@pytest.mark.parametrize("enabled", [True, False])
def test_a_failed_import_leaves_the_collector_as_it_was(enabled: bool) -> None:
    if not enabled:
        gc.disable()
    with pytest.raises(ModuleNotFoundError, match="no_such_module"):
        import_large("no_such_module")
    assert gc.isenabled() is enabled


OPENED = """
import sys
from collections import Counter
opened = Counter()
sys.addaudithook(lambda event, arguments: opened.update([str(arguments[0])]) if event == "open" else None)
sys.modules["torch"] = None
from pratique_server.imports import MODELS, import_large
import_large(MODELS)
import transformers.models
models = {path: times for path, times in opened.items() if "/modeling_" in path and path.endswith(".py")}
print(len(models), max(models.values()), transformers.models.llama.__name__, transformers.LlamaConfig.__name__)
"""


def test_the_library_reads_its_model_files_once_and_knows_all_of_them() -> None:
    done = subprocess.run([sys.executable, "-c", OPENED], capture_output=True, text=True, check=True)
    files, times, package, config = done.stdout.split()
    assert int(files) > 300
    assert (times, package, config) == ("1", "transformers.models.llama", "LlamaConfig")
