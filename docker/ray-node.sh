#!/bin/sh
# Run a node of the Ray cluster with the arguments of `ray start`; exits when any of its processes does.
set -eu
# Remove what earlier starts of this container left: sessions of Ray, and files of killed ranks.
find /tmp -mindepth 1 -maxdepth 1 -user "$(id -u)" -exec rm -rf {} +
# Ray detects its address by an outgoing connection, which this network does not allow.
address=$(hostname -i | cut -d' ' -f1)
# Becomes a child of `ray start`, and ends with it.
python -m workers.standby_keeper &
# Training does not use the object store, and /dev/shm is small.
exec ray start --block --disable-usage-stats --log-style=record --node-ip-address="$address" \
    --object-store-memory=200000000 ${DASL_CPUS:+--num-cpus="$DASL_CPUS"} "$@"
