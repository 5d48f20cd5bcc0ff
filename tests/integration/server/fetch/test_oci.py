"""oci:// against a registry of our own: artifacts of files, images of archives, challenges, and the chain of digests."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from backports import zstd

from pratique_contract.reasons import Reason
from pratique_contract.serving import DownloadSpec
from pratique_server.fetch.archive import ZSTD_WINDOW_LOG_MAX
from pratique_server.fetch.registry import TRIES_MAX
from pratique_server.fetch.secrets import Credentials
from pratique_server.fetch.targets import Target
from tests.support.fetching import failure, fetch, make_settings, names_in
from tests.support.hub import Fault
from tests.support.registry import INDEX, Layer, Registry, file_layer, image_layer, make_tar

WEIGHTS = bytes(range(256)) * 1000
FILES = {"config.json": b'{"model_type": "tiny"}', "model.safetensors": WEIGHTS, "tokenizer.json": b"{}"}
ARTIFACT = [file_layer(name, content) for name, content in FILES.items()]


@pytest.fixture
def registry() -> Iterator[Registry]:
    with Registry() as made:
        yield made


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "cache" / "oci-1"


def make_target(registry: Registry, digest: str, path: Path, **changes: Any) -> Target:
    return Target(**{"uri": f"oci://{registry.host}/models/tiny@{digest}", "revision": None, "path": path, **changes})


def content_of(path: Path) -> dict[str, bytes]:
    return {name: (path / name).read_bytes() for name in names_in(path)}


def test_an_artifact_s_layers_are_the_files(registry: Registry, path: Path) -> None:
    digest = registry.push(*ARTIFACT, file_layer("README.md", b"hello"), file_layer("weights.bin", b"pickle"))
    fetch(make_target(registry, digest, path), make_settings())
    assert content_of(path) == FILES


@pytest.mark.parametrize("mode", ["w:gz", "w"])
def test_an_image_s_layers_are_unpacked_and_the_model_s_folder_is_the_top(
    registry: Registry, path: Path, mode: str
) -> None:
    """Model images carry the model in /models beside the files of an operating system."""
    base = image_layer({"etc/os-release": b"x", "etc/settings.json": b"{}"}, mode=mode)
    model = image_layer({f"models/{name}": content for name, content in FILES.items()}, mode=mode)
    fetch(make_target(registry, registry.push(base, model), path), make_settings())
    assert content_of(path) == FILES


def test_files_and_archives_of_one_artifact_come_together(registry: Registry, path: Path) -> None:
    packed = {f"m/{name}": content for name, content in FILES.items()}
    digest = registry.push(image_layer(packed), file_layer("chat_template.jinja", b"{{ messages }}"))
    fetch(make_target(registry, digest, path), make_settings())
    assert names_in(path) == {*FILES, "chat_template.jinja"}


def test_a_file_that_is_in_an_archive_too_is_refused(registry: Registry, path: Path) -> None:
    """One of them would lie in the folder, and the receipt would have the other's digest."""
    packed = {f"m/{name}": content for name, content in FILES.items()}
    digest = registry.push(image_layer(packed), file_layer("config.json", b'{"model_type": "other"}'))
    assert "holds config.json twice" in failure(make_target(registry, digest, path), make_settings()).message
    assert not path.exists()


def test_an_artifact_of_pickles_only_says_so(registry: Registry, path: Path) -> None:
    digest = registry.push(file_layer("config.json", b"{}"), file_layer("pytorch_model.bin", b"pickle"))
    assert "pytorch_model.bin" in failure(make_target(registry, digest, path), make_settings()).message
    assert not path.exists()


def test_an_upper_layer_s_file_replaces_a_lower_one_s(registry: Registry, path: Path) -> None:
    lower = image_layer({f"m/{name}": content for name, content in {**FILES, "config.json": b"{}"}.items()})
    upper = image_layer({"m/config.json": FILES["config.json"]})
    fetch(make_target(registry, registry.push(lower, upper), path), make_settings())
    assert content_of(path) == FILES


