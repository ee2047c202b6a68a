"""A FastAPI app with a worker, and the dashboard of its jobs for the app's own users.

    pip install ".[web]"
    python examples/dashboard_fastapi.py

Then open http://127.0.0.1:8000/jobs/ as ada (admin) or grace (read only): both have the password "tenure".
"""

from __future__ import annotations

import secrets
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Annotated

import uvicorn
from fastapi import Depends, FastAPI, HTTPException, Request
from fastapi.security import HTTPBasic

from tenure import Tenure
from tenure.web.access import User

USERS = {"ada": User("ada", "admin", payloads=True), "grace": User("grace", "read", payloads=False)}
PASSWORD = "tenure"

jobs = Tenure()
basic = HTTPBasic()


@jobs.task
def greet(name: str) -> str:
    return f"hello {name}"


async def signed_in(request: Request) -> User:
    """The app's own authentication; here HTTP Basic."""
    given = await basic(request)
    user = USERS.get(given.username) if given else None
    if given is None or user is None or not secrets.compare_digest(given.password.encode(), PASSWORD.encode()):
        raise HTTPException(401, "ada or grace, please", headers={"WWW-Authenticate": "Basic"})
    return user


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncGenerator[None]:
    async with jobs.worker():  # in this process; or beside it: tenure worker examples/dashboard_fastapi.py
        yield


app = FastAPI(lifespan=lifespan)
app.mount("/jobs", jobs.dashboard(auth=signed_in))


@app.post("/greetings/{name}")
async def greetings(name: str, user: Annotated[User, Depends(signed_in)]) -> dict[str, str]:
    handle = await greet.using(meta={"asked_by": user.name}).aenqueue(name)
    return {"job": str(handle.id)}


if __name__ == "__main__":
    uvicorn.run(app, port=8000, timeout_graceful_shutdown=2)  # else an open page would delay Ctrl-C
