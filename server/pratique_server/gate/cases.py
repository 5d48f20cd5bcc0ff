"""Send golden cases through this pod's own public path and hold the answers against what was recorded.

Used by the gate before the pod is ready and by idle re-verification after: the same requests, the same comparison.
"""

import asyncio
import secrets
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final, Protocol

from pratique_contract.golden import GoldenCase
from pratique_contract.manifest import ReleaseManifest
from pratique_server.gate.client import ProbeClient
from pratique_server.gate.errors import BusyError, CheckFailedError
from pratique_server.gate.outputs import check_answer, check_golden
from pratique_server.gate.stream import StreamReport
from pratique_server.text.protocols import ConversationRenderer, TokenDecoder

BUSY_RETRY_SECONDS: Final = 0.2

Sleep = Callable[[float], Awaitable[None]]


class LoadedRenderer(ConversationRenderer, Protocol):
    """The server's own renderer with the tokenizer it renders for."""

    @property
    def tokenizer(self) -> TokenDecoder: ...
    @property
    def template_text(self) -> str | None: ...


def _no_budget(_: float) -> None:
    """Nobody counts the time."""


class CaseRunner:
    """One run of cases. ``waited`` is told of every wait that overload caused; ``last_refusal`` is why a request was last put off."""

    def __init__(
        self,
        client: ProbeClient,
        *,
        manifest: ReleaseManifest,
        renderer: LoadedRenderer,
        waited: Callable[[float], None] = _no_budget,
        sleep: Sleep = asyncio.sleep,
    ) -> None:
        self._client = client
        self._manifest = manifest
        self._decode = renderer.tokenizer.decode
        self._waited = waited
        self._sleep = sleep
        self._run_id = secrets.token_hex(4)
        self.last_refusal: str | None = None
        self.compared = 0

    async def run(self, case: GoldenCase) -> str:
        """Raises ``CheckFailedError`` when the answer is not the recorded one; adds to ``compared`` what it proved."""
        report, compared = await self._ask_case(case, name=case.name, exact=True)
        self.compared += compared
        return f"{len(report.ids)} ids, {report.finish_reason}"

    async def run_again(self, case: GoldenCase, *, exact: bool) -> None:
        """The same for a case that was compared before: it proves nothing new by itself. ``exact`` False allows what rounding may do."""
        await self._ask_case(case, name=f"{case.name}+company", exact=exact)

    async def _ask_case(self, case: GoldenCase, *, name: str, exact: bool) -> tuple[StreamReport, int]:
        report = await self.ask(case.messages, max_tokens=case.max_tokens, name=name)
        compared = check_golden(
            report,
            case,
            decode=self._decode,
            dtype=self._manifest.quantization.dtype,
            device_class=self._manifest.runtime.device_class,
            engine_build=self._manifest.engine.build,
            exact=exact,
        )
        return report, compared

    async def keep_busy(
        self,
        *,
        messages: Sequence[dict[str, Any]],
        max_tokens: int,
        name: str,
        rules: Mapping[str, Any],
        begun: asyncio.Event,
    ) -> None:
        """One request with rules of its own, whose answer only has to be well-formed. ``begun`` is set when the answer begins."""
        await self._send(messages, max_tokens=max_tokens, name=name, rules=rules, begun=begun)

    async def ask(
        self, messages: Sequence[dict[str, Any]], *, max_tokens: int, name: str, prompt_tokens: int | None = None
    ) -> StreamReport:
        """One greedy request whose answer agrees with itself. ``prompt_tokens`` None: whatever the server says its prompt was."""
        report = await self._send(messages, max_tokens=max_tokens, name=name)
        expected = len(report.prompt_ids) if prompt_tokens is None else prompt_tokens
        check_answer(report, prompt_tokens=expected, name=name, decode=self._decode)
        return report

    async def _send(
        self,
        messages: Sequence[dict[str, Any]],
        *,
        max_tokens: int,
        name: str,
        rules: Mapping[str, Any] | None = None,
        begun: asyncio.Event | None = None,
    ) -> StreamReport:
        """Sent until the server takes it: busy is not wrong."""
        attempt = 0
        while True:
            attempt += 1
            try:
                return await self._client.stream(
                    messages=messages,
                    max_tokens=max_tokens,
                    fingerprint=self._manifest.fingerprint,
                    request_id=f"gate-{self._run_id}-{name}-{attempt}",
                    rules=rules,
                    begun=begun,
                )
            except BusyError as error:
                self.last_refusal = str(error)
                if error.saturated:
                    self._waited(BUSY_RETRY_SECONDS)
                await self._sleep(BUSY_RETRY_SECONDS)
            except CheckFailedError as error:
                raise error.of(f"Case {name}") from error
