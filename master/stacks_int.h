/* What the files of `k2rl stacks` share: processes of a run as they are found, and how they are shown. */
#ifndef K2_MASTER_STACKS_INT_H
#define K2_MASTER_STACKS_INT_H

#include "common/stack/stack.h"

typedef struct k2m_seen {
    k2_proc proc;
    char name[64];                  /* "trainer-0"; "bash under rollout-1" */
    char role[K2_STACK_ROLE_MAX];   /* what it is compared with: "trainer", "bash" */
    bool taken, ours, python;       /* ours: a k2rl process */
    k2_stacks stacks;               /* where taken */
    char why_not[K2_ERROR_TEXT_MAX]; /* else */
    char *outside, *python_stack;   /* what /proc says where not taken; py-spy's answer; may be NULL */
} k2m_seen;

typedef struct k2m_seen_list {
    k2m_seen *list;
    size_t count;
    k2_stack_member *members;       /* all threads that are shown, cluster by cluster */
    k2_stack_cluster *clusters;
    size_t cluster_count;
    uint32_t threads, idle;         /* of all processes; of them left out: no frame is of the process's own program */
} k2m_seen_list;

/* Master, workers and all that they have started, found without asking any of them: a stopped one is found, too.
 *
 * errors   BAD_INPUT no run is there; NOT_FOUND none of its processes is alive on this machine */
k2_code k2m_seen_find(const char *run_dir, k2m_seen_list *out, k2_error *err);
void k2m_seen_free(k2m_seen_list *l);
/* Pure: the value behind an option in a command line of words that end with 0; NULL: it is not there. */
const char *k2m_cmdline_option(const char *words, size_t n, const char *option);

void k2m_seen_print(const k2m_seen_list *l, k2_buf *out);
void k2m_seen_json(const k2m_seen_list *l, k2_buf *out);

/* `py-spy dump --pid`, where py-spy is on PATH; NULL or its output, or one line that says why there is none. */
char *k2m_python_stack(pid_t pid);

#endif
