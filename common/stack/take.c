/* Unwinding another process with libdw. While the target is held only program counters are gathered; the tables for that are
 * read before, and names and lines are looked up after it runs again. Separate debug files are not looked for: a search may go
 * to the network, and our own program carries its lines with it. */
#include "common/stack/stack_int.h"

#include <dirent.h>
#include <elfutils/libdwfl.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct raw { /* of one thread */
    pid_t tid;
    uint64_t pcs[K2_STACK_FRAMES_MAX]; /* inside the call, not behind it */
    uint32_t count;
    bool cut;
} raw;

typedef struct taking {
    const k2_proc *proc;
    char program[PATH_MAX]; /* as the kernel calls it in maps, too */
    Dwfl *dwfl;
    k2i_hold hold;
    raw *raws;
    uint32_t count, capacity;
    k2_proc *threads; /* before the hold: pid is the thread's id */
    uint32_t thread_count;
} taking;

static const taking *now_taking; /* libdwfl's callbacks get no argument of ours: one taking at a time */

/* ---- modules ---------------------------------------------------------------------------------------------------------------
 */

/* The program itself by /proc/PID/exe: its file may have been replaced by a rebuild. */
static int find_elf(Dwfl_Module *mod, void **userdata, const char *name, Dwarf_Addr base, char **file, Elf **elf)
{
    if (strcmp(name, now_taking->program) == 0) {
        char path[64];
        snprintf(path, sizeof path, "/proc/%d/exe", (int)now_taking->proc->pid);
        int fd = open(path, O_RDONLY | O_CLOEXEC);
        if (fd >= 0) {
            *file = strdup(name); /* libdwfl frees it */
            return fd;
        }
    }
    return dwfl_linux_proc_find_elf(mod, userdata, name, base, file, elf);
}

static int no_debuginfo(Dwfl_Module *mod, void **userdata, const char *name, Dwarf_Addr base, const char *file,
                        const char *debuglink, GElf_Word crc, char **debuginfo_file)
{
    (void)mod, (void)userdata, (void)name, (void)base, (void)file, (void)debuglink, (void)crc, (void)debuginfo_file;
    return -1;
}

static const Dwfl_Callbacks callbacks = {.find_elf = find_elf, .find_debuginfo = no_debuginfo};

/* What the unwinder will ask for, while the target still runs. */
static int preload(Dwfl_Module *mod, void **userdata, const char *name, Dwarf_Addr start, void *arg)
{
    (void)userdata, (void)name, (void)start, (void)arg;
    Dwarf_Addr bias;
    (void)dwfl_module_eh_cfi(mod, &bias);
    return DWARF_CB_OK;
}

static k2_code load(taking *t, k2_error *err)
{
    char path[64];
    pid_t pid = t->proc->pid;
    snprintf(path, sizeof path, "/proc/%d/exe", (int)pid);
    ssize_t n = readlink(path, t->program, sizeof t->program - 1);
    t->program[n > 0 ? n : 0] = 0;
    t->dwfl = dwfl_begin(&callbacks);
    if (!t->dwfl) return k2_error_set(err, K2_NO_MEMORY, "libdw: %.200s", dwfl_errmsg(-1));
    if (dwfl_linux_proc_report(t->dwfl, pid) != 0 || dwfl_report_end(t->dwfl, NULL, NULL) != 0) {
        k2_proc p;
        if (!k2_proc_read(pid, &p)) return k2_error_set(err, K2_NOT_FOUND, "pid %d has ended", (int)pid);
        return k2_error_set(err, K2_PEER_REFUSED, "pid %d: its memory map cannot be read: it is another user's, or has ended",
                            (int)pid);
    }
    (void)dwfl_getmodules(t->dwfl, preload, NULL, 0);
    return K2_OK;
}

/* Names and states of the threads, as they are before the hold changes them. */
static void look_at_threads(taking *t)
{
    char path[96], text[1024];
    snprintf(path, sizeof path, "/proc/%d/task", (int)t->proc->pid);
    DIR *d = opendir(path);
    uint32_t capacity = 32;
    t->threads = k2_alloc_array(capacity, sizeof *t->threads);
    for (struct dirent *e; d && (e = readdir(d));) {
        uint64_t tid;
        if (!k2_str_u64(e->d_name, &tid)) continue;
        snprintf(path, sizeof path, "/proc/%d/task/%u/stat", (int)t->proc->pid, (unsigned)tid);
        int fd = open(path, O_RDONLY | O_CLOEXEC);
        ssize_t n = fd >= 0 ? read(fd, text, sizeof text - 1) : -1;
        if (fd >= 0) close(fd);
        if (n <= 0) continue;
        text[n] = 0;
        if (t->thread_count == capacity) t->threads = k2_realloc_array(t->threads, capacity *= 2, sizeof *t->threads);
        t->thread_count += k2_proc_parse(text, &t->threads[t->thread_count]);
    }
    if (d) closedir(d);
}

/* ---- unwinding ------------------------------------------------------------------------------------------------------ */

static int on_frame(Dwfl_Frame *frame, void *arg)
{
    raw *r = arg;
    Dwarf_Addr pc;
    bool activation = false;
    if (!dwfl_frame_pc(frame, &pc, &activation)) return DWARF_CB_ABORT;
    if (r->count == K2_STACK_FRAMES_MAX) {
        r->cut = true;
        return DWARF_CB_ABORT;
    }
    r->pcs[r->count++] = activation ? pc : pc - 1; /* behind a call may be another function */
    return DWARF_CB_OK;
}

