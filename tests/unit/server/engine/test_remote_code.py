"""Code from a model's folder runs only when the release names it, and what runs is what was hashed."""

import hashlib
import json
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from pratique_contract.serving import ModelSource
from pratique_server.engine.loader import LoadedModel, load_model
from pratique_server.engine.protocol import LoadError
from tests.unit.server.engine.makers import make_engine, make_request, run

CONFIGURATION = """
from transformers import LlamaConfig

class HarbourConfig(LlamaConfig):
    model_type = "harbour"
"""
MODELING = """
from transformers import LlamaForCausalLM

from .configuration_harbour import HarbourConfig
from .parts.scale import FACTOR

class HarbourForCausalLM(LlamaForCausalLM):
    config_class = HarbourConfig

    def forward(self, *args, **kwargs):
        output = super().forward(*args, **kwargs)
        output.logits = output.logits * FACTOR
        return output
"""
AUTO_MAP = {
    "AutoConfig": "configuration_harbour.HarbourConfig",
    "AutoModelForCausalLM": "modeling_harbour.HarbourForCausalLM",
}


@pytest.fixture
def folder(tiny_model_dir: Path, tmp_path: Path) -> Path:
    folder = Path(shutil.copytree(tiny_model_dir, tmp_path / "model"))
    edit_config(folder, model_type="harbour", architectures=["HarbourForCausalLM"], auto_map=AUTO_MAP)
    (folder / "parts").mkdir()
    (folder / "configuration_harbour.py").write_text(CONFIGURATION)
    (folder / "modeling_harbour.py").write_text(MODELING)
    (folder / "parts" / "scale.py").write_text("FACTOR = -1.0\n")
    return folder


def edit_config(folder: Path, **changes: Any) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def source(folder: Path, *, trust: bool = True) -> ModelSource:
    return ModelSource(path=str(folder), uri="file:///m", trust_remote_code=trust)


def load(folder: Path, *, trust: bool = True) -> LoadedModel:
    return load_model(source(folder, trust=trust))


def test_without_trust_the_field_that_asks_for_code_is_named(folder: Path) -> None:
    with pytest.raises(
        LoadError, match=r"model_type 'harbour'.*auto_map names code .* only with model\.trustRemoteCode"
    ):
        load(folder, trust=False)


def test_with_trust_the_folders_classes_compute_and_every_file_is_in_the_manifest(
    folder: Path, tiny_model_dir: Path
) -> None:
    loaded = load(folder)
    assert loaded.architecture == "HarbourForCausalLM"
    files = {entry.path: entry for entry in loaded.files}
    assert set(files) == {
        "config.json", "configuration_harbour.py", "model.safetensors", "modeling_harbour.py", "parts/scale.py",
    }  # fmt: skip
    assert files["modeling_harbour.py"].form == "bytes"
    assert files["modeling_harbour.py"].sha256 == f"sha256:{hashlib.sha256(MODELING.encode()).hexdigest()}"
    ids = torch.tensor([[3, 5, 7]])
    plain = load_model(tiny_model_dir).model(input_ids=ids).logits
    assert torch.equal(loaded.model(input_ids=ids).logits, -plain)


@pytest.mark.parametrize(
    ("name", "content"),
    [("factors.json", '{"factor": 2}'), ("parts/table.txt", "2"), ("README.md", "# 2"), ("x.bin", "2")],
)
def test_a_file_that_the_code_may_read_is_in_the_manifest(folder: Path, name: str, content: str) -> None:
    """Two folders with the same code and another data file answer otherwise under the same name."""
    (folder / name).write_text("{}")
    before = {entry.path: entry.sha256 for entry in load(folder).files}
    (folder / name).write_text(content)
    after = {entry.path: entry.sha256 for entry in load(folder).files}
    assert {path for path in after if before.get(path) != after[path]} == {name}


def test_a_field_that_the_code_may_read_is_in_the_manifest(folder: Path, tiny_model_dir: Path) -> None:
    """Which fields of the configuration belong to other parts, or to nobody, is known of the library's classes only."""
    entries = []
    for version in ("5.0", "5.1"):
        edit_config(folder, transformers_version=version)
        entries.append(next(entry for entry in load(folder).files if entry.path == "config.json"))
    assert entries[0].omitted == []
    assert entries[0].sha256 != entries[1].sha256
    plain = {entry.path: entry for entry in load_model(tiny_model_dir).files}
    assert "transformers_version" in plain["config.json"].omitted


