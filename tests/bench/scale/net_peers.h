/* net_peers - what one peer of a real control server costs in memory: so many connections, each with a POLL that waits. */
#ifndef K2_TESTS_BENCH_SCALE_NET_PEERS_H
#define K2_TESTS_BENCH_SCALE_NET_PEERS_H

#include <stddef.h>
#include <stdint.h>

/* Bytes allocated in this process for each of `peers` clients, which live in a child. Call it before anything else uses the
 * network: the child comes from fork. */
size_t net_peers_bytes(uint32_t peers);

#endif
