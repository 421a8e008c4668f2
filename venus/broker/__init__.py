"""The broker: half messages, the log, the full data, delivery (VENUS 3.2, 3.3).

The log is the only input: `machine` executes its entries, `queue` delivers the batches that they commit, and
`snapshot` folds these batches into the full data. `pipeline` has the thread that writes the log, `service` has the
sockets, and `core` connects the parts. Imports point from `service` towards `store`, never back (setup.cfg).
"""
