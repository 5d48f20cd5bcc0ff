"""Text and ids as the gate and the recorder ask for them: from the server's own rendering and decoding, or a test's."""

from collections.abc import Sequence
from typing import Any, Protocol


class RenderedText(Protocol):
    @property
    def text(self) -> str: ...
    @property
    def ids(self) -> Sequence[int]: ...


class ConversationRenderer(Protocol):
    """Messages to text and ids, as the server's own request path does it; raises ``TemplateError`` when refused."""

    def render(
        self, messages: Sequence[dict[str, Any]], tools: Sequence[dict[str, Any]] | None = None
    ) -> RenderedText: ...


class TokenDecoder(Protocol):
    """Ids to text; without the special tokens, as clients are shown it, or with them."""

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = True) -> str: ...
