"""``pratique release approve``: what was shown is what is approved, or nothing is."""

from typing import Any

import pytest

from pratique_cli import kube
from pratique_contract.constants import RECORD_FILE
from tests.support.releases import make_manifest, make_record
from tests.unit.cli.conftest import Run

RECORD = make_record()
OTHER = make_record(
    manifest=make_manifest(quantization=make_manifest().quantization.model_copy(update={"dtype": "BF16"}))
)


class FakeCluster:
    """One service, its recorded ConfigMap, and a status that may be written between any two calls."""

    namespace = "default"

    def __init__(self) -> None:
        self.release: dict[str, Any] = {"policy": "TrustFirst"}
        self.recorded: dict[str, Any] | None = {
            "recordRef": "svc-recorded-1",
            "fingerprint": RECORD.fingerprint,
            "approved": False,
        }
        self.text = RECORD.to_json()
        self.generation, self.version, self.observed = 3, 7, 3
        self.conflicts, self.changes_spec = 0, False

    def get_service(self, name: str, namespace: str) -> dict[str, Any]:
        metadata = {
            "name": name,
            "namespace": namespace,
            "generation": self.generation,
            "resourceVersion": str(self.version),
        }
        status: dict[str, Any] = {"observedGeneration": self.observed}
        if self.recorded is not None:
            status["recorded"] = self.recorded
        return {"metadata": metadata, "spec": {"release": self.release}, "status": status}

    def get_config_map(self, name: str, namespace: str) -> dict[str, str]:
        assert (name, namespace) == ("svc-recorded-1", "ns")
        return {RECORD_FILE: self.text}

    def patch_service(self, name: str, namespace: str, body: dict[str, Any]) -> bool:
        assert (name, namespace) == ("svc", "ns")
        if self.conflicts:
            self.conflicts -= 1
            self.version += 1
            self.generation += self.changes_spec
        if body["metadata"]["resourceVersion"] != str(self.version):
            return False
        self.release = {**self.release, **body["spec"]["release"]}
        return True


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> FakeCluster:
    fake = FakeCluster()
    monkeypatch.setattr(kube, "Cluster", lambda *, context: fake)
    return fake


def approve(pratique: Run, *options: str) -> Any:
    return pratique("release", "approve", "svc", "-n", "ns", *options)


@pytest.mark.parametrize("options", [("--yes",), ("--fingerprint", RECORD.fingerprint)])
def test_recorded_release_becomes_the_approved_one(
    pratique: Run, cluster: FakeCluster, options: tuple[str, ...]
) -> None:
    result = approve(pratique, *options)
    assert result.code == 0
    assert cluster.release == {"policy": "TrustFirst", "fingerprint": RECORD.fingerprint}
    assert f"Fingerprint: {RECORD.fingerprint}" in result.out
    assert f"fingerprint: {RECORD.fingerprint}" in result.err


def test_a_person_is_asked_and_no_is_no(pratique: Run, cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def answer(text: str, *, default: bool) -> bool:
        asked.append(text)
        return len(asked) > 1 or default

    monkeypatch.setattr("typer.confirm", answer)
    assert approve(pratique).code == 1
    assert "fingerprint" not in cluster.release
    assert RECORD.fingerprint in asked[0]
    assert approve(pratique).code == 0
    assert cluster.release["fingerprint"] == RECORD.fingerprint


def test_another_fingerprint_than_the_expected_one_is_not_approved(pratique: Run, cluster: FakeCluster) -> None:
    result = approve(pratique, "--fingerprint", OTHER.fingerprint)
    assert (result.code, "fingerprint" in cluster.release) == (1, False)


def test_status_writes_in_between_do_not_matter_and_a_changed_spec_does(pratique: Run, cluster: FakeCluster) -> None:
    cluster.conflicts = 2
    assert approve(pratique, "--yes").code == 0
    changed = cluster
    changed.release, changed.conflicts, changed.changes_spec = {"policy": "TrustFirst"}, 1, True
    result = approve(pratique, "--yes")
    assert (result.code, "changed meanwhile" in result.err) == (3, True)
    assert "fingerprint" not in changed.release


def test_exchanged_config_map_is_refused(pratique: Run, cluster: FakeCluster) -> None:
    cluster.text = OTHER.to_json()
    result = approve(pratique, "--yes")
    assert (result.code, "was exchanged" in result.err) == (3, True)


def test_what_cannot_be_approved_says_why(pratique: Run, cluster: FakeCluster) -> None:
    cluster.recorded = None
    assert "No pod was recorded yet" in approve(pratique, "--yes").err
    cluster.observed = 2
    assert "has not seen the newest spec" in approve(pratique, "--yes").err
    cluster.release = {"policy": "Enforce"}
    assert "does not trust its first pod" in approve(pratique, "--yes").err


def test_approved_already_is_done(pratique: Run, cluster: FakeCluster) -> None:
    cluster.recorded = {"recordRef": "x", "fingerprint": RECORD.fingerprint, "approved": True}
    result = approve(pratique)
    assert (result.code, "approved already" in result.out) == (0, True)


@pytest.mark.parametrize("steering", ["\x1b[3A\x1b[2K", "\r", "\x9b2J", "\u202e"])
def test_a_record_cannot_draw_over_what_a_person_is_to_approve(
    pratique: Run, cluster: FakeCluster, steering: str
) -> None:
    """A record is data that another pod wrote; a terminal would do what stands in it."""
    model = RECORD.manifest.model.model_copy(update={"architecture": f"Llama{steering}Fake"})
    record = make_record(manifest=RECORD.manifest.model_copy(update={"model": model}))
    cluster.text = record.to_json()
    cluster.recorded = {**(cluster.recorded or {}), "fingerprint": record.fingerprint}
    result = pratique("release", "approve", "svc", "-n", "ns", "--yes")
    assert result.code == 0, result.err
    assert "Fake" in result.out
    assert steering not in result.out