static int on_thread(Dwfl_Thread *thread, void *arg)
{
    taking *t = arg;
    pid_t tid = dwfl_thread_tid(thread);
    bool still = false;
    for (uint32_t i = 0; i < t->hold.count; i++) still = still || (t->hold.threads[i].tid == tid && t->hold.threads[i].still);
    if (!still) return DWARF_CB_OK;
    if (t->count == t->capacity) {
        t->capacity = t->capacity ? 2 * t->capacity : 32;
        t->raws = k2_realloc_array(t->raws, t->capacity, sizeof *t->raws);
    }
    raw *r = &t->raws[t->count++];
    *r = (raw){.tid = tid};
    if (dwfl_thread_getframes(thread, on_frame, r) != 0 && r->count < 2)
        r->cut = true; /* the outermost frame often has no rule */
    return DWARF_CB_OK;
}

static k2_code hold_and_unwind(taking *t, uint64_t deadline_ns, k2_stacks *out, k2_error *err)
{
    uint32_t missing = 0;
    pid_t pid = t->proc->pid;
    uint64_t from = k2_now_ns();
    k2_code code = k2i_hold_begin(&t->hold, pid, deadline_ns, &missing, err);
    if (code != K2_OK) return code;
    k2_proc now;
    if (!k2_proc_read(pid, &now) || now.start != t->proc->start)
        code = k2_error_set(err, K2_NOT_FOUND, "pid %d has ended; another process has its number", (int)pid);
    else if (dwfl_linux_proc_attach(t->dwfl, pid, true) != 0 || dwfl_getthreads(t->dwfl, on_thread, t) < 0)
        code = k2_error_set(err, K2_IO, "pid %d: cannot be unwound: %.200s", (int)pid, dwfl_errmsg(-1));
    k2i_hold_end(&t->hold);
    out->stopped_ns = k2_now_ns() - from;
    if (missing)
        snprintf(out->note, sizeof out->note, "%u thread%s could not be held still (asleep in the kernel)", missing,
                 missing == 1 ? "" : "s");
    return code;
}

/* ---- names ---------------------------------------------------------------------------------------------------------- */

static const char *base_name(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

/* The compiler names sources from its build folder ("../../trainer/main.c"), or by their whole path: the end is enough. */
static const char *source_name(const char *path)
{
    const char *at = path + strlen(path);
    for (int parts = 3; at > path; at--)
        if (at[-1] == '/' && --parts == 0) break;
    while (strncmp(at, "../", 3) == 0) at += 3;
    return at;
}

static void name_frame(const taking *t, uint64_t pc, k2_frame *f)
{
    Dwfl_Module *mod = dwfl_addrmodule(t->dwfl, pc);
    f->offset = pc;
    if (!mod) return;
    Dwarf_Addr start;
    GElf_Off offset;
    GElf_Sym sym;
    const char *name = dwfl_module_info(mod, NULL, &start, NULL, NULL, NULL, NULL, NULL);
    f->own = name && strcmp(name, t->program) == 0;
    f->offset = pc - start;
    if (name) snprintf(f->module, sizeof f->module, "%.*s", (int)strcspn(base_name(name), " "), base_name(name));
    const char *symbol = dwfl_module_addrinfo(mod, pc, &offset, &sym, NULL, NULL, NULL);
    if (symbol) k2_stack_function(symbol, f->function);
    Dwfl_Line *line = f->own ? dwfl_module_getsrc(mod, pc) : NULL;
    int number = 0;
    const char *file = line ? dwfl_lineinfo(line, NULL, &number, NULL, NULL, NULL) : NULL;
    if (file) snprintf(f->file, sizeof f->file, "%.*s", (int)sizeof f->file - 1, source_name(file));
    f->line = (uint32_t)number;
}

static void name_all(const taking *t, k2_stacks *out)
{
    out->threads = k2_alloc_array(t->count + 1, sizeof *out->threads);
    for (uint32_t i = 0; i < t->count; i++) {
        const raw *r = &t->raws[i];
        k2_stack *s = &out->threads[out->count++];
        *s = (k2_stack){.tid = r->tid, .count = r->count, .cut = r->cut, .state = '?'};
        s->frames = k2_alloc_array(r->count + 1, sizeof *s->frames);
        for (uint32_t k = 0; k < r->count; k++) name_frame(t, r->pcs[k], &s->frames[k]);
        for (uint32_t k = 0; k < t->thread_count; k++) {
            if (t->threads[k].pid != r->tid) continue;
            snprintf(s->name, sizeof s->name, "%s", t->threads[k].name);
            s->state = t->threads[k].state;
        }
    }
}

k2_code k2_stacks_take(const k2_proc *proc, uint64_t deadline_ns, k2_stacks *out, k2_error *err)
{
    taking t = {.proc = proc};
    k2_stacks s = {.proc = *proc};
    now_taking = &t;
    k2_code code = load(&t, err);
    if (code == K2_OK) {
        look_at_threads(&t);
        code = hold_and_unwind(&t, deadline_ns, &s, err);
    }
    if (code == K2_OK) {
        name_all(&t, &s);
        *out = s;
    }
    if (t.dwfl) dwfl_end(t.dwfl);
    now_taking = NULL;
    k2_free(t.raws);
    k2_free(t.threads);
    return code;
}

void k2_stacks_free(k2_stacks *s)
{
    for (uint32_t i = 0; i < s->count; i++) k2_free(s->threads[i].frames);
    k2_free(s->threads);
    s->threads = NULL;
    s->count = 0;
}