@pytest.mark.parametrize("whiteout", ["m/.wh.old.json", "m/old/.wh..wh..opq", ".wh.old"])
def test_what_an_upper_layer_removes_is_gone(registry: Registry, path: Path, whiteout: str) -> None:
    files = {f"m/{name}": content for name, content in FILES.items()}
    stale = {"m/old.json": b"{}", "m/old/a.json": b"{}", "old/config.json": b"{}"}
    layers = [image_layer({**files, **stale}), image_layer({whiteout: b""})]
    fetch(make_target(registry, registry.push(*layers), path), make_settings())
    assert ("old.json" in names_in(path)) == (whiteout != "m/.wh.old.json")
    assert {name: content_of(path)[name] for name in FILES} == FILES


def test_a_packed_folder_is_unpacked(registry: Registry, path: Path) -> None:
    annotations = {"org.opencontainers.image.title": "tiny", "io.deis.oras.content.unpack": "true"}
    layer = Layer(make_tar({f"tiny/{n}": c for n, c in FILES.items()}), annotations=annotations)
    fetch(make_target(registry, registry.push(layer), path), make_settings())
    assert content_of(path) == FILES


def test_a_modelpack_s_files_have_their_names(registry: Registry, path: Path) -> None:
    layers = [
        Layer(content, "application/vnd.cncf.model.weight.v1.raw", {"org.cncf.model.filepath": name})
        for name, content in FILES.items()
    ]
    fetch(make_target(registry, registry.push(*layers), path), make_settings())
    assert content_of(path) == FILES


def test_an_index_leads_to_its_only_manifest(registry: Registry, path: Path) -> None:
    manifest = registry.push(*ARTIFACT)
    index = registry.push_manifest({"schemaVersion": 2, "mediaType": INDEX, "manifests": [{"digest": manifest}]})
    fetch(make_target(registry, index, path), make_settings())
    assert content_of(path) == FILES


def test_a_bearer_token_is_asked_for_and_renewed_when_it_has_run_out(path: Path) -> None:
    with Registry(password="pa55word", token_uses=2) as registry:
        digest = registry.push(*ARTIFACT)
        # Real tokens run out by time; with two uses, neighbours would use up the one that was just renewed.
        one_by_one = DownloadSpec(connections=1)
        credentials = Credentials(username="robot", password="pa55word")
        fetch(make_target(registry, digest, path), make_settings(one_by_one, credentials=credentials))
        assert len(registry.asked("/token")) > 1
        assert {asked.authorization for asked in registry.asked("/storage/*")} == {None}
    assert content_of(path) == FILES


def test_a_registry_that_refuses_every_token_is_asked_for_no_more_of_them_than_are_tried(path: Path) -> None:
    """The first request shows none; after the last refusal another token would be asked for in vain."""
    with Registry(password="pa55word", token_uses=0) as registry:
        digest = registry.push(*ARTIFACT)
        credentials = Credentials(username="robot", password="pa55word")
        error = failure(make_target(registry, digest, path), make_settings(credentials=credentials))
        assert len(registry.asked("*/manifests/*")) == TRIES_MAX
        assert len(registry.asked("/token")) == TRIES_MAX - 1
    assert error.reason is Reason.DOWNLOAD_UNAUTHORIZED


def test_a_basic_challenge_is_answered(path: Path) -> None:
    with Registry(password="pa55word", basic=True) as registry:
        digest = registry.push(*ARTIFACT)
        credentials = Credentials(username="robot", password="pa55word")
        fetch(make_target(registry, digest, path), make_settings(credentials=credentials))
    assert content_of(path) == FILES


@pytest.mark.parametrize("credentials", [Credentials(), Credentials(username="robot", password="wrong-one")])
def test_missing_or_wrong_credentials_are_unauthorized(path: Path, credentials: Credentials) -> None:
    with Registry(password="pa55word") as registry:
        error = failure(make_target(registry, registry.push(*ARTIFACT), path), make_settings(credentials=credentials))
    assert error.reason is Reason.DOWNLOAD_UNAUTHORIZED
    assert "wrong-one" not in error.message


def test_a_digest_that_is_not_there_is_not_found(registry: Registry, path: Path) -> None:
    error = failure(make_target(registry, f"sha256:{'0' * 64}", path), make_settings())
    assert error.reason is Reason.DOWNLOAD_NOT_FOUND
    assert "MANIFEST_UNKNOWN" in error.message


def test_a_manifest_that_is_not_the_named_one_is_corrupt(registry: Registry, path: Path) -> None:
    digest = registry.push(*ARTIFACT)
    registry.faults.append(Fault(path="*/manifests/*", flip=5))
    error = failure(make_target(registry, digest, path), make_settings())
    assert error.reason is Reason.DOWNLOAD_CORRUPT
    assert digest in error.message


