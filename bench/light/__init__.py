"""A client that opens many streams of one method, for subscribers that use little CPU (figure T2).

It speaks as much HTTP/2 as `Delivery.Subscribe` over plaintext TCP needs. gRPC's Python client took 22 to 67 s of CPU
for 10,000 subscribers, on the cores of the broker that is measured. The library `h2` is not used: it copies all 11.6 GB
of a run several times in Python, and the needed part of the protocol is a few dozen lines. This is a load generator and
not the product, which uses gRPC.
"""
