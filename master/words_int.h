/* words - what the system and a worker itself left behind when it ended: the end of its log, its cgroup's count of kills. */
#ifndef K2_MASTER_WORDS_INT_H
#define K2_MASTER_WORDS_INT_H

#include <sys/types.h>

#include "common/base/base.h"

#define K2M_WORDS_MAX 24u /* lines of a log that an exit report shows; those of a crash's own report, innermost first */

typedef struct k2m_words {
    char *lines[K2M_WORDS_MAX]; /* into the text */
    uint32_t count;
    const char *last; /* the one that says most: the last of all, or the summary of the crash; "" = nothing */
    bool report;      /* it is a crash's own report */
} k2m_words;

/* k2m_words_find - the lines of a log that tell of an end: a crash's own report where the log ends with one, else the last ones.
 *
 * memory   text, of which n bytes are in use and one more is there, is cut into lines in place
 * threads  pure
 * tests    tests/unit/master/words_test.c
 */
void k2m_words_find(char *text, size_t n, bool crashed, k2m_words *out);

/* The end of a file, at most n bytes; out has one more. */
size_t k2m_words_read(const char *path, char *out, size_t n);

/* The path of a cgroup in the text of /proc/PID/cgroup: of the v1 hierarchy that has `controller`, or of v2 with "". Pure; false: it is
 * not there, or outside of what we can see. */
bool k2m_cgroup_path(const char *text, const char *controller, char *out, size_t n);
/* The number behind "oom_kill" in memory.events (v2) or memory.oom_control (v1). Pure. */
bool k2m_oom_parse(const char *text, uint64_t *kills);
/* The file to read for a process: `mount` is /sys/fs/cgroup. NULL: there is none. k2_free it. */
char *k2m_oom_file(const char *mount, pid_t pid);
bool k2m_oom_read(const char *file, uint64_t *kills); /* file may be NULL */

#endif
