"""Every error the server raises on purpose. Only ``api/errors.py`` knows which HTTP status one becomes.

PratiqueError
├── RequestError                  the client's request cannot be served as it is; carries ``code`` and ``param``
│   ├── InvalidJsonError          the body is not JSON
│   ├── InvalidRequestError       a field is missing, of the wrong kind or out of range
│   ├── UnsupportedParameterError a field that this server does not act on
│   ├── ContextLengthError        prompt and answer do not fit
│   ├── TemplateError             the chat template refused the messages, or took too long or too much
│   ├── InvalidApiKeyError        no key, or one that is not known
│   ├── ModelNotFoundError        another model than the served one
│   ├── NotFoundError             no such path
│   ├── MethodNotAllowedError     the path exists, but not for this method
│   ├── RevisionMismatchError     the client asked for another model revision than this pod serves
│   ├── DuplicateIdError          a request with this id is live
│   ├── RequestTooLongError       the body is larger than allowed
│   └── MediaTypeError            the body is not declared as JSON
├── DeadlineError                 the client's own time budget was used up
├── ServerTimeoutError            the server's limit for one request was reached
├── SaturatedError                the queue is full: come back later
├── UnavailableError              this pod cannot serve now; carries ``code``
│   ├── NotReadyError             the verdict has not passed
│   ├── DrainingError             the pod is going away
│   └── EngineUnavailableError    the engine is gone or being restarted
├── CancelledByClientError        the client went away; nobody reads an answer
├── SlowReaderError               the client read too slowly; its stream was cut
└── InternalError                 our own fault
"""

from typing import ClassVar


class PratiqueError(Exception):
    """``message`` is one sentence for the client; it never repeats the client's input at length."""

    code: ClassVar[str] = "internal"

    def __init__(self, message: str, *, param: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param


class RequestError(PratiqueError):
    code = "invalid_request"


class InvalidJsonError(RequestError):
    code = "invalid_json"


class InvalidRequestError(RequestError):
    code = "invalid_request"


class UnsupportedParameterError(RequestError):
    code = "unsupported_parameter"


class ContextLengthError(RequestError):
    code = "context_length_exceeded"


class TemplateError(RequestError):
    code = "template_error"


class InvalidApiKeyError(RequestError):
    code = "invalid_api_key"


class ModelNotFoundError(RequestError):
    code = "model_not_found"


class NotFoundError(RequestError):
    code = "not_found"


class MethodNotAllowedError(RequestError):
    code = "method_not_allowed"


class RevisionMismatchError(RequestError):
    code = "revision_mismatch"


class DuplicateIdError(RequestError):
    code = "duplicate_request"


class RequestTooLongError(RequestError):
    code = "request_too_large"


class MediaTypeError(RequestError):
    code = "unsupported_media_type"


class DeadlineError(PratiqueError):
    code = "deadline_exceeded"


class ServerTimeoutError(PratiqueError):
    code = "deadline_exceeded"


class SaturatedError(PratiqueError):
    code = "queue_full"


class UnavailableError(PratiqueError):
    code = "engine_unavailable"


class NotReadyError(UnavailableError):
    code = "not_ready"


class DrainingError(UnavailableError):
    code = "draining"


class EngineUnavailableError(UnavailableError):
    code = "engine_unavailable"


class CancelledByClientError(PratiqueError):
    code = "client_closed"


class SlowReaderError(PratiqueError):
    code = "slow_reader"


class InternalError(PratiqueError):
    code = "internal"
