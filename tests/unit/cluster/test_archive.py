from __future__ import annotations

import hashlib
import io
import json
import os
import tarfile
from pathlib import Path

import pytest

from e2e.cluster import archive
from e2e.cluster.archive import Image, Layer, Source


def make_tree(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def make_layer(folder: Path, name: str, text: str = "x", compression: str = "none") -> Layer:
    source = Source(make_tree(folder / f"{name}-tree", {"file": text}))
    return archive.write_layer(folder / name, [source], compression=compression)


def names(file: Path) -> list[str]:
    with tarfile.open(file) as tar:
        return tar.getnames()


@pytest.mark.parametrize("compression", ["none", "gzip"])
def test_the_same_content_gives_the_same_bytes(tmp_path: Path, compression: str) -> None:
    first = make_tree(tmp_path / "1", {"b/x": "1", "a": "2"})
    second = make_tree(tmp_path / "2", {"a": "2", "b/x": "1"})
    os.utime(second / "a", (5, 5))
    one = archive.write_layer(tmp_path / "l1", [Source(first)], compression=compression)
    two = archive.write_layer(tmp_path / "l2", [Source(second)], compression=compression)
    assert (one.digest, one.diff_id, one.size) == (two.digest, two.diff_id, two.size)
    assert one.digest == f"sha256:{hashlib.sha256((tmp_path / 'l1').read_bytes()).hexdigest()}"
    assert one.size == (tmp_path / "l1").stat().st_size


def test_compression_changes_the_digest_and_not_the_content(tmp_path: Path) -> None:
    plain = make_layer(tmp_path, "plain")
    packed = make_layer(tmp_path, "packed", compression="gzip")
    assert plain.diff_id == packed.diff_id
    assert plain.digest != packed.digest
    assert names(packed.file) == ["file"]


def test_entries_are_sorted_and_belong_to_root_at_time_zero(tmp_path: Path) -> None:
    layer = archive.write_layer(
        tmp_path / "l", [Source(make_tree(tmp_path / "t", {"z": "", "d/y": ""}), at="opt")], compression="none"
    )
    with tarfile.open(layer.file) as tar:
        members = tar.getmembers()
    assert [member.name for member in members] == ["opt/d", "opt/d/y", "opt/z"]
    assert {(member.uid, member.gid, member.mtime) for member in members} == {(0, 0, 0)}


def test_the_later_source_wins_and_excluded_folders_vanish(tmp_path: Path) -> None:
    below = make_tree(tmp_path / "below", {"etc/config": "old", "torch/include/h": "", "torch/init.py": ""})
    above = make_tree(tmp_path / "above", {"etc/config": "new"})
    sources = [Source(below, exclude=("torch/include",)), Source(above)]
    layer = archive.write_layer(tmp_path / "l", sources, compression="none")
    assert names(layer.file) == ["etc", "etc/config", "torch", "torch/init.py"]
    with tarfile.open(layer.file) as tar:
        config = tar.extractfile("etc/config")
        assert config is not None
        assert config.read() == b"new"


def test_links_stay_links_and_pipes_are_left_out(tmp_path: Path) -> None:
    tree = make_tree(tmp_path / "t", {"a": ""})
    (tree / "link").symlink_to("/usr/bin/python3")
    os.mkfifo(tree / "pipe")
    layer = archive.write_layer(tmp_path / "l", [Source(tree)], compression="none")
    with tarfile.open(layer.file) as tar:
        assert tar.getnames() == ["a", "link"]
        assert tar.getmember("link").linkname == "/usr/bin/python3"


def test_a_layer_is_remembered_beside_its_file(tmp_path: Path) -> None:
    layer = make_layer(tmp_path, "l")
    layer.save(tmp_path / "layer.json")
    assert Layer.load(tmp_path / "layer.json", file=layer.file) == layer


def test_docker_archive_names_every_image_before_its_manifest(tmp_path: Path) -> None:
    images = [
        Image(("registry.k8s.io/pause:3.10", "registry.k8s.io/pause:3.10.1"), (make_layer(tmp_path, "a", "1"),), {}),
        Image(("docker.io/kindest/kindnetd:v1",), (make_layer(tmp_path, "b", "2"),), {}),
    ]
    archive.write_docker_archive(tmp_path / "images.tar", images)
    with tarfile.open(tmp_path / "images.tar") as tar:
        assert tar.getnames()[:2] == ["repositories", "manifest.json"]
        repositories = json.loads(tar.extractfile("repositories").read())  # type: ignore[union-attr]
        manifest = json.loads(tar.extractfile("manifest.json").read())  # type: ignore[union-attr]
        present = set(tar.getnames())
    assert sorted(repositories["registry.k8s.io/pause"]) == ["3.10", "3.10.1"]
    assert list(repositories["docker.io/kindest/kindnetd"]) == ["v1"]
    assert [entry["RepoTags"] for entry in manifest] == [list(image.references) for image in images]
    assert all({entry["Config"], *entry["Layers"]} <= present for entry in manifest)


def oci(images: list[Image], without: set[str]) -> tuple[dict[str, bytes], int]:
    buffer = io.BytesIO()
    written = archive.write_oci_archive(buffer, images, without=without)
    buffer.seek(0)
    with tarfile.open(fileobj=buffer) as tar:
        return {m.name: tar.extractfile(m).read() for m in tar.getmembers()}, written  # type: ignore[union-attr]


def test_whole_oci_archive_holds_every_blob_under_its_digest(tmp_path: Path) -> None:
    base, code = make_layer(tmp_path, "base", "base"), make_layer(tmp_path, "code", "code")
    image = Image(("localhost/pratique-server:1",), (base, code), {"User": "65532:65532"})
    files, _ = oci([image], set())
    index = json.loads(files["index.json"])
    descriptor = index["manifests"][0]
    assert descriptor["annotations"]["io.containerd.image.name"] == "localhost/pratique-server:1"
    manifest = json.loads(files[f"blobs/sha256/{descriptor['digest'].removeprefix('sha256:')}"])
    for part in (manifest["config"], *manifest["layers"]):
        blob = files[f"blobs/sha256/{part['digest'].removeprefix('sha256:')}"]
        assert (archive.digest(blob), len(blob)) == (part["digest"], part["size"])
    config = json.loads(files[f"blobs/sha256/{manifest['config']['digest'].removeprefix('sha256:')}"])
    assert config["rootfs"]["diff_ids"] == [base.diff_id, code.diff_id]
    assert config["config"]["User"] == "65532:65532"


def test_thin_oci_archive_leaves_out_what_the_receiver_has_and_still_names_it(tmp_path: Path) -> None:
    base, code = make_layer(tmp_path, "base", "base"), make_layer(tmp_path, "code", "code")
    image = Image(("localhost/pratique-server:2",), (base, code), {})
    whole, bytes_whole = oci([image], set())
    thin, bytes_thin = oci([image], {base.digest})
    assert set(whole) - set(thin) == {f"blobs/sha256/{base.digest.removeprefix('sha256:')}"}
    assert thin["index.json"] == whole["index.json"]
    assert bytes_whole - bytes_thin == base.size


def test_images_that_share_layers_carry_them_once(tmp_path: Path) -> None:
    base = make_layer(tmp_path, "base")
    images = [Image((f"localhost/{n}:1",), (base,), {"Labels": {"n": n}}) for n in ("a", "b")]
    files, _ = oci(images, set())
    assert len(files) == 2 + 1 + 4  # layout and index, the layer, two configurations and two manifests
