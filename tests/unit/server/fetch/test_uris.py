"""What a URI names, and the sentence for one that names nothing."""

import pytest

from pratique_server.fetch.errors import FetchError
from pratique_server.fetch.uris import BucketSource, HubSource, OciSource, SourceName, WebSource, parse_source

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
        ("file:///models", None, "not something to fetch"),
    ],
)
def test_says_what_is_wrong(uri: str, revision: str | None, part: str) -> None:
    with pytest.raises(FetchError, match=part):
        parse_source(uri, revision)


def test_only_a_name_that_decides_the_bytes_is_immutable() -> None:
    assert parse_source("hf://o/n", COMMIT).immutable
    assert not parse_source("hf://o/n", "main").immutable
    assert not parse_source("s3://bucket/x", None).immutable
    assert parse_source("https://host/a.tar", DIGEST).immutable
