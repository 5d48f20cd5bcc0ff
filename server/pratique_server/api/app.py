"""Puts the API application together: routes inside the edge, the framework's own error pages replaced."""

from fastapi import FastAPI, HTTPException, Request
from starlette.exceptions import HTTPException as StarletteHTTPException
from starlette.responses import Response

from pratique_server.api.edge import Edge
from pratique_server.api.routes import make_router
from pratique_server.api.state import ApiState
from pratique_server.errors import InvalidRequestError, MethodNotAllowedError, NotFoundError, PratiqueError


def make_app(state: ApiState) -> FastAPI:
    """No generated documentation pages: every route authenticates, and those would not."""
    app = FastAPI(openapi_url=None, docs_url=None, redoc_url=None, redirect_slashes=False)
    app.add_exception_handler(StarletteHTTPException, _raise_as_ours)
    app.include_router(make_router(state))
    app.add_middleware(Edge, state=state)
    return app


async def _raise_as_ours(request: Request, error: Exception) -> Response:
    raise _translate(error) from error


def _translate(error: Exception) -> PratiqueError:
    status = error.status_code if isinstance(error, HTTPException | StarletteHTTPException) else 500
    if status == 404:
        return NotFoundError("There is no such path")
    if status == 405:
        return MethodNotAllowedError("This path does not take that method")
    return InvalidRequestError("The request is not valid")
