"""Objects that services refer to: which services a changed, created or deleted one concerns."""

from typing import cast

from pratique_operator.cluster import Cluster
from pratique_operator.errors import UnavailableError
from pratique_operator.kinds import Key, Kind
from pratique_operator.release.references import Reference
from pratique_operator.release.referred import ReferredObjects

RECORD, SECRET = Reference("ConfigMap", "record"), Reference("Secret", "record")
ONE, TWO, FAR = Key("ns", "one"), Key("ns", "two"), Key("other", "one")


class Versions:
    """Answers for versions only; an exception stands for an API server that does not answer."""

    def __init__(self, versions: dict[tuple[str, str, str], str | Exception]) -> None:
        self.versions = versions
        self.asked: list[tuple[str, str, str]] = []

    def version(self, kind: Kind, namespace: str, name: str) -> str | None:
        self.asked.append((kind.kind, namespace, name))
        found = self.versions.get((kind.kind, namespace, name))
        if isinstance(found, Exception):
            raise found
        return found


def changed(referred: ReferredObjects, versions: Versions) -> set[Key]:
    return referred.find_changed(cast("Cluster", versions))


def make_referred() -> ReferredObjects:
    referred = ReferredObjects()
    referred.remember(ONE, {RECORD: "1", SECRET: "5"})
    referred.remember(TWO, {RECORD: "1"})
    referred.remember(FAR, {RECORD: None})
    return referred


SAME: dict[tuple[str, str, str], str | Exception] = {
    ("ConfigMap", "ns", "record"): "1",
    ("Secret", "ns", "record"): "5",
}


def test_nothing_changed_concerns_nobody_and_each_object_is_asked_for_once() -> None:
    versions = Versions(SAME)
    assert changed(make_referred(), versions) == set()
    assert len(versions.asked) == len(set(versions.asked)) == 3


def test_change_concerns_the_services_that_refer_to_it() -> None:
    """linagora/openrag#985: a rotated Secret that was noticed at the next restart."""
    assert changed(make_referred(), Versions({**SAME, ("ConfigMap", "ns", "record"): "2"})) == {ONE, TWO}
    assert changed(make_referred(), Versions({**SAME, ("Secret", "ns", "record"): "6"})) == {ONE}


def test_creation_and_deletion_are_changes() -> None:
    assert changed(make_referred(), Versions({**SAME, ("ConfigMap", "other", "record"): "9"})) == {FAR}
    assert changed(make_referred(), Versions({("Secret", "ns", "record"): "5"})) == {ONE, TWO}


def test_object_that_could_not_be_read_is_not_gone() -> None:
    gone = {**SAME, ("ConfigMap", "ns", "record"): UnavailableError("no answer")}
    assert changed(make_referred(), Versions(gone)) == set()


def test_service_that_is_gone_is_forgotten() -> None:
    referred = make_referred()
    referred.forget(ONE)
    assert changed(referred, Versions({})) == {TWO}
