"""A client of many streams for one method, for subscribers that shall cost the machine little (figure T2).

It speaks as much HTTP/2 as `Delivery.Subscribe` over plaintext TCP needs. gRPC's Python client took 22 to 67 s of CPU
for 10,000 subscribers, on the cores of the broker that is measured. The library `h2` is not used: it copies each byte
several times in Python, and there are 11.6 GB of them; what is needed of the protocol is a few dozen lines. This is a
load generator and not the product, which speaks gRPC.
"""
