"""Text: the pinned chat template, the tokenizer, and the way back from ids to text. No HTTP, no engine."""

from pratique_server.text.detokenizer import Detokenizer
from pratique_server.text.renderer import Rendered, Renderer
from pratique_server.text.stop_strings import StopStrings
from pratique_server.text.template import ChatTemplate, TemplateError, load_chat_template
from pratique_server.text.tokenizer import Tokenizer, TokenizerError

__all__ = [
    "ChatTemplate",
    "Detokenizer",
    "Rendered",
    "Renderer",
    "StopStrings",
    "TemplateError",
    "Tokenizer",
    "TokenizerError",
    "load_chat_template",
]
