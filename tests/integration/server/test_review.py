"""A review of real releases: the tiny model loaded twice and scored; the driver that loads servers with traffic."""

import asyncio
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from pratique_cli.load import Target, Tenant, make_trace, measure, run_trace
from pratique_contract.record import ReleaseRecord
from tests.integration.server.running import make_spec, serving, start_in_this_process
from tests.support import mutations
from tests.support.adapters import make_adapter
from tests.support.models import CHATML, CORPUS
from tests.unit.cli.conftest import Run, pratique

__all__ = ["pratique"]  # a fixture


Record = Callable[..., Path]


@pytest.fixture
def record(pratique: Run, tmp_path: Path) -> Record:
    def make(name: str, folder: Path, *options: object) -> Path:
        out = tmp_path / f"{name}.json"
        result = pratique("release", "record", "--model", folder, "--output", out, *options)
        assert result.code == 0, result.err
        return out

    return make


_FP32: list[str] = []


@pytest.fixture
def fp32(record: Record, tiny_model_dir: Path, tmp_path: Path) -> Path:
    """The tiny model as it is; recorded once."""
    if not _FP32:
        _FP32.append(record("fp32", tiny_model_dir).read_text())
    path = tmp_path / "fp32.json"
    path.write_text(_FP32[0])
    return path


@pytest.fixture
def few_prompts(tmp_path: Path) -> Path:
    path = tmp_path / "prompts.jsonl"
    path.write_text("\n".join(json.dumps(text) for text in CORPUS))
    return path


@pytest.mark.req("R132")
@pytest.mark.timeout(240)
def test_another_dtype_is_measured_judged_and_written_down_the_same_twice(
    pratique: Run, record: Record, tiny_model_dir: Path, fp32: Path, few_prompts: Path, tmp_path: Path
) -> None:
    """A random model's distributions are so flat that half the bits move them beyond the limits for real models: the test fails."""
    bf16 = record("bf16", tiny_model_dir, "--dtype", "BF16")
    both = ("--reference-model", tiny_model_dir, "--candidate-model", tiny_model_dir, "--candidate-dtype", "BF16")
    reason = ("--intentional", "quantization=half the memory", "--prompts", few_prompts)
    reviewed = [tmp_path / name for name in ("a.json", "b.json")]
    for out in reviewed:
        result = pratique("release", "review", fp32, bf16, *both, *reason, "--write", out)
        assert result.code == 5, result.out + result.err
        assert "klMean is" in result.out
    assert reviewed[0].read_bytes() == reviewed[1].read_bytes()
    review = ReleaseRecord.from_json(reviewed[0].read_text()).review
    assert review is not None
    tests = {test.kind: test for test in review.tests}
    assert set(tests) == {"SemanticParity", "LogitComparison"}
    assert tests["SemanticParity"].measurements["prompts"] == len(CORPUS)
    kl = tests["LogitComparison"].measurements["klMean"]
    assert isinstance(kl, float)
    assert 0 < kl < 0.05, "rounding moves a distribution; another model would move it by nats"


@pytest.mark.timeout(120)
def test_files_that_are_not_the_release_under_review_are_refused(
    pratique: Run, record: Record, tiny_model_dir: Path, fp32: Path, tmp_path: Path
) -> None:
    """The oldest way to have a good review: test something else."""
    wrong = mutations.copy_of(tiny_model_dir, tmp_path / "wrong", mutations.flip_weight_byte)
    changed = record("wrong", wrong)
    both = ("--reference-model", tiny_model_dir, "--candidate-model", tiny_model_dir)
    result = pratique("release", "review", fp32, changed, *both)
    assert result.code == 3
    assert (
        "The candidate's files are not the release that its file describes: model.files[model.safetensors]"
        in result.err
    )


