"""What a URI names, and the sentence for one that names nothing."""

import pytest

from pratique_server.fetch.errors import FetchError
from pratique_server.fetch.uris import (
    BucketSource,
    HubSource,
    OciSource,
    OciTag,
    SourceName,
    WebSource,
    parse_movable,
    parse_source,
)

COMMIT = "12fd25f77366fa6b3b4b768ec3050bf629380bac"
DIGEST = f"sha256:{'a' * 64}"


@pytest.mark.parametrize(
    ("uri", "revision", "expected"),
    [
        ("hf://owner/name", COMMIT, HubSource("owner/name", COMMIT)),
        (f"hf://owner/name@{COMMIT}", None, HubSource("owner/name", COMMIT)),
        (f"hf://owner/name@{COMMIT}", COMMIT, HubSource("owner/name", COMMIT)),
        ("hf://owner/name", None, HubSource("owner/name", "main")),
        ("hf://gpt2", COMMIT, HubSource("gpt2", COMMIT)),
        (f"oci://registry.example/o/model@{DIGEST}", None, OciSource("registry.example", "o/model", DIGEST)),
        (f"oci://host:5000/model:v1@{DIGEST}", None, OciSource("host:5000", "model", DIGEST)),
        ("oci://host/model", DIGEST, OciSource("host", "model", DIGEST)),
        ("https://host/a.tar.gz", DIGEST, WebSource("https://host/a.tar.gz", DIGEST)),
        ("s3://bucket/a/b/", None, BucketSource("bucket", "a/b/")),
        ("s3://bucket", None, BucketSource("bucket", "")),
        ("s3://bucket/a", DIGEST, BucketSource("bucket", "a/", DIGEST)),
    ],
)
def test_takes_apart_what_is_well_formed(uri: str, revision: str | None, expected: SourceName) -> None:
    assert parse_source(uri, revision) == expected


@pytest.mark.parametrize(
    ("uri", "revision", "part"),
    [
        (f"hf://owner/name@{COMMIT}", "b" * 40, "given beside it"),
        ("hf://a/b/c", COMMIT, "hf://owner/name"),
        ("hf://../etc", COMMIT, "hf://owner/name"),
        ("hf://owner/name", "../../x", "hf://owner/name"),
        ("oci://host/model:latest", None, "not named by digest"),
        (f"oci://user:pw@host/model@{DIGEST}", None, "oci://"),
        (f"oci://host/Model@{DIGEST}", None, "oci://registry/repository"),
        ("https://host/a.tar", None, "sha256sum"),
        ("https://host/a.tar", COMMIT, "sha256sum"),
        ("https:///a.tar", DIGEST, "names no host"),
        ("s3://Bad_Bucket/x", None, "s3://bucket/prefix"),
        ("s3://bucket/x", COMMIT, "the digest that pratique resolve prints"),
        ("file:///models", None, "not something to fetch"),
    ],
)
def test_says_what_is_wrong(uri: str, revision: str | None, part: str) -> None:
    with pytest.raises(FetchError, match=part):
        parse_source(uri, revision)


@pytest.mark.parametrize(
    ("uri", "revision", "expected"),
    [
        ("oci://host:5000/o/model:v1.2", None, OciTag("host:5000", "o/model", "v1.2")),
        ("oci://host/model", "latest", OciTag("host", "model", "latest")),
        ("oci://host/model:v1", "v1", OciTag("host", "model", "v1")),
        (f"oci://host/model:v1@{DIGEST}", None, OciSource("host", "model", DIGEST)),
        ("oci://host/model:v1", DIGEST, OciSource("host", "model", DIGEST)),
        ("https://host/a.tar", None, WebSource("https://host/a.tar", None)),
        ("https://host/a.tar", DIGEST, WebSource("https://host/a.tar", DIGEST)),
        ("hf://owner/name@main", None, HubSource("owner/name", "main")),
        ("s3://bucket/a", None, BucketSource("bucket", "a/")),
    ],
)
def test_what_can_be_resolved_may_have_a_name_that_moves(
    uri: str, revision: str | None, expected: SourceName | OciTag
) -> None:
    assert parse_movable(uri, revision) == expected


@pytest.mark.parametrize(
    ("uri", "revision", "part"),
    [
        ("oci://host/model:v1", "v2", "given beside it"),
        ("oci://host/model", None, "oci://registry/repository:tag"),
        ("oci://host/model:v1@v2", None, "oci://registry/repository:tag"),
        ("oci://user:pw@host/model:v1", None, "oci://registry/repository:tag"),
        ("oci://host/model:" + "a" * 129, None, "oci://registry/repository:tag"),
        ("https:///a.tar", None, "names no host"),
    ],
)
def test_what_names_nothing_cannot_be_resolved_either(uri: str, revision: str | None, part: str) -> None:
    with pytest.raises(FetchError, match=part):
        parse_movable(uri, revision)


def test_only_a_name_that_decides_the_bytes_is_immutable() -> None:
    assert parse_source("hf://o/n", COMMIT).immutable
    assert not parse_source("hf://o/n", "main").immutable
    assert not parse_source("s3://bucket/x", None).immutable
    assert parse_source("s3://bucket/x", DIGEST).immutable
    assert parse_source("https://host/a.tar", DIGEST).immutable
