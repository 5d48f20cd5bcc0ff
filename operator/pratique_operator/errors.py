"""What the operator raises, drawn as a tree:

OperatorError
├── InvalidSpecError    the user must change the spec; the message names the field
├── RecordError         the release record is absent, unreadable or not the approved one
│   ├── SignatureInvalidError  it is not signed as it has to be
│   └── OtherRecordedError     the spec approves another release than the one TrustFirst recorded
├── ChildConflictError  a child's name is taken by an object that is not ours
├── ApiError            the API server refused or failed a call
│   ├── NotFoundError   404
│   ├── ConflictError   409: the object moved since it was read; the next pass sees it anew
│   └── RejectedError   400, 403 or 422: the same call would be refused again
└── UnavailableError    no answer in time: nothing is known, nothing is concluded
"""


class OperatorError(Exception):
    """Base of what the operator raises."""


class InvalidSpecError(OperatorError):
    """The spec cannot be served; ``field`` is its path, the message a sentence a person can act on."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(f"{field}: {message}")
        self.field = field


class RecordError(OperatorError):
    """The release record cannot be used; the message says which of absent, unreadable or different it is."""


class SignatureInvalidError(RecordError):
    """A signature of the record is asked for; the message says which of missing, unreadable or wrong it is."""


class OtherRecordedError(RecordError):
    """What is approved is not what was recorded for the declaration; ``config_map`` and ``fingerprint`` are the recorded one's."""

    def __init__(self, message: str, *, config_map: str, fingerprint: str) -> None:
        super().__init__(message)
        self.config_map = config_map
        self.fingerprint = fingerprint


class ChildConflictError(OperatorError):
    """A child's name is taken by an object that another owner made; it is never overwritten."""


class ApiError(OperatorError):
    """The API server answered with a failure; ``status`` is the HTTP status."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class NotFoundError(ApiError):
    """The object does not exist."""


class ConflictError(ApiError):
    """The object changed since it was read, or exists already."""


class RejectedError(ApiError):
    """The API server will not accept this object, however often it is sent."""


class UnavailableError(OperatorError):
    """No answer in time, or no connection."""
