"""What bounds a row whatever database it comes from."""

from __future__ import annotations

from venus.rpc.channel import MESSAGE_BYTES_MAX

#: A row travels in one message, with its key, its place in the batch and at worst every table's description.
ROW_BYTES_MAX = MESSAGE_BYTES_MAX - (1 << 20)
