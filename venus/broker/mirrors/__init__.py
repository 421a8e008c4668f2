"""Mirrors: replication from the upstream broker set, and this set's place in the network (Minos 3).

::

 upstream set                                this set
 Admin.Status    ──set, level, path, ids──►  upstream_monitor    each second: upstream sets, businesses, progress
                                             network_membership  checks the position; one replicator a business
                                             upstream_selection  the nearest upstream set that is fit
 OpenSnapshot, ReadSplit ──chunks──►         replication_plan    FULL_BEGIN, FULL_ROWS, FULL_END (entries of the log)
 Subscribe  ──increments, progress──►        replication_plan    MIRRORED (entries of the log)
            ◄──acknowledge, once durable──

A mirror is an ordinary business whose log has other entries. Offsets, epochs, Sequences and digests are those of the
home, so a consumer can resume at another set. The replicator is a consumer group of the upstream set.
"""
