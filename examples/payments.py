"""A job that charges a card and sends a receipt, in two ways. test_payments.py shows which one survives a crash."""

from __future__ import annotations

from tenure import Job, Tenure

jobs = Tenure()


class Gateway:
    """Charges cards, over the network. A key that it has seen is not charged again."""

    def charge(self, order: int, cents: int, key: str = "") -> str:
        raise NotImplementedError


@jobs.task
def receipt(order: int) -> None: ...


@jobs.task
def pay(job: Job, order: int, cents: int) -> str:
    charge = job.resource(Gateway).charge(order, cents)  # again, if the process dies before the outcome is stored
    receipt.enqueue(order)
    return charge


@jobs.task
def pay_safely(job: Job, order: int, cents: int) -> str:
    gateway = job.resource(Gateway)
    charge = job.once("charge", lambda: gateway.charge(order, cents, key=str(job.id)))
    with jobs.transaction() as tx:
        receipt.using(tx=tx).enqueue(order)
        job.finish(charge, tx=tx)  # the receipt and the outcome commit together
    return charge
