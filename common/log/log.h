/* log - one line a record, for people and for grep.
 *
 * A `k2_log` is a file (or stderr) with a lowest level and a name. A line is
 *     2026-01-31T12:34:56.789Z INFO  rollout-2  text of the record key=value key="two words"
 * Fields follow the text as key=value; k2_log_value quotes a value that may hold blanks. A record is written by one write(2)
 * to a file opened for appending, so lines of several processes never mix. Control characters become '?': a hostile
 * input cannot forge a line. A write that fails (disk full) is dropped and counted, it never ends the process. The last
 * K2_LOG_RING_MAX lines of every level from DEBUG on stay in memory for crash reports, whatever was written.
 */
#ifndef K2_COMMON_LOG_H
#define K2_COMMON_LOG_H

#include "common/base/base.h"

#define K2_LOG_LINE_MAX 2048u /* bytes of one line with its newline; longer records are cut and end in "..." */
#define K2_LOG_RING_MAX 64u   /* last lines kept in memory: enough to see what led to an end, 128 KiB a process */

typedef enum k2_log_level { K2_LOG_DEBUG, K2_LOG_INFO, K2_LOG_WARN, K2_LOG_ERROR, K2_LOG_OFF } k2_log_level;

typedef struct k2_log k2_log;

/* k2_log_open - a log that appends to a file, or writes to stderr.
 *
 * memory   path NULL means stderr; role may be NULL (no name in the line); index < 0: role alone, without "-index"
 * errors   IO, NOT_FOUND, NO_SPACE as of open(2), with the path
 * threads  every function here may be called from any thread
 * tests    tests/unit/log/log_test.c
 */
k2_log *k2_log_open(const char *path, const char *role, int index, k2_log_level lowest, k2_error *err);
void k2_log_close(k2_log *log); /* NULL is fine; nobody may be writing */

void k2_log_set_level(k2_log *log, k2_log_level lowest);
/* "debug" "info" "warn" "error" "off"; false for anything else. */
bool k2_log_level_parse(const char *name, k2_log_level *out);
const char *k2_log_level_name(k2_log_level level);

/* True where a record of this level would be written: lets a caller skip the work of making one. False for a NULL log. */
bool k2_log_on(const k2_log *log, k2_log_level level);

/* Write one record. A NULL log drops it, so that libraries can log without asking. errno is left as it was. */
void k2_log_write(k2_log *log, k2_log_level level, const char *fmt, ...) __attribute__((format(printf, 3, 4)));

#define K2_LOG_DEBUG(log, ...) k2_log_write((log), K2_LOG_DEBUG, __VA_ARGS__)
#define K2_LOG_INFO(log, ...)  k2_log_write((log), K2_LOG_INFO, __VA_ARGS__)
#define K2_LOG_WARN(log, ...)  k2_log_write((log), K2_LOG_WARN, __VA_ARGS__)
#define K2_LOG_ERROR(log, ...) k2_log_write((log), K2_LOG_ERROR, __VA_ARGS__)

/* A value for key=value: as it is when it is one plain word, else in quotes with '"' and '\' escaped. Cut at out_size.
 *     char v[K2_LOG_VALUE_MAX];
 *     K2_LOG_INFO(log, "engine is gone url=%s", k2_log_value(v, sizeof v, url));
 */
#define K2_LOG_VALUE_MAX 256u
const char *k2_log_value(char *out, size_t out_size, const char *value);

/* Records that could not be written since the start. */
uint64_t k2_log_dropped(const k2_log *log);

/* Append the last lines (at most K2_LOG_RING_MAX, oldest first) to out. */
void k2_log_tail(k2_log *log, k2_buf *out);
/* The same straight to a file descriptor, callable from a signal handler: takes no lock, so a line may be torn. */
void k2_log_tail_fd(k2_log *log, int fd);

/* The peak of this process's resident set beside what was planned, in one line: called last, so that plans can be held against it. */
void k2_log_memory(k2_log *log, const char *role, uint64_t planned_bytes);

#endif
