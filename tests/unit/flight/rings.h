/* A directory for rings, and what the tests do with it again and again. */
#ifndef K2_TESTS_FLIGHT_RINGS_H
#define K2_TESTS_FLIGHT_RINGS_H

#include "common/flight/trace.h"

extern char rings_dir[];
int rings_setup(void **state);    /* makes the directory, and empties it before each test */
int rings_teardown(void **state); /* removes it */
/* This process's recorder as another process's. */
void rings_open(const char *role, uint32_t index);
/* All rings; those that are none fail the test. */
k2_flight_trace *rings_load(void);
/* The only ring's file; *path is for k2_free. */
char *rings_file(char **bytes, size_t *n);
/* Records one whole collective, or enters it only. */
void rings_collective(uint64_t group, uint64_t seq, uint32_t op, uint64_t bytes, uint32_t rank, uint32_t ranks, bool leave);

#endif
