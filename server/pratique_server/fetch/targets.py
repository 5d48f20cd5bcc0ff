"""What is to be fetched, from a serving document and the release record beside it. Pure.

Two sources that name the same thing share a folder (the model's own tokenizer given again): they are fetched once, with what both need.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from pratique_contract.manifest import ReleaseManifest
from pratique_contract.record import ReleaseRecord
from pratique_contract.serving import ServingSpec
from pratique_contract.sources import is_fetched
from pratique_server.fetch.errors import CorruptError
from pratique_server.fetch.expected import Expected, expected_of_adapter, expected_of_model, expected_of_tokenizer
from pratique_server.fetch.secrets import clean_url
from pratique_server.fetch.selection import Wanted

_LONG_DIGEST: Final = re.compile(r"(sha256:[0-9a-f]{12})[0-9a-f]{52}")


@dataclass(frozen=True, kw_only=True)
class Target:
    """One folder to fill."""

    uri: str
    revision: str | None
    path: Path
    wanted: Wanted = field(default_factory=Wanted)
    expected: Expected = field(default_factory=lambda: Expected({}))

    @property
    def name(self) -> str:
        """URI and revision for a sentence, without credentials and with the first digits of a digest."""
        revision = self.revision
        if not revision or revision in self.uri:
            return _LONG_DIGEST.sub(r"\1", clean_url(self.uri))
        digits = 12 + (len("sha256:") if revision.startswith("sha256:") else 0)
        return f"{clean_url(self.uri)} at {revision[:digits]}"

    def not_recorded(self, difference: str) -> CorruptError:
        return CorruptError(f"{self.name} is not the recorded release: {difference}")


def find_targets(spec: ServingSpec, record: ReleaseRecord | None) -> tuple[Target, ...]:
    """Every fetched source of the document, each folder once, the model first."""
    found: dict[Path, Target] = {}
    for target in _declared(spec, None if record is None else record.manifest):
        other = found.get(target.path)
        found[target.path] = target if other is None else _joined(other, target)
    return tuple(target for target in found.values() if is_fetched(target.uri))


def _declared(spec: ServingSpec, manifest: ReleaseManifest | None) -> Iterator[Target]:
    nothing = Expected({})
    of_tokenizer = nothing if manifest is None else expected_of_tokenizer(manifest)
    of_model = nothing if manifest is None else expected_of_model(manifest)
    model = spec.model
    yield Target(
        uri=model.uri,
        revision=model.revision,
        path=Path(model.path),
        wanted=Wanted(code=model.trust_remote_code),
        expected=of_model if spec.tokenizer is not None else of_model.joined(of_tokenizer),
    )
    for adapter in model.adapters:
        expected = nothing if manifest is None else expected_of_adapter(manifest, adapter.name)
        yield Target(uri=adapter.uri, revision=adapter.revision, path=Path(adapter.path), expected=expected)
    if spec.tokenizer is not None:
        yield Target(
            uri=spec.tokenizer.uri,
            revision=spec.tokenizer.revision,
            path=Path(spec.tokenizer.path),
            wanted=Wanted(weights=False, code=model.trust_remote_code),
            expected=of_tokenizer,
        )


def _joined(one: Target, other: Target) -> Target:
    return Target(
        uri=one.uri,
        revision=one.revision,
        path=one.path,
        wanted=one.wanted.union(other.wanted),
        expected=one.expected.joined(other.expected),
    )
