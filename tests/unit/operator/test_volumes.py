"""Volumes a user brings: where they may be, what they become, and what of them is in the revision."""

import re
from itertools import combinations
from pathlib import PurePosixPath
from typing import Any

import pytest
from pydantic import TypeAdapter, ValidationError

from pratique_operator import names
from pratique_operator.api.types import parse_spec
from pratique_operator.api.volume_types import MountPath, RelativePath
from pratique_operator.config import OperatorConfig
from pratique_operator.desired.revision import Target, compute_target
from pratique_operator.errors import InvalidSpecError
from pratique_operator.release.references import Reference, References, required_references

CONFIG = OperatorConfig(server_image="registry/server:1", allow_file_sources=True)
Manifest = dict[str, Any]

CA: Manifest = {"name": "ca", "configMap": {"name": "roots"}}
CA_MOUNT: Manifest = {"name": "ca", "mountPath": "/mnt/ca"}
SHARED: Manifest = {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": "1Gi"}}
SHARED_MOUNT: Manifest = {"name": "shm", "mountPath": "/dev/shm"}
EVERYTHING: Manifest = {
    "model": {
        "uri": "hf://owner/name",
        "revision": "a" * 40,
        "adapters": [{"name": "one", "uri": "pvc://adapters/one"}],
    },
    "tokenizer": {"uri": "file:///models/t"},
    "chatTemplate": {"secretKeyRef": {"name": "secret", "key": "k"}},
    "auth": {"apiKeySecretRef": {"name": "keys"}},
    "release": {"policy": "TrustFirst"},
    "download": {"credentialsSecretRef": {"name": "hub"}},
}


def target(volumes: list[Manifest], mounts: list[Manifest], data: Manifest | None = None, **spec: Any) -> Target:
    parsed = parse_spec(
        {"model": {"uri": "pvc://models/x"}, **spec, "template": {"spec": {"volumes": volumes, "volumeMounts": mounts}}}
    )
    content = {"data": {"k": "dg=="} if data is None else data}
    found = References(dict.fromkeys(required_references(parsed), content))
    return compute_target(parsed, found, service="svc", namespace="ns", config=CONFIG)


def pod(built: Target) -> Manifest:
    return dict(built.template["spec"])


def server(built: Target) -> Manifest:
    return dict(pod(built)["containers"][0])


def test_volumes_reach_the_serving_container_under_names_of_their_own() -> None:
    built = target([CA, SHARED], [CA_MOUNT, SHARED_MOUNT], **EVERYTHING)
    assert pod(built)["volumes"][-3:-1] == [
        {"name": "user-ca", "configMap": {"name": "roots"}},
        {"name": "user-shm", "emptyDir": {"medium": "Memory", "sizeLimit": "1Gi"}},
    ]
    mounts = server(built)["volumeMounts"]
    assert {"name": "user-ca", "mountPath": "/mnt/ca"} in mounts
    assert {"name": "user-shm", "mountPath": "/dev/shm"} in mounts
    (fetcher,) = pod(built)["initContainers"]
    assert not any(mount["name"].startswith("user-") for mount in fetcher["volumeMounts"])


def test_mount_of_another_volume_is_another_revision() -> None:
    other = {**CA, "name": "other"}
    second = {"name": "other", "mountPath": "/mnt/b"}
    crossed = [{**CA_MOUNT, "name": "other"}, {**second, "name": "ca"}]
    assert target([CA, other], [CA_MOUNT, second]).revision != target([CA, other], crossed).revision


def test_no_volume_leaves_the_revision_as_it_was() -> None:
    """Operators that learn a field must not roll every service that does not use it."""
    parsed = parse_spec({"model": {"uri": "pvc://models/x"}})
    plain = compute_target(parsed, References(), service="svc", namespace="ns", config=CONFIG)
    assert target([], []).revision == plain.revision


def ours() -> set[str]:
    """Every place at which the operator mounts something into the serving container."""
    built = target([CA], [CA_MOUNT], **EVERYTHING)
    return {m["mountPath"] for m in server(built)["volumeMounts"] if not m["name"].startswith("user-")}


# Where images keep programs, libraries and settings: of the one built here, of Debian's and conda's Python, of CUDA.
IMAGE = (
    *("/", "/app", "/bin", "/code", "/dependencies", "/dev", "/etc", "/etc/ssl", "/home", "/lib", "/lib64", "/opt"),
    *("/opt/conda/lib/python3.11/site-packages", "/proc", "/root", "/run", "/sbin", "/sys", "/usr", "/usr/bin/python3"),
    *(
        "/usr/lib/python3.11",
        "/usr/local/cuda",
        "/usr/local/lib/python3.11/site-packages",
        "/var",
        "/venv",
        "/workspace",
    ),
)


def allowed(path: str) -> bool:
    try:
        TypeAdapter(MountPath).validate_python(path)
    except ValidationError:
        return False
    return True


def test_no_allowed_path_covers_or_enters_what_the_release_or_the_image_is_made_of() -> None:
    assert len(ours()) >= 8
    for place in (*ours(), *IMAGE):
        # Itself, whatever lies in it, and whatever it lies in.
        around = [place, f"{place.rstrip('/')}/x", *map(str, PurePosixPath(place).parents)]
        assert not any(allowed(path) for path in around), place


@pytest.mark.parametrize(
    "path",
    [
        *("/mnt", "/mnt/", "/mnt//a", "/mnt/..", "/mnt/../models", "/mnt/a/../../models", "/mnt/./a", "/mnt/a/"),
        *(
            "mnt/a",
            "/MNT/a",
            "/mnt/a:b",
            "/mnt/a\n",
            "/dev/shm/a",
            "/dev/shm/",
            "/dev",
            "/mnt2/a",
            "/mnt/...",
            "/mnt/.a",
        ),
    ],
)
def test_odd_spelling_of_a_path_is_refused(path: str) -> None:
    assert not allowed(path)


@pytest.mark.parametrize("path", ["../x", "/x", "a/../b", "a//b", ".", "", "a/", "..", "a/.b"])
def test_path_inside_a_volume_cannot_leave_it(path: str) -> None:
    with pytest.raises(ValidationError):
        TypeAdapter(RelativePath).validate_python(path)


def test_users_volume_can_never_have_a_name_of_ours() -> None:
    built = target([CA, {**CA, "name": "model"}], [CA_MOUNT, {"name": "model", "mountPath": "/mnt/m"}], **EVERYTHING)
    found = [volume["name"] for volume in pod(built)["volumes"]]
    assert len(found) == len(set(found))
    own = [value for name, value in vars(names).items() if name.startswith("VOLUME_")]
    assert not any(re.match("user-", name) for name in (*own, names.adapter_volume("user-a")))


def claim(*, of_volume: bool | None = None, of_mount: bool | None = None) -> tuple[list[Manifest], list[Manifest]]:
    source = {"claimName": "models", **({} if of_volume is None else {"readOnly": of_volume})}
    mount = {"name": "c", "mountPath": "/mnt/c", **({} if of_mount is None else {"readOnly": of_mount})}
    return [{"name": "c", "persistentVolumeClaim": source}], [mount]


@pytest.mark.parametrize(
    "spec",
    [
        {},
        {"model": {"uri": "file:///m", "adapters": [{"name": "a", "uri": "pvc://models/a"}]}},
        {"model": {"uri": "file:///m"}, "tokenizer": {"uri": "pvc://models/t"}},
        {"model": {"uri": "hf://a/b", "revision": "a" * 40}, "download": {"cache": {"claimName": "models"}}},
    ],
)
def test_claim_with_files_of_the_release_cannot_be_mounted_to_be_written(spec: Manifest) -> None:
    """The server would hash its files and could write over them afterwards."""
    for writable in (claim(), claim(of_volume=False, of_mount=False)):
        with pytest.raises(InvalidSpecError, match=r"volumeMounts\[/mnt/c\].*models.*readOnly"):
            target(*writable, **spec)
    for volumes, mounts in (claim(of_volume=True), claim(of_mount=True)):
        built = target(volumes, mounts, **spec)
        # One volume for one claim, or the kubelet waits for ever.
        claims = [
            v["persistentVolumeClaim"]["claimName"] for v in pod(built)["volumes"] if "persistentVolumeClaim" in v
        ]
        assert claims == ["models"]


def test_read_only_volume_stays_read_only_when_it_becomes_one_with_a_writable_one() -> None:
    """Of the claim the cache lies on: the volume can be written, so the mount has to say that it cannot."""
    spec: Manifest = {
        "model": {"uri": "hf://a/b", "revision": "a" * 40},
        "download": {"cache": {"claimName": "models"}},
    }
    built = target(*claim(of_volume=True), **spec)
    (mount,) = [mount for mount in server(built)["volumeMounts"] if mount["mountPath"] == "/mnt/c"]
    assert mount["readOnly"] is True


def test_other_claim_may_be_written() -> None:
    built = target(*claim(of_mount=False), model={"uri": "pvc://other/x"})
    assert pod(built)["volumes"][-1] == {"name": "user-c", "persistentVolumeClaim": {"claimName": "models"}}
    # The API server stores no false; asked for, it would be written again in every pass.
    assert server(built)["volumeMounts"][-1] == {"name": "user-c", "mountPath": "/mnt/c"}


def test_mount_of_no_volume_is_named() -> None:
    with pytest.raises(InvalidSpecError, match="there is no volume ca"):
        target([], [CA_MOUNT])


SECRET: Manifest = {"name": "ca", "secret": {"secretName": "roots"}}


@pytest.mark.parametrize(("kind", "volume"), [("ConfigMap", CA), ("Secret", SECRET)])
def test_content_is_part_of_the_revision(kind: str, volume: Manifest) -> None:
    parsed = parse_spec(
        {"model": {"uri": "file:///m"}, "template": {"spec": {"volumes": [volume], "volumeMounts": [CA_MOUNT]}}}
    )
    assert required_references(parsed) == {Reference(kind, "roots")}
    contents: list[Manifest] = [{}, {"k": "dg=="}, {"k": "dw=="}, {"k": "dg==", "l": "dg=="}, {"l": "dg=="}]
    for one, other in combinations(contents, 2):
        assert target([volume], [CA_MOUNT], one).revision != target([volume], [CA_MOUNT], other).revision
    assert target([volume], [CA_MOUNT], {"k": "dg=="}).revision == target([volume], [CA_MOUNT], {"k": "dg=="}).revision


def test_only_the_chosen_keys_are_part_of_the_revision() -> None:
    chosen = {"name": "ca", "configMap": {"name": "roots", "items": [{"key": "k", "path": "ca.crt"}]}}

    def of(data: Manifest) -> str:
        return target([chosen], [CA_MOUNT], data).revision

    assert of({"k": "1"}) == of({"k": "1", "l": "2"})
    assert of({"k": "1"}) != of({"k": "2"})
    with pytest.raises(InvalidSpecError, match=r"volumes\[ca\].*ConfigMap roots has no key k"):
        of({"l": "1"})


def test_binary_content_counts_and_a_missing_object_is_named() -> None:
    parsed = parse_spec(
        {"model": {"uri": "file:///m"}, "template": {"spec": {"volumes": [CA], "volumeMounts": [CA_MOUNT]}}}
    )

    def of(content: Manifest | None) -> str:
        found = References({Reference("ConfigMap", "roots"): content})
        return compute_target(parsed, found, service="svc", namespace="ns", config=CONFIG).revision

    assert of({"binaryData": {"k": "/w=="}}) != of({"binaryData": {"k": "/g=="}}) != of({"data": {"k": "/g=="}})
    with pytest.raises(InvalidSpecError, match=r"volumes\[ca\].*there is no ConfigMap roots"):
        of(None)
