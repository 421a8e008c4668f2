"""Traffic: admission limits, degradation under load, and the choice of peers (RocketMQ 2, Tensor IV-C). Pure.

Time is an argument everywhere, in seconds of a monotonic clock. The callers are in `venus/broker/service/` and
`venus/rpc/`.
"""
