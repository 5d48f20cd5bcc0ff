"""The ``messages`` of a chat request: checked, and brought to the plain form the template gets.

Text parts are joined with a newline, ``developer`` is the newer name of ``system``, keys that say nothing (null, empty ``tool_calls``)
are dropped. Whether an order of roles makes sense is the template's to say.
"""

from typing import Any, Final

from pratique_server.api.fields import fail, text
from pratique_server.errors import UnsupportedParameterError

NAME_LENGTH_MAX: Final = 64
ROLES: Final = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant"}
TOOL_ROLES: Final = ("tool", "function")
# What answers of this API carry and clients send back in the history; saying nothing, they are dropped.
_EMPTY_VALUES: Final[tuple[Any, ...]] = (None, [], {})
_ECHOED_FIELDS: Final = ("refusal", "audio", "annotations", "tool_calls", "function_call", "tool_call_id")
_FIELDS: Final = ("role", "content", "name", "reasoning_content", *_ECHOED_FIELDS)

_name = text(length_max=NAME_LENGTH_MAX)
_reasoning = text(length_max=10_000_000, empty=True)


def read_messages(value: Any, *, count_max: int) -> list[dict[str, Any]]:
    """Raises ``RequestError`` with ``param`` naming the message and the field."""
    if not isinstance(value, list):
        raise fail("messages", "must be a list")
    if not value:
        raise fail("messages", "must hold at least one message")
    if len(value) > count_max:
        raise fail("messages", f"must hold at most {count_max} messages")
    return [_read_message(f"messages[{index}]", message) for index, message in enumerate(value)]


def _read_message(param: str, message: Any) -> dict[str, Any]:
    if not isinstance(message, dict):
        raise fail(param, "must be an object")
    unknown = next((name for name in message if name not in _FIELDS), None)
    if unknown is not None:
        raise UnsupportedParameterError(f"{param} holds a field that is not known", param=f"{param}.{unknown[:64]}")
    for name in _ECHOED_FIELDS:
        if message.get(name) not in _EMPTY_VALUES:
            raise UnsupportedParameterError(f"{param}.{name} is not supported", param=f"{param}.{name}")
    plain = {"role": _read_role(f"{param}.role", message.get("role")), "content": _read_content(param, message)}
    if message.get("name") is not None:
        plain["name"] = _name(f"{param}.name", message["name"])
    if message.get("reasoning_content") is not None:
        plain["reasoning_content"] = _reasoning(f"{param}.reasoning_content", message["reasoning_content"])
    return plain


def _read_role(param: str, role: Any) -> str:
    if isinstance(role, str) and role in TOOL_ROLES:
        raise UnsupportedParameterError("Tool messages are not supported", param=param)
    if not isinstance(role, str) or role not in ROLES:
        raise fail(param, f"must be one of {', '.join(ROLES)}")
    return ROLES[role]


def _read_content(param: str, message: dict[str, Any]) -> str:
    content, param = message.get("content"), f"{param}.content"
    if content is None:
        raise fail(param, "is missing")
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise fail(param, "must be a string or a list of text parts")
    if not content:
        raise fail(param, "must hold at least one part")
    return "\n".join(_read_part(f"{param}[{index}]", part) for index, part in enumerate(content))


def _read_part(param: str, part: Any) -> str:
    if not isinstance(part, dict):
        raise fail(param, "must be an object")
    if part.get("type") != "text":
        raise UnsupportedParameterError(
            f"{param} is not a text part; this model takes text only", param=f"{param}.type"
        )
    if not isinstance(part.get("text"), str):
        raise fail(f"{param}.text", "must be a string")
    if set(part) - {"type", "text"}:
        raise UnsupportedParameterError(f"{param} holds a field that is not known", param=param)
    return str(part["text"])
