"""The first pod under TrustFirst: there is nothing to match yet, so it must agree with itself, twice, and say what it is.

First the same greedy request gives the same answer two times; then the pod makes its own record with its own engine and proves
it through its own HTTP path like any other. Nobody has approved it: later pods must match it, and a person may approve it.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from pratique_contract.manifest import ReleaseManifest
from pratique_contract.reasons import Reason
from pratique_contract.record import ReleaseRecord
from pratique_server.artifacts.errors import RecordingError
from pratique_server.gate.cases import CaseRunner, LoadedRenderer
from pratique_server.gate.differences import first_difference, show_ids
from pratique_server.gate.errors import CheckFailedError
from pratique_server.gate.identity import check_manifest, describe_golden
from pratique_server.gate.outputs import require_enough
from pratique_server.gate.rendering import check_all_renderings
from pratique_server.release.prompts import FIXTURES

ANSWER_TOKENS: Final = 8


class TrustFirst:
    """``make_record`` makes the record of what this pod has loaded."""

    def __init__(
        self,
        runner: CaseRunner,
        *,
        manifest: ReleaseManifest,
        renderer: LoadedRenderer,
        make_record: Callable[[], Awaitable[ReleaseRecord]] | None,
    ) -> None:
        self._runner = runner
        self._manifest = manifest
        self._renderer = renderer
        self._make_record = make_record

    async def check_answer(self) -> str:
        """The answer must agree with itself and come out the same twice."""
        name, messages, _ = FIXTURES[0]
        rendered = await asyncio.to_thread(self._renderer.render, messages, None)
        first, second = [
            await self._runner.ask(
                messages, max_tokens=ANSWER_TOKENS, prompt_tokens=len(rendered.ids), name=f"{name}-{attempt}"
            )
            for attempt in ("first", "second")
        ]
        index = first_difference(first.ids, second.ids)
        if index is not None:
            raise CheckFailedError(
                Reason.OUTPUT_MISMATCH,
                f"The same greedy request gave two different answers: {first.text!r} and then {second.text!r}",
                expected=show_ids(first.ids, index),
                observed=show_ids(second.ids, index),
            )
        return f"{len(first.ids)} ids, twice the same"

    async def record_itself(self) -> tuple[ReleaseRecord, str]:
        """The record made here, proved through the public path."""
        assert self._make_record is not None  # the plan has this step only with it
        try:
            record = await self._make_record()
        except RecordingError as error:
            raise CheckFailedError(
                Reason.GOLDEN_MISSING,
                f"This pod could not make the record that later pods would have to match: {error}",
            ) from error
        check_manifest(record, self._manifest, template=self._renderer.template_text)
        await asyncio.to_thread(check_all_renderings, record, self._renderer, self._renderer.tokenizer.decode)
        for case in record.golden.cases:
            await self._runner.run(case)
        require_enough(
            self._runner.compared,
            dtype=self._manifest.quantization.dtype,
            device_class=self._manifest.runtime.device_class,
        )
        return record, f"made and proved here: {describe_golden(record.golden)}"
