"""What VENUS does about each error that Oracle or its driver gives, by code. Data.

The codes and what they mean are those of Oracle's and python-oracledb's documentation. What is not listed is told to
people as it is, and not tried again.
"""

from __future__ import annotations

from enum import Enum


class Action(Enum):
    """What follows from an error."""

    AGAIN = "open the snapshot again"
    RECONNECT = "connect again, then go on"
    WAIT = "somebody holds a lock: try again"
    DICTIONARY = "compare the schemas, then open the snapshot again"
    DENIED = "the user may not do this"
    CLIENT = "Oracle's client library is not there, or cannot be used"
    SPACE = "the database has no room left"
    FAIL = "give up and say why"


ACTIONS = {
    Action.AGAIN: (
        "ORA-01555",  # snapshot too old
        "ORA-08103",  # object no longer exists: truncated while it was read
        "ORA-01410",  # invalid ROWID: rebuilt while it was read
        "ORA-01466",  # altered since the snapshot was opened
        "ORA-12801",  # a parallel query's server failed
        "ORA-22922",  # nonexistent LOB value: its row has gone meanwhile
        "ORA-22924",  # snapshot too old, of a LOB
        "ORA-08176",  # consistent read failure, rollback data not available
        "ORA-08177",  # cannot serialize access
        "ORA-04068",  # existing state of packages has been discarded
        "ORA-16000",  # database or pluggable database open for read-only access: a switch-over is under way
    ),
    Action.RECONNECT: (
        "ORA-01013",  # cancelled: a time-out of the call, or a DBA
        "ORA-00028", "ORA-01012", "ORA-01033", "ORA-01034", "ORA-01089", "ORA-01090", "ORA-01092", "ORA-02396",
        "ORA-02399", "ORA-03113", "ORA-03114", "ORA-03135", "ORA-12170", "ORA-12505", "ORA-12514", "ORA-12516",
        "ORA-12520", "ORA-12521", "ORA-12528", "ORA-12537", "ORA-12541", "ORA-12543", "ORA-12545", "ORA-12547",
        "ORA-12570", "ORA-12571", "ORA-25402", "ORA-25408", "ORA-25409",
        "DPY-1001", "DPY-4011", "DPY-4024", "DPY-6000", "DPY-6001", "DPY-6003", "DPY-6005", "DPI-1010", "DPI-1080",
    ),
    Action.WAIT: (
        "ORA-00054",  # resource busy
        "ORA-00060",  # deadlock
        "ORA-04021",  # time-out while waiting to lock an object
        "ORA-30006",  # resource busy, with a time-out
        "ORA-20101",  # VENUS's own fence: a transaction is still open
    ),
    Action.DICTIONARY: (
        "ORA-00904",  # no such column
        "ORA-00942",  # no such table
        "ORA-04043",  # no such object
        "ORA-00932",  # inconsistent data types: a column has another one now
    ),
    Action.DENIED: ("ORA-01017", "ORA-01031", "ORA-01045", "ORA-28000", "ORA-28001", "ORA-41900"),
    Action.CLIENT: (
        "DPI-1047",  # cannot be loaded
        "DPI-1050",  # too old
        "DPI-1072",  # version not supported
        "ORA-01804",  # found, but not the files that belong to it
    ),
    Action.SPACE: (
        "ORA-00257", "ORA-01536", "ORA-01652", "ORA-01653", "ORA-01654", "ORA-01658", "ORA-01688", "ORA-01691",
        "ORA-30036",
    ),
}  # fmt: skip

_BY_CODE = {code: action for action, codes in ACTIONS.items() for code in codes}


def action_of(code: str) -> Action:
    """Return what to do about an error."""
    return _BY_CODE.get(code, Action.FAIL)
