"""The pinned chat template: messages in, exact text out. The text of the template is identity; where it came from is not.

Order of sources: the declared text, ``chat_template.jinja``, ``tokenizer_config.json``. Every failure while rendering is a
``TemplateError`` (the client's 400), never an internal error: templates raise on message orders they do not accept.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import jinja2
from jinja2 import meta

from pratique_contract import ServingSpec
from pratique_contract.canonical import JSON_ERRORS, digest_bytes
from pratique_server.artifacts.files import is_there
from pratique_server.errors import TemplateError
from pratique_server.text.sandbox import Budget, BudgetExceededError, make_environment, render_within

__all__ = ["ChatTemplate", "TemplateError", "load_chat_template"]

RENDER_SECONDS_MAX: Final = 1.0
RENDER_CHARACTERS_MAX: Final = 8_000_000
MESSAGE_LENGTH_MAX: Final = 300
TEMPLATE_FILE: Final = "chat_template.jinja"
TOKENIZER_CONFIG_FILE: Final = "tokenizer_config.json"
# The names under which clients send a model's reasoning; templates read the first or, in one family, the second.
REASONING_FIELDS: Final = ("reasoning_content", "thinking", "reasoning")


class ChatTemplate:
    """A compiled template. Raises ``TemplateError`` when the text is not valid Jinja. Safe to use from several threads."""

    def __init__(self, text: str, origin: str = "inline") -> None:
        self.text = text
        self.origin = origin
        environment = make_environment()
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise TemplateError(f"The chat template ({origin}) is not valid Unicode: {_shorten(error)}") from error
        try:
            self._variables = meta.find_undeclared_variables(environment.parse(text))
            self._template = environment.from_string(text)
        except (jinja2.TemplateError, RecursionError) as error:
            raise TemplateError(
                f"The chat template ({origin}) is not valid: {_shorten(error)}{_line(error)}"
            ) from error

    @property
    def sha256(self) -> str:
        """``sha256:`` digest of the exact text, as the manifest holds it."""
        return digest_bytes(self.text.encode())

    @property
    def uses_tools(self) -> bool:
        """Whether the template reads ``tools`` at all; when not, sending tools would be silently ignored."""
        return "tools" in self._variables

    @property
    def reads_clock(self) -> bool:
        """Whether the template mentions ``strftime_now``, which is undefined here (see ``sandbox``)."""
        return "strftime_now" in self._variables

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        special_tokens: Mapping[str, str] | None = None,
        seconds_max: float = RENDER_SECONDS_MAX,
        characters_max: int = RENDER_CHARACTERS_MAX,
    ) -> str:
        """Return the prompt text. ``special_tokens`` (``bos_token`` …) come from the tokenizer; ``Renderer`` passes them."""
        variables = {
            **(special_tokens or {}),
            "messages": [_as_template_message(message) for message in messages],
            "tools": [_plain(tool) for tool in tools] if tools is not None else None,
            "documents": None,
            "add_generation_prompt": add_generation_prompt,
        }
        try:
            return render_within(self._template, Budget(seconds=seconds_max, characters=characters_max), variables)
        except BudgetExceededError as error:
            raise TemplateError(f"{error.message}", param="messages") from error
        except jinja2.UndefinedError as error:
            hint = " (a template that reads the clock cannot be verified)" if "strftime_now" in str(error) else ""
            raise TemplateError(f"The chat template failed: {_shorten(error)}{hint}", param="messages") from error
        except jinja2.TemplateError as error:
            raise TemplateError(f"The chat template refused: {_shorten(error)}", param="messages") from error
        except Exception as error:
            kind = type(error).__name__
            raise TemplateError(f"The chat template failed on these messages ({kind})", param="messages") from error


def load_chat_template(spec: ServingSpec) -> ChatTemplate | None:
    """The template this spec serves with, or None when there is none anywhere."""
    if spec.chat_template is not None:
        return ChatTemplate(spec.chat_template, "spec")
    if spec.chat_template_path is not None:
        return ChatTemplate(_read_text(Path(spec.chat_template_path)), "spec")
    folder = Path(spec.tokenizer.path if spec.tokenizer is not None else spec.model.path)
    file = folder / TEMPLATE_FILE
    if is_there(file):
        return ChatTemplate(_read_text(file), TEMPLATE_FILE)
    text = _template_of_tokenizer_config(folder / TOKENIZER_CONFIG_FILE)
    return None if text is None else ChatTemplate(text, TOKENIZER_CONFIG_FILE)


def _read_text(file: Path) -> str:
    # newline="": the exact characters are identity, a carriage return included.
    try:
        with file.open(encoding="utf-8", newline="") as stream:
            return stream.read()
    except (OSError, UnicodeDecodeError) as error:
        raise TemplateError(f"The chat template file {file} cannot be read: {_why(error)}") from error


def _template_of_tokenizer_config(file: Path) -> str | None:
    if not is_there(file):
        return None
    try:
        config = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, *JSON_ERRORS) as error:
        raise TemplateError(f"{file} cannot be read: {_why(error)}") from error
    value = config.get("chat_template") if isinstance(config, dict) else None
    if isinstance(value, str):
        return value
    if isinstance(value, list):  # several named templates; "default" is the one for plain chat
        named = [entry.get("template") for entry in value if isinstance(entry, dict) and entry.get("name") == "default"]
        return named[-1] if named and isinstance(named[-1], str) else None
    return None


def _as_template_message(message: Mapping[str, Any]) -> dict[str, Any]:
    """Keys with null values are dropped (templates would print "None"), reasoning is given under the names templates read."""
    plain = {str(key): _plain(value) for key, value in message.items() if value is not None}
    reasoning = next((plain[name] for name in REASONING_FIELDS if name in plain), None)
    return plain if reasoning is None else {"thinking": reasoning, **plain, "reasoning_content": reasoning}


def _plain(value: Any) -> Any:
    """Rebuild JSON values out of the plain types, so that no method of a richer object reaches the template."""
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if value is None or type(value) in (str, int, float, bool):
        return value
    raise TemplateError(f"A message holds a value that is not JSON ({type(value).__name__})", param="messages")


def _why(error: Exception) -> str:
    """Without the path, which an error of the file system repeats."""
    return (isinstance(error, OSError) and error.strerror) or _shorten(error)


def _line(error: Exception) -> str:
    return f" (line {error.lineno})" if isinstance(error, jinja2.TemplateSyntaxError) else ""


def _shorten(error: Exception) -> str:
    """Template messages may repeat client data: bounded, one line."""
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= MESSAGE_LENGTH_MAX else f"{text[: MESSAGE_LENGTH_MAX - 3]}..."
