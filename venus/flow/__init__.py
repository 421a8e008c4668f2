"""Traffic: who may send how much and when, what is given up first, who is asked (RocketMQ 2, Tensor IV-C). Pure.

Time is an argument everywhere, in seconds of a clock that nobody sets. Whoever drives it stands in
`venus/broker/service/` and `venus/rpc/`.
"""
