"""The broker's side of replication: drives `venus.replication` with logs, connections and the coordinator.

::

 commit thread ──LogChanged──►  host: Replica.step  ──Append, Truncate, Lead, Advance──►  commit thread
 connections ──FetchRequest, FetchReply, BallotReceived──►  │  ──SendFetch, SendReply, RequestBallot──►  connections
 coordinator thread ──RecordRead, BrokersRead, LeaseChanged, SwapResult──►  ──Swap, ReadRecords──►  coordinator thread

All steps of all businesses run in the service's event loop. After each step the host publishes a `ReplicaStanding`; the
commit thread reads from it whether it may propose, in which term, and how far the log is safe. No thread waits.
"""
