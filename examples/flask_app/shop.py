"""A Flask app whose orders are paid and sent by a worker alongside it; both use one SQLite file."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from flask import Flask, Response, abort, jsonify, url_for

from tenure import Tenure
from tenure.errors import UnknownJob

jobs = Tenure()  # sqlite:///tenure.db in this folder; TENURE_URL changes it
app = Flask(__name__)


@jobs.task(unique="order:{order}")
def pay(order: int, cents: int) -> str:
    return f"order {order}: {cents} cents are paid"


@jobs.task
def receipt(order: int) -> None: ...


@app.post("/orders/<int:order>/<int(signed=True):cents>")
def buy(order: int, cents: int) -> tuple[Response, int]:
    with jobs.transaction() as tx:
        handle = pay.using(tx=tx).enqueue(order, cents)
        receipt.using(tx=tx, delay="1s").enqueue(order)
        if cents < 0:
            abort(422)  # an exception: neither job is stored
    return jsonify(job=str(handle.id), status=url_for("look", job=handle.id)), 202


@app.get("/jobs/<uuid:job>")
def look(job: UUID) -> dict[str, Any]:
    handle = jobs.handle(job)
    try:
        status = handle.status()
    except UnknownJob:
        abort(404)
    done = status.state == "completed"
    return {"state": status.state, "error": status.error, "result": handle.result() if done else None}
