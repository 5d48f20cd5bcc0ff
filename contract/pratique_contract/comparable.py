"""Which fields of two manifests cannot be compared, and why: a release with such a field is *not reproducible*. Pure.

A branch name, an engine of unknown build or a file without a digest says nothing, even when both sides say the same. A field that only
one side knows (an image's digest) cannot be judged either. Each finding is ``path: sentence``; the path begins with the part.
"""

import re
from collections.abc import Iterator
from typing import Any, Final

from pratique_contract.canonical import is_digest
from pratique_contract.manifest import MANIFEST_VERSION, ReleaseManifest

_COMMIT: Final = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
# ``record.RECORD_VERSION``, which this module cannot import: a record holds a review.
_RECORD_VERSION: Final = "pratique.dev/record/v1"


def find_not_comparable(reference: ReleaseManifest, candidate: ReleaseManifest) -> tuple[str, ...]:
    """Findings in ``PARTS`` order, each once."""
    sides = {"the reference": reference, "the candidate": candidate}
    found = [finding for side, manifest in sides.items() for finding in _unknown(side, manifest)]
    found += _known_to_one_side(reference, candidate)
    return tuple(dict.fromkeys(found))


def find_unreadable(value: Any) -> tuple[str, ...]:
    """What makes a document (a record's or a manifest's plain JSON) impossible to compare before it can even be read as one of ours:
    another contract version, or a file that is listed without a digest. Empty when nothing of the kind is there."""
    if not isinstance(value, dict):
        return ()
    found = []
    manifest = value.get("manifest", value)
    if "manifest" in value and value.get("version", _RECORD_VERSION) != _RECORD_VERSION:
        found.append(f"version: a record of {value['version']!r} is not of the contract version that is compared here")
    if not isinstance(manifest, dict):
        return tuple(found)
    version = manifest.get("version", MANIFEST_VERSION)
    if version != MANIFEST_VERSION:
        found.append(f"version: {version!r} is not the contract version that is compared here ({MANIFEST_VERSION})")
    return (*found, *_unhashed(manifest))


def _unhashed(manifest: dict[str, Any]) -> Iterator[str]:
    adapters = manifest.get("adapters")
    entries = adapters.get("adapters") if isinstance(adapters, dict) else None
    named = [(f"adapters[{a.get('name')}]", a) for a in entries or () if isinstance(a, dict)]
    for path, part in [("model", manifest.get("model")), *named, ("tokenizer", manifest.get("tokenizer"))]:
        files = part.get("files") if isinstance(part, dict) else None
        for file in files if isinstance(files, list) else ():
            if isinstance(file, dict) and not is_digest(str(file.get("sha256"))):
                yield f"{path}.files[{file.get('path')}].sha256: the file is listed without a digest"


def _unknown(side: str, manifest: ReleaseManifest) -> Iterator[str]:
    """Fields that name something whose content may change or is not known."""
    revisions = {"model.revision": manifest.model.revision}
    revisions |= {f"adapters[{entry.name}].revision": entry.revision for entry in manifest.adapters.adapters}
    revisions["tokenizer.revision"] = manifest.tokenizer.revision
    for path, revision in revisions.items():
        if not _is_fixed(revision):
            yield f"{path}: {revision!r} of {side} is neither a commit nor a digest, and may name other bytes tomorrow"
    if not manifest.model.files:
        yield f"model.files: no file of {side} was hashed"
    engine = manifest.engine
    if not _is_fixed(engine.build) and engine.image_digest is None:
        yield f"engine.build: {engine.build!r} of {side} names no build, and no image digest stands in for it"


def _known_to_one_side(reference: ReleaseManifest, candidate: ReleaseManifest) -> Iterator[str]:
    """On both sides or on neither: without a digest of the image, the digest of the engine's source says which program it is."""
    pairs = {
        "tokenizer.compiled": (reference.tokenizer.compiled, candidate.tokenizer.compiled),
        "engine.imageDigest": (reference.engine.image_digest, candidate.engine.image_digest),
    }
    for path, (left, right) in pairs.items():
        if (left is None) != (right is None):
            yield f"{path}: only {'the candidate' if left is None else 'the reference'} has one"


def _is_fixed(revision: str) -> bool:
    return is_digest(revision) or _COMMIT.fullmatch(revision) is not None
