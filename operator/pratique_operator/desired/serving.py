"""The document a pod serves from: the CR mapped onto the contract's ``ServingSpec``."""

import re
from typing import Any, Final

from pratique_contract import constants, serving
from pratique_contract.record import ReleaseRecord
from pratique_operator import names
from pratique_operator.api.engine_types import EngineSpec
from pratique_operator.api.schema import quantity_value
from pratique_operator.api.source_types import DownloadSpec
from pratique_operator.api.types import InferenceServiceSpec
from pratique_operator.desired.sources import cache_size_limit, declared_sources

_IMAGE_DIGEST: Final = re.compile(r"@(sha256:[0-9a-f]{64})$")


def build_serving(
    spec: InferenceServiceSpec,
    *,
    service: str,
    namespace: str,
    image: str,
    chat_template: str | None,
    record: ReleaseRecord | None,
) -> serving.ServingSpec:
    """Map the spec; the revision is filled in once it is known, because it is a hash of this document too."""
    secret_template = spec.chat_template.secret_key_ref if spec.chat_template is not None else None
    return serving.ServingSpec(
        service=service,
        namespace=namespace,
        revision="",
        served_model_name=spec.model.name or service,
        model=_build_model(spec),
        tokenizer=_build_tokenizer(spec),
        chat_template=chat_template,
        chat_template_path=None if secret_template is None else f"{names.TEMPLATE_DIR}/{secret_template.key}",
        quantization=serving.QuantizationSpec(
            method=spec.quantization.method, dtype=spec.quantization.dtype, config=spec.quantization.settings()
        ),
        engine=_build_engine(spec.engine, image),
        release=serving.ReleaseSpec(
            fingerprint=spec.release.fingerprint or (None if record is None else record.fingerprint),
            policy=spec.release.policy,
            record_path=None if record is None else constants.RECORD_PATH,
            reverify=serving.ReverifySpec(**_given(spec.release.reverify)),
        ),
        download=_build_download(spec),
        limits=serving.LimitsSpec(**_given(spec.limits)),
        drain=serving.DrainSpec(
            pre_stop_seconds=spec.drain.pre_stop_seconds, deadline_seconds=spec.drain.deadline_seconds
        ),
        api_keys_path=None if spec.auth is None else names.KEYS_DIR,
        **_without_none(probe_timeout_seconds=spec.startup.probe_timeout_seconds),
    )


def _build_model(spec: InferenceServiceSpec) -> serving.ModelSource:
    model, *others = declared_sources(spec)
    adapters = tuple(
        serving.AdapterSource(
            name=adapter.name, path=source.path, uri=source.uri, revision=source.revision, mode=adapter.mode
        )
        for adapter, source in zip(spec.model.adapters or (), others, strict=False)
    )
    return serving.ModelSource(
        path=model.path,
        uri=model.uri,
        revision=model.revision,
        adapters=adapters,
        trust_remote_code=spec.model.trust_remote_code,
    )


def _build_tokenizer(spec: InferenceServiceSpec) -> serving.TokenizerSource | None:
    if spec.tokenizer is None:
        return None
    source = declared_sources(spec)[-1]
    return serving.TokenizerSource(path=source.path, uri=source.uri, revision=source.revision)


def _build_download(spec: InferenceServiceSpec) -> serving.DownloadSpec:
    if not any(source.fetched for source in declared_sources(spec)):
        return serving.DownloadSpec()
    download = spec.download or DownloadSpec()
    limit = cache_size_limit(download.cache)
    size = None if limit is None else quantity_value(limit)
    return serving.DownloadSpec(
        **_without_none(
            cache_bytes_max=None if size is None else max(1, int(size)),
            hub_endpoint=download.hub_endpoint,
            s3_endpoint=download.s3_endpoint,
            s3_region=download.s3_region,
            credentials_path=None if download.credentials_secret_ref is None else constants.CREDENTIALS_DIR,
            connections=download.connections,
            stall_seconds=download.stall_seconds,
        )
    )


def _build_engine(engine: EngineSpec, image: str) -> serving.EngineSpec:
    digest = _IMAGE_DIGEST.search(image)
    cache = engine.kv_cache
    memory = quantity_value(cache.memory) if cache is not None and cache.memory is not None else None
    kv_cache: dict[str, Any] = {}
    if cache is not None:
        kv_cache = _without_none(
            blocks=cache.blocks,
            memory_bytes=None if memory is None else int(memory),
            block_size=cache.block_size,
            dtype=cache.dtype,
        )
    return serving.EngineSpec(
        name=engine.name,
        image_digest=None if digest is None else digest[1],
        kv_cache=serving.KvCacheSpec(**kv_cache),
        args=engine.args or (),
        **_without_none(
            max_model_len=engine.max_model_len,
            max_num_seqs=engine.max_num_seqs,
            max_batched_tokens=engine.max_batched_tokens,
        ),
    )


def _without_none(**values: Any) -> dict[str, Any]:
    """Leave out what the user did not say, so that the server's own default applies."""
    return {name: value for name, value in values.items() if value is not None}


def _given(model: Any) -> dict[str, Any]:
    return {} if model is None else dict(model.model_dump(exclude_none=True))
