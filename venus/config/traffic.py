"""The options of a broker's traffic: limits, what is given up when it is overloaded, and what counts as unhealthy."""

from __future__ import annotations

from pydantic import Field

from venus.config.section import Section
from venus.config.values import Count, Limit, Seconds


class Limits(Section):
    """Who may send, load and connect how much; whoever is over a limit is told when to go on."""

    #: Of the half messages of one business; 0 = no limit. `burst_s` of it may come at once.
    rows_per_s: Limit = 0.0
    bytes_per_s: Limit = 0.0
    burst_s: Seconds = 1.0
    #: Of all full data that leaves the broker, evenly; 0 = no limit.
    full_data_bytes_per_s: Limit = 0.0
    snapshots: Count = 4
    #: Of all snapshots together: one for each load, and for each other reader of full data.
    leases: Count = 1000
    loads: Count = 64
    streams: Count = 20_000
    #: Half messages that have waited longer for the disk are refused; 0 = never.
    slow_request_ms: Limit = 200.0
    #: Large work rests while commits of businesses that send little take longer than this, beside it; 0 = never.
    small_commit_ms: Limit = 50.0
    #: A consumer that takes nothing for so long gets half of its window, and so on.
    slow_consumer_s: Seconds = 5.0


class Degrade(Section):
    """From where on the broker gives up the lane that matters least; 0 = this is not looked at."""

    #: Of the broker's process, in percent of one core; it degrades lane 4 only.
    cpu_percent: Limit = 90.0
    cpu_sustain_s: Seconds = 60.0
    #: Of the machine's memory; free space counts from twice broker.free_bytes_min on.
    memory_percent: Limit = 92.0
    #: How long work waits in the broker before it is begun.
    lag_ms: Limit = 500.0
    sustain_s: Seconds = 5.0
    restore_s: Seconds = 30.0


class Health(Section):
    """What makes a broker sub-healthy (Tensor, table III); 0 = this is not looked at."""

    silent_s: Limit = 120.0
    heartbeat_missed_s: Limit = 5.0
    latency_s: Limit = 30.0
    memory_percent: Limit = 95.0
    cpu_percent: Limit = 98.0
    cpu_sustain_s: Seconds = 60.0
    disk_percent: Limit = 95.0
    clients_max: int = Field(default=1000, ge=0)
    keep_s: Seconds = 1800.0