@pytest.mark.timeout(120)
def test_an_adapter_that_changes_answers_needs_limits_that_say_so(
    pratique: Run, record: Record, tiny_model_dir: Path, fp32: Path, few_prompts: Path, tmp_path: Path
) -> None:
    adapter = f"harbour={make_adapter(tmp_path / 'adapter', tiny_model_dir)}"
    adapted = record("adapted", tiny_model_dir, "--adapter", adapter)
    both = ("--reference-model", tiny_model_dir, "--candidate-model", tiny_model_dir, "--candidate-adapter", adapter)
    arguments = (
        "release",
        "review",
        fp32,
        adapted,
        *both,
        "--intentional",
        "adapters=trained on logbooks",
        "--prompts",
        few_prompts,
        "-o",
        "json",
    )
    judged = pratique(*arguments)
    assert judged.code == 5, judged.err
    value = json.loads(judged.out)
    assert [difference["part"] for difference in value["differences"]] == ["adapters"]
    assert "adapters[harbour]" in {field["path"] for field in value["differences"][0]["fields"]}
    figures = {test["kind"]: test["measurements"] for test in value["review"]["tests"]}
    # As far as the adapter really goes, and not an inch further.
    limits = [
        f"LogitComparison.{name}Max={figures['LogitComparison'][name]}" for name in ("klMean", "klP99", "logprobDelta")
    ]
    limits += [
        f"LogitComparison.{name}Min={figures['LogitComparison'][name]}" for name in ("top1Agreement", "top10Agreement")
    ]
    limits += [
        f"SemanticParity.{name}Min={figures['SemanticParity'][name]}" for name in ("exactMatchRate", "tokenAgreement")
    ]
    limits += [f"SemanticParity.clearDivergenceRateMax={figures['SemanticParity']['clearDivergenceRate']}"]
    accepted = pratique(*arguments, *(item for limit in limits for item in ("--limit", limit)))
    assert accepted.code == 0, accepted.out


def as_of_an_older_build(file: Path, target: Path, *, ids_added: int) -> Path:
    """The record as another version of the server would have made it; ``ids_added`` moves what its golden cases answered."""
    value = json.loads(file.read_text())
    build = "sha256:" + "0" * 64
    value["manifest"]["engine"]["build"] = build
    for case in value["golden"]["cases"]:
        for output in case["outputs"]:
            output["engineBuild"] = build
            output["ids"][0] += ids_added
    target.write_text(json.dumps(value))
    return target


@pytest.mark.req("R132")
@pytest.mark.parametrize(("ids_added", "code"), [(0, 0), (1, 5)])
@pytest.mark.timeout(120)
def test_an_older_build_is_compared_by_what_it_recorded(
    pratique: Run, tiny_model_dir: Path, fp32: Path, tmp_path: Path, ids_added: int, code: int
) -> None:
    """This build cannot run that one; its golden cases say what it answered."""
    older = as_of_an_older_build(fp32, tmp_path / "older.json", ids_added=ids_added)
    both = ("--reference-model", tiny_model_dir, "--candidate-model", tiny_model_dir)
    result = pratique("release", "review", older, fp32, *both, "--intentional", "engine=faster kernels", "-o", "json")
    assert result.code == code, result.out + result.err
    (test,) = json.loads(result.out)["review"]["tests"]
    figures = test["measurements"]
    assert figures["goldenCases"] >= 1
    assert figures["goldenMismatches"] == (figures["goldenCases"] if ids_added else 0)
    assert figures["exactMatchRate"] == 1.0, "the same files on the same build"


@pytest.mark.timeout(120)
def test_a_changed_template_is_rendered_by_both_and_shown(
    pratique: Run, record: Record, tiny_model_dir: Path, fp32: Path, tmp_path: Path
) -> None:
    template = tmp_path / "template.jinja"
    template.write_text(CHATML.replace("helpful", "brief"))
    changed = record("changed", tiny_model_dir, "--chat-template", template)
    both = ("--reference-model", tiny_model_dir, "--candidate-model", tiny_model_dir)
    options = ("--candidate-chat-template", template, "--intentional", "chatTemplate=shorter answers", "-o", "json")
    result = pratique("release", "review", fp32, changed, *both, *options)
    assert result.code == 0, result.out + result.err
    value = json.loads(result.out)
    (test,) = value["review"]["tests"]
    assert (test["kind"], test["measurements"]["source"]) == ("RenderedFixtures", "files")
    lines = {line for change in value["renderingChanges"] for line in change["lines"]}
    assert "+'You are a brief assistant.<|im_end|>\\n'" in lines


@pytest.mark.req("R116", "R123")
@pytest.mark.timeout(120)
def test_the_load_driver_measures_a_real_server(tiny_model_dir: Path) -> None:
    tenants = (Tenant(name="light", rate=6.0), Tenant(name="heavy", rate=3.0, prompt_words=(40, 60)))
    with serving(make_spec(tiny_model_dir), start_engine=start_in_this_process) as (running, _):
        running.wait_ready()
        fingerprint = running.verdict()["fingerprint"]
        trace = make_trace(tenants, seconds=2, seed=1)
        observed = asyncio.run(run_trace(trace, Target(url=running.api_url, model="tiny")))
        running.wait_idle()
    figures = measure(observed)
    assert figures["errors"] == {}
    assert figures["requests"] == len(trace) > 4
    assert {seen.fingerprint for seen in observed} == {fingerprint}
    assert figures["ttftMs"]["p50"] <= figures["e2eMs"]["p50"]
    assert figures["outputTokens"] == sum(seen.output_tokens or 0 for seen in observed) > 0
    assert 0.5 <= figures["fairness"] <= 1.0