def test_hidden_files_and_what_the_manifest_has_anyway_are_not_listed_twice(folder: Path) -> None:
    (folder / ".cache").mkdir()
    (folder / ".cache" / "x.json").write_text("{}")
    (folder / "generation_config.json").write_text("{}")
    assert {entry.path for entry in load(folder).files} == {
        "config.json", "configuration_harbour.py", "model.safetensors", "modeling_harbour.py", "parts/scale.py",
    }  # fmt: skip


def test_the_engine_serves_it_and_proves_the_packing(folder: Path) -> None:
    engine = make_engine(folder, source=source(folder))
    assert engine.identity().runtime_facts["packedCheck"] == "passed"
    naive = make_engine(folder, source=source(folder), name="Naive")
    assert run(engine, make_request())["r"].ids == run(naive, make_request())["r"].ids


def test_what_runs_is_what_was_hashed_and_no_cache_decides(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A library's cache of dynamic modules may hold another revision; a changed file must run changed, at once."""
    home = tmp_path / "home"
    home.mkdir()
    home.chmod(0o500)
    monkeypatch.setenv("HOME", str(home))
    ids = torch.tensor([[3, 5, 7]])
    before = load(folder)
    (folder / "parts" / "scale.py").write_text("FACTOR = -2.0\n")
    after = load(folder)
    assert torch.equal(after.model(input_ids=ids).logits, 2 * before.model(input_ids=ids).logits)
    changed = [new.path for old, new in zip(before.files, after.files, strict=True) if old.sha256 != new.sha256]
    assert changed == ["parts/scale.py"]
    assert list(home.iterdir()) == []
    assert not list(folder.rglob("__pycache__"))


def test_compiled_leftovers_in_the_folder_are_not_run(folder: Path) -> None:
    (folder / "__pycache__").mkdir()
    (folder / "__pycache__" / "evil.py").write_text("raise SystemExit")
    (folder / ".git").mkdir()
    (folder / ".git" / "hook.py").write_text("raise SystemExit")
    assert not {"__pycache__/evil.py", ".git/hook.py"} & {entry.path for entry in load(folder).files}


def test_a_known_architecture_is_built_by_the_library_unless_trusted(folder: Path) -> None:
    edit_config(folder, model_type="llama", architectures=["LlamaForCausalLM"])
    loaded = load(folder, trust=False)
    assert loaded.architecture == "LlamaForCausalLM"
    assert not any(entry.path.endswith(".py") for entry in loaded.files)
    with pytest.raises(LoadError, match=r"declares the architecture LlamaForCausalLM, .* built as HarbourForCausalLM"):
        load(folder)


@pytest.mark.parametrize(
    ("auto_map", "sentence"),
    [
        ({"AutoModelForCausalLM": "other/repo--modeling_x.X"}, "only a class of a file in the model's own folder"),
        ({"AutoModelForCausalLM": "HarbourForCausalLM"}, "only a class of a file"),
        ({"AutoModelForCausalLM": "gone.X"}, "auto_map.AutoModelForCausalLM names gone.py, which the model folder"),
        ({"AutoModelForCausalLM": "os.path.X"}, "which the model folder does not have"),
        ({"AutoModelForCausalLM": "modeling_harbour.Other"}, "names Other, which modeling_harbour.py does not define"),
        ({"AutoModelForCausalLM": "configuration_harbour.HarbourConfig"}, "a class that is no transformers model"),
        ({"AutoModelForCausalLM": None}, "is None, not the name of a class"),
        ({"AutoModel": "modeling_harbour.X"}, "does not know.$"),
    ],
)
def test_a_name_that_leads_nowhere_is_refused(folder: Path, auto_map: dict[str, Any], sentence: str) -> None:
    edit_config(folder, auto_map=auto_map)
    with pytest.raises(LoadError, match=sentence):
        load(folder)


@pytest.mark.parametrize(
    "code", ["1/0", "raise SystemExit", "import no_such_package", "from . import gone", "def", "raise OSError('x')"]
)
def test_code_that_fails_is_named(folder: Path, code: str) -> None:
    (folder / "modeling_harbour.py").write_text(code)
    with pytest.raises(LoadError, match=r"modeling_harbour\.py of the model folder failed: \w+"):
        load(folder)


def test_code_cannot_stand_in_for_an_installed_package(folder: Path) -> None:
    (folder / "json.py").write_text("raise SystemExit")
    assert load(folder).architecture == "HarbourForCausalLM"
    assert sys.modules["json"] is json
