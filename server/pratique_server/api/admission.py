"""Who may be served, and whether that still holds: asked when a request's headers are there, when its body is, before the engine is
given it, before the first byte of its answer and with each piece of it.

A body may take half a minute and a long prompt its turn in the text pool. Meanwhile the engine may have been lost, and the next one may
have loaded other bytes, which the gate is only just looking at: what was admitted under one verdict is not served under none.
"""

import hmac

from starlette.datastructures import Headers

from pratique_contract import constants
from pratique_server.api.state import ApiState
from pratique_server.api.trace import RequestTrace
from pratique_server.errors import DrainingError, EngineUnavailableError, InvalidApiKeyError, NotReadyError


def admit(trace: RequestTrace, headers: Headers, state: ApiState) -> None:
    """Who is it, and may anybody be served now. The gate's token is its key, and opens the pod before the verdict."""
    token = headers.get(constants.PROBE_HEADER)
    if token is not None:
        if not hmac.compare_digest(token.encode(), state.probe_token.encode()):
            raise InvalidApiKeyError("The probe token is not this process's own")
        trace.reserved, trace.tenant = True, "pratique-probe"
        return
    if state.keys is not None:
        scheme, _, key = headers.get("authorization", "").partition(" ")
        trace.tenant = state.keys.tenant_of(key.strip()) if scheme.lower() == "bearer" else None
        if trace.tenant is None:
            raise InvalidApiKeyError("The API key is missing or not known")
    if state.status.refusing:
        raise DrainingError("This pod is stopping; another one will answer")
    problem = state.status.engine_problem()
    if problem is not None:
        raise EngineUnavailableError(problem.message)
    verified = state.status.verified()
    if not verified.ready:
        raise NotReadyError(f"This pod is not verified: {verified.reason}")
    trace.admitted_under = state.release.fingerprint


def require_still_admitted(trace: RequestTrace, state: ApiState) -> None:
    """Raises ``NotReadyError`` when this pod is no longer proved to be what it was when it took the request. A drain or a slow engine is
    no reason: who was let in is served to the end."""
    if trace.reserved:
        return
    verified = state.status.verified()
    if not verified.ready:
        raise NotReadyError(f"This pod is not verified any more: {verified.reason}")
    if state.release.fingerprint != trace.admitted_under:
        raise NotReadyError("This pod has begun to serve another release")
