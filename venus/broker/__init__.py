"""The broker: half messages, the log, the full data, delivery (VENUS 3.2, 3.3).

The log is the only input: `machine` executes its entries, `queue` delivers what they commit, `snapshot` folds that into
the full data. `pipeline` has the one thread that writes, `service` the sockets; `core` wires the parts together.
Imports point from `service` towards `store`, never back (setup.cfg).
"""
