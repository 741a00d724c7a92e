#!/bin/sh
# A node of the Ray cluster, with the arguments of `ray start`; it ends when any part of the node does.
set -eu
# Sessions of earlier starts of this container: nothing reads them any more.
rm -rf /tmp/ray
# The network has no way out, by which Ray would otherwise find its own address.
address=$(hostname -i | cut -d' ' -f1)
# Training keeps nothing in the object store, and /dev/shm is small.
exec ray start --block --disable-usage-stats --log-style=record --node-ip-address="$address" \
    --object-store-memory=200000000 ${DASL_CPUS:+--num-cpus="$DASL_CPUS"} "$@"
