"""What a promotion has left behind at a business: what may be lost, and an old home that was replaced."""

from __future__ import annotations

from venus.broker.machine import loss
from venus.broker.machine.business import Business
from venus.broker.machine.half import State
from venus.broker.machine.loss import Loss
from venus.broker.pipeline.home_commands import BECOME_A_MIRROR
from venus.replication.records import LossWindow
from venus.wire import broker_pb2


def loss_windows(state: State) -> list[broker_pb2.LossWindow]:
    """Return what promotions may have lost, until that is closed."""
    return [
        broker_pb2.LossWindow(
            home_term=window.home_term, first_offset=window.first_offset, rows=window.rows,
            end_offset=window.end_offset if window.measured else None, first_batch=window.first_batch,
            last_batch=window.last_batch, verified=window.verified,
        )
        for window in loss.of_promotions(state.losses)
    ]  # fmt: skip


def home_alarms(business: Business) -> list[str]:
    """Return what somebody has to know of a home that has moved, a sentence each."""
    state, said = business.committed, []
    if state.is_replaced:
        said.append(
            f"this home was replaced: {state.home} has become it, and producers and targets are sent there; "
            f"{BECOME_A_MIRROR}"
        )
    return said + [
        f"the promotion of this set to the home (home term {window.home_term}) may have lost {_shown(window)}: "
        "`venus verify --repair` finds and ships them"
        for window in loss.of_promotions(state.losses)
    ]


def _shown(window: Loss) -> str:
    return str(
        LossWindow(
            term=0, first_offset=window.first_offset, end_offset=window.end_offset, first_batch=window.first_batch,
            last_batch=window.last_batch, rows=window.rows,
        )
    )  # fmt: skip