def test_a_layer_that_stays_wrong_is_corrupt(registry: Registry, path: Path) -> None:
    digest = registry.push(*ARTIFACT)
    registry.faults.append(Fault(path="/storage/*", flip=1))
    assert failure(make_target(registry, digest, path), make_settings()).reason is Reason.DOWNLOAD_CORRUPT
    assert not path.exists()


def test_a_damaged_file_of_an_archive_is_repaired_from_it(registry: Registry, path: Path) -> None:
    target = make_target(registry, registry.push(image_layer({f"m/{n}": c for n, c in FILES.items()})), path)
    fetch(target, make_settings())
    (path / "config.json").write_bytes(b"{}")
    fetch(target, make_settings())
    assert content_of(path) == FILES


def test_a_tag_is_not_enough(registry: Registry, path: Path) -> None:
    target = Target(uri=f"oci://{registry.host}/models/tiny:latest", revision=None, path=path)
    error = failure(target, make_settings())
    assert "named by digest" in error.message


ZSTD_LAYER = "application/vnd.oci.image.layer.v1.tar+zstd"


def zstd_layer(files: dict[str, bytes]) -> Layer:
    return Layer(zstd.compress(make_tar(files, mode="w")), ZSTD_LAYER)


def test_layers_compressed_with_zstd_are_unpacked_beside_others(registry: Registry, path: Path) -> None:
    weights = zstd_layer({"models/model.safetensors": WEIGHTS})
    texts = image_layer({f"models/{name}": FILES[name] for name in FILES if name != "model.safetensors"})
    packed = Layer(
        zstd.compress(make_tar({"models/added_tokens.json": b"{}"}, mode="w")),
        annotations={"org.opencontainers.image.title": "more.tar.zst"},
    )
    fetch(make_target(registry, registry.push(weights, texts, packed), path), make_settings())
    assert content_of(path) == {**FILES, "added_tokens.json": b"{}"}


def test_a_layer_in_many_frames_with_an_index_is_unpacked(registry: Registry, path: Path) -> None:
    """Builders write such layers so that parts of them can be fetched alone; what they skip may come first, too."""
    tar = make_tar({f"models/{name}": content for name, content in FILES.items()}, mode="w")
    skipped = b"\x50\x2a\x4d\x18" + (3).to_bytes(4, "little") + b"toc"
    frames = [zstd.compress(tar[at : at + 10_000]) for at in range(0, len(tar), 10_000)]
    digest = registry.push(Layer(skipped + b"".join(frames) + skipped, ZSTD_LAYER))
    fetch(make_target(registry, digest, path), make_settings())
    assert content_of(path) == FILES


@pytest.mark.parametrize("damage", ["cut", "garbage", "wide"])
def test_a_zstd_layer_that_cannot_be_unpacked_is_corrupt_and_nothing_is_published(
    registry: Registry, path: Path, damage: str
) -> None:
    """A frame may also want more memory than its reader has: it says so in its header."""
    tar = make_tar({f"m/{name}": content for name, content in FILES.items()}, mode="w")
    whole = zstd.compress(tar)
    wider = zstd.ZstdCompressor(options={zstd.CompressionParameter.window_log: ZSTD_WINDOW_LOG_MAX + 1})
    wide = wider.compress(tar) + wider.flush()  # in one call it would know that there is no need
    content = {"cut": whole[:-20], "garbage": whole[:30] + b"garbage" + whole[37:], "wide": wide}[damage]
    error = failure(make_target(registry, registry.push(Layer(content, ZSTD_LAYER)), path), make_settings())
    assert error.reason is Reason.DOWNLOAD_CORRUPT, error.message
    assert not path.exists()


@pytest.mark.parametrize("name", ["../evil.json", "/etc/evil.json", "a\nb.json", "config.json/../../evil.json"])
def test_a_layer_whose_name_leads_out_of_the_folder_is_left_out(registry: Registry, path: Path, name: str) -> None:
    fetch(make_target(registry, registry.push(*ARTIFACT, file_layer(name, b"{}")), path), make_settings())
    assert content_of(path) == FILES
    assert not list(path.parent.parent.rglob("evil*"))
