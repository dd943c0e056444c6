/* What /proc says of processes. */
#include "common/stack/stack.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

bool k2_proc_parse(const char *stat, k2_proc *out)
{
    k2_proc p = {0};
    int pid = 0, parent = 0;
    const char *open = strchr(stat, '('), *close = strrchr(stat, ')');
    if (sscanf(stat, "%d", &pid) != 1 || pid <= 0 || !open || !close || close < open) return false;
    unsigned long long start = 0;
    /* Behind the name: state, parent, 17 numbers that do not matter here, start. */
    if (sscanf(close + 1, " %c %d %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %llu", &p.state, &parent,
               &start) != 3)
        return false;
    p.pid = pid;
    p.parent = parent;
    p.start = start;
    snprintf(p.name, sizeof p.name, "%.*s", (int)(close - open - 1), open + 1);
    *out = p;
    return true;
}

bool k2_proc_read(pid_t pid, k2_proc *out)
{
    char path[64], text[1024];
    snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
    return k2_file_peek(path, text, sizeof text) > 0 && k2_proc_parse(text, out);
}

size_t k2_proc_list(k2_proc **list)
{
    size_t count = 0, capacity = 256;
    k2_proc *procs = k2_alloc_array(capacity, sizeof *procs);
    DIR *d = opendir("/proc");
    for (struct dirent *e; d && (e = readdir(d));) {
        uint64_t pid;
        if (!k2_str_u64(e->d_name, &pid) || pid > INT32_MAX) continue;
        if (count == capacity) procs = k2_realloc_array(procs, capacity *= 2, sizeof *procs);
        count += k2_proc_read((pid_t)pid, &procs[count]);
    }
    if (d) closedir(d);
    *list = procs;
    return count;
}

const char *k2_proc_state_text(char state)
{
    switch (state) {
    case 'R': return "R (running)";
    case 'S': return "S (sleeping)";
    case 'D': return "D (sleeping in the kernel, without interruption)";
    case 'T': return "T (stopped by a signal)";
    case 't': return "t (held by a debugger)";
    case 'Z': return "Z (has ended, not yet reaped)";
    default: return "?";
    }
}

void k2_stacks_outside(const k2_proc *proc, k2_buf *out)
{
    static const char *const files[] = {"wchan", "syscall"};
    for (size_t i = 0; i < K2_COUNT(files); i++) {
        char path[64], text[256];
        snprintf(path, sizeof path, "/proc/%d/%s", (int)proc->pid, files[i]);
        size_t n = k2_file_peek(path, text, sizeof text);
        while (n > 0 && text[n - 1] == '\n') text[--n] = 0;
        if (n > 0) k2_buf_printf(out, "%s%s %s", out->len ? "; " : "", files[i], text);
    }
}
