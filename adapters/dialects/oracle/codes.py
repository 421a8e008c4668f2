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
    WAIT = "somebody holds a lock, or memory is short: try again"
    DICTIONARY = "compare the schemas, then open the snapshot again"
    DENIED = "the user may not do this"
    CLIENT = "Oracle's client library is not there, or cannot be used"
    THICK = "the driver's thin mode cannot do this"
    SPACE = "the database has no room left: try again when it has"
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
        "ORA-04061",  # existing state of a package has been invalidated
        "ORA-04065",  # it has been altered or dropped
        "ORA-06508",  # could not find program unit being called: it is being replaced
        "ORA-10387",  # parallel query server interrupt
        "ORA-12805",  # parallel query server died
        "ORA-04068",  # existing state of packages has been discarded
        "ORA-16000",  # database or pluggable database open for read-only access: a switch-over is under way
    ),
    Action.RECONNECT: (
        "ORA-01013",  # cancelled: a time-out of the call, or a DBA
        "ORA-00018", "ORA-00020", "ORA-00603", "ORA-01000", "ORA-01035", "ORA-01041", "ORA-01109", "ORA-01219",
        "ORA-02391", "ORA-03136", "ORA-12153", "ORA-12157", "ORA-12500", "ORA-12502", "ORA-12513", "ORA-12518",
        "ORA-12519", "ORA-12525", "ORA-12526", "ORA-12527", "ORA-12535", "ORA-12536", "ORA-12540", "ORA-12560",
        "ORA-12569", "ORA-12583", "ORA-12606", "ORA-12608", "ORA-12609",
        "ORA-16456",  # switch-over to standby in progress or completed
        "ORA-00028", "ORA-01012", "ORA-01033", "ORA-01034", "ORA-01089", "ORA-01090", "ORA-01092", "ORA-02396",
        "ORA-02399", "ORA-03113", "ORA-03114", "ORA-03135", "ORA-12170", "ORA-12505", "ORA-12514", "ORA-12516",
        "ORA-12520", "ORA-12521", "ORA-12528", "ORA-12537", "ORA-12541", "ORA-12543", "ORA-12545", "ORA-12547",
        "ORA-12570", "ORA-12571", "ORA-25400", "ORA-25401", "ORA-25402", "ORA-25403", "ORA-25404", "ORA-25405",
        "ORA-25406", "ORA-25407", "ORA-25408", "ORA-25409",
        "DPY-1001", "DPY-4011", "DPY-4024", "DPY-6000", "DPY-6001", "DPY-6003", "DPY-6005", "DPI-1010",
        "DPI-1067", "DPI-1080",
    ),
    Action.WAIT: (
        "ORA-00054",  # resource busy
        "ORA-00055",  # maximum number of DML locks exceeded
        "ORA-00060",  # deadlock
        "ORA-01591",  # lock held by an in-doubt distributed transaction
        "ORA-02049",  # time-out: distributed transaction waiting for lock
        "ORA-04020",  # deadlock detected while trying to lock an object
        "ORA-04031",  # out of shared memory
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
    Action.THICK: (
        "DPY-3001",  # Native Network Encryption
        "DPY-3010",  # server older than 12.1
        "DPY-3015",  # password verifier of 10g
    ),
    Action.SPACE: (
        "ORA-00257", "ORA-01536", "ORA-01631", "ORA-01632", "ORA-01650", "ORA-01651", "ORA-01950",
        "ORA-01652", "ORA-01653", "ORA-01654", "ORA-01658", "ORA-01688", "ORA-01691",
        "ORA-30036",
    ),
}  # fmt: skip

_BY_CODE = {code: action for action, codes in ACTIONS.items() for code in codes}


def action_of(code: str) -> Action:
    """Return what to do about an error."""
    return _BY_CODE.get(code, Action.FAIL)
