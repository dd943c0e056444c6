/* A tcp relay in front of a server, which spoils the bytes that flow back: faults on the wire, below every check of ours. */
#ifndef K2_TESTS_XFER_RELAY_INT_H
#define K2_TESTS_XFER_RELAY_INT_H

#include <stdint.h>

typedef enum relay_fault {
    RELAY_PASS,
    RELAY_FLIP,  /* one bit of the byte at `at` is flipped */
    RELAY_CUT,   /* the connection ends before the byte at `at` */
    RELAY_STALL, /* nothing comes from the byte at `at` on */
} relay_fault;

typedef struct relay relay;
relay *relay_start(uint16_t to_port); /* on 127.0.0.1, both sides */
uint16_t relay_port(const relay *r);
/* Do this once, to the byte number `at` that comes back through any connection, counted from here on. */
void relay_plan(relay *r, relay_fault fault, uint64_t at);
unsigned relay_hits(const relay *r);
void relay_stop(relay *r);

#endif
