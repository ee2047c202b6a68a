"""A web app whose orders are charged by a worker in another container."""

from __future__ import annotations

from fastapi import FastAPI

from tenure import Tenure

jobs = Tenure()  # TENURE_URL of compose.yaml
app = FastAPI()


@jobs.task(unique="order:{order}")
def charge(order: int) -> str:
    return f"order {order} is paid"


@app.post("/orders/{order}")
def buy(order: int) -> dict[str, str]:
    return {"job": str(charge.enqueue(order).id)}


@app.get("/jobs/{job}")
def look(job: str) -> dict[str, str]:
    return {"state": jobs.handle(job).status().state.value}
