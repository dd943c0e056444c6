/* stacks: the command line of `k2rl stacks`: takes the stacks of all processes of a run, clusters them, prints outliers first.
 */
#include "common/stack/stack.h"

#include <stdio.h>
#include <string.h>

#include "common/config/config.h"
#include "master/master.h"
#include "master/stacks_int.h"

#define HOLD_NS (1 * K2_NS_PER_S) /* that a process may be held; in truth it is milliseconds */

static const char help[] =
    "usage: k2rl stacks [RUN_DIR] [--json] [--all]\n"
    "\n"
    "Prints the native call stacks of all processes of a run on this machine: master, trainers, rollout workers, proxy, and "
    "what "
    "they\n"
    "have started. Equal stacks are put together; those that differ from the others of their role come first. Each process is "
    "held\n"
    "for milliseconds and goes on; one that is stopped stays so. A Python child is asked through py-spy where that is on "
    "PATH.\n"
    "Without RUN_DIR it is the run.dir that the configuration has by default.\n"
    "\n"
    "  --all    also threads that are in libraries only, such as idle ones of a pool\n"
    "  --json   one JSON object on one line\n"
    "  --help   this text\n";

static void take_all(k2m_seen_list *l)
{
    k2_error err;
    for (size_t i = 0; i < l->count; i++) {
        k2m_seen *s = &l->list[i];
        s->taken = k2_stacks_take(&s->proc, HOLD_NS, &s->stacks, &err) == K2_OK;
        if (s->taken) continue;
        snprintf(s->why_not, sizeof s->why_not, "%s", err.text);
        k2_buf b;
        k2_buf_init(&b, 4096);
        if (err.code != K2_NOT_FOUND) k2_stacks_outside(&s->proc, &b);
        s->outside = b.len ? k2_strdup(b.data) : NULL;
        k2_buf_fini(&b);
    }
    for (size_t i = 0; i < l->count; i++) /* after ours: py-spy traces it as well */
        if (l->list[i].python) l->list[i].python_stack = k2m_python_stack(l->list[i].proc.pid);
}

/* A stack without a frame of its process's own program is a library's thread that waits for work, or says so little that it
 * would only hide the others. */
static void cluster(k2m_seen_list *l, bool all)
{
    size_t n = 0;
    for (size_t i = 0; i < l->count; i++) l->threads += l->list[i].stacks.count;
    l->members = k2_alloc_array(l->threads + 1, sizeof *l->members);
    for (size_t i = 0; i < l->count; i++) {
        const k2m_seen *s = &l->list[i];
        for (uint32_t k = 0; k < s->stacks.count; k++) {
            if (!all && s->ours && !k2_stack_own(&s->stacks.threads[k])) {
                l->idle++;
                continue;
            }
            l->members[n] = (k2_stack_member){.process = (uint32_t)i, .stack = &s->stacks.threads[k]};
            memcpy(l->members[n++].role, s->role, sizeof s->role);
        }
    }
    l->cluster_count = k2_stack_clusters(l->members, n, &l->clusters);
}

static k2_code show(const char *dir, bool json, bool all, k2_error *err)
{
    k2m_seen_list l;
    k2_code code = k2m_seen_find(dir, &l, err);
    if (code != K2_OK) return code;
    take_all(&l);
    cluster(&l, all);
    k2_buf b;
    k2_buf_init(&b, 64u << 20);
    if (json)
        k2m_seen_json(&l, &b);
    else
        k2m_seen_print(&l, &b);
    fwrite(b.data, 1, b.len, stdout);
    if (fflush(stdout) != 0) code = k2_error_set(err, K2_IO, "standard output cannot be written");
    k2_buf_fini(&b);
    k2m_seen_free(&l);
    return code;
}

int k2_stacks_main(int argc, char **argv)
{
    k2_error err = {0};
    int operands = 0;
    bool asked = false, json = false, all = false;
    const char *crashed = NULL;
    const k2_option options[] = {{.name = "--json", .flag = &json},
                                 {.name = "--all", .flag = &all},
                                 {.name = "--crashed", .text = &crashed}}; /* for k2_stack_arm's handler */
    k2_code code = k2_args_parse(argv + 1, argc - 1, options, K2_COUNT(options), &operands, &asked, &err);
    if (code == K2_OK && asked) {
        fputs(help, stdout);
        return 0;
    }
    if (code == K2_OK && crashed) return k2_stack_crashed(crashed, operands > 0 ? argv[1] : NULL);
    if (code == K2_OK && operands > 1) code = k2_error_set(&err, K2_BAD_INPUT, "one RUN_DIR; k2rl stacks --help tells more");
    static k2_config config; /* large */
    k2_config_defaults(&config);
    if (code == K2_OK) code = show(operands == 1 ? argv[1] : config.run_dir, json, all, &err);
    if (code != K2_OK) fprintf(stderr, "k2rl stacks: %s\n", err.text);
    return k2_code_exit(code);
}
