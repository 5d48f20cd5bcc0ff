"""Messages → text → ids: the one way a prompt is made, used by the API, by ``/render`` and by the gate."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pratique_server.errors import TemplateError
from pratique_server.text.template import ChatTemplate
from pratique_server.text.tokenizer import Tokenizer


@dataclass(frozen=True, kw_only=True)
class Rendered:
    """The exact prompt text and its ids."""

    text: str
    ids: list[int]


class Renderer:
    """Pins one template and one tokenizer together. Blocking work: call it from a worker thread, not from the event loop."""

    def __init__(self, template: ChatTemplate | None, tokenizer: Tokenizer) -> None:
        self.template = template
        self.tokenizer = tokenizer

    @property
    def template_text(self) -> str | None:
        """The template as it was loaded, or None when there is none."""
        return None if self.template is None else self.template.text

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None = None,
        *,
        add_generation_prompt: bool = True,
    ) -> Rendered:
        """Raises ``TemplateError`` when the template refuses the messages or there is none."""
        if self.template is None:
            raise TemplateError("This model has no chat template", param="messages")
        text = self.template.render(
            messages,
            tools=tools,
            add_generation_prompt=add_generation_prompt,
            special_tokens=self.tokenizer.special_tokens,
        )
        return Rendered(text=text, ids=self.tokenizer.encode(text))
