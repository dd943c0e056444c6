/* The writer's side: a file that is mapped, and events into it. See flight_int.h for the layout. */
#include "common/flight/flight_int.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#define NONE UINT32_MAX /* track of a thread for which there is none left */

typedef struct recorder {
    k2i_flight_header *header;
    k2i_flight_track *tracks;
    k2i_flight_slot *slots;
    uint64_t slot_count;
    uint32_t generation; /* a thread's track belongs to one recorder */
} recorder;

static recorder recorders[2]; /* a thread may still write into the last one while the next is made */
static _Atomic(recorder *) current;
static _Atomic uint32_t generations;
static _Atomic uint64_t ids;

static _Thread_local uint32_t my_generation, my_track, my_depth;
static _Thread_local bool my_named;

/* ---- words ---------------------------------------------------------------------------------------------------------- */

uint64_t k2_flight_text_at(const char *text, size_t at)
{
    uint64_t out = 0;
    if (text == NULL) return 0;
    for (size_t i = 0; i < at; i++)
        if (text[i] == 0) return 0;
    for (uint32_t i = 0; i < 8 && text[at + i] != 0; i++) out |= (uint64_t)(unsigned char)text[at + i] << (8 * i);
    return out;
}

static void put(_Atomic uint64_t *word, uint64_t value)
{
    /* Release: none of these may become visible before what marks the slot as being written. Free on the machines we run on. */
    atomic_store_explicit(word, value, memory_order_release);
}

static void write_event(recorder *r, k2i_flight_kind kind, k2_flight_name name, uint32_t track, uint64_t time, uint64_t extra,
                        const uint64_t *args)
{
    uint64_t number = atomic_fetch_add_explicit(&r->header->next, 1, memory_order_relaxed) + 1;
    _Atomic uint64_t *to = r->slots[(number - 1) % r->slot_count].word;
    uint64_t w[K2I_FLIGHT_WORDS] = {number,  time,    (uint64_t)name | (uint64_t)kind << 16 | (uint64_t)(track & 0xff) << 24,
                                    extra,   args[0], args[1],
                                    args[2], args[3]};
    w[2] |= (uint64_t)k2i_flight_check(w, K2I_FLIGHT_WORDS) << 32;
    atomic_store_explicit(&to[0], 0, memory_order_relaxed);
    for (uint32_t i = 1; i < K2I_FLIGHT_WORDS; i++) put(&to[i], w[i]);
    put(&to[0], number);
}

static void open_put(k2i_flight_track *t, uint32_t depth, k2_flight_name name, uint64_t time, const uint64_t *args)
{
    uint64_t w[6] = {name, time, args[0], args[1], args[2], args[3]};
    w[0] |= (uint64_t)k2i_flight_check(w, 6) << 32;
    for (uint32_t i = 0; i < 6; i++) put(&t->open[depth].word[i], w[i]);
    atomic_store_explicit(&t->depth, depth + 1, memory_order_release);
}

/* Ends what is open above `depth`, innermost first. `args` of the outermost may have been changed. */
static void open_end(recorder *r, uint32_t track, uint32_t from, uint32_t depth, uint64_t now)
{
    k2i_flight_track *t = &r->tracks[track];
    for (uint32_t d = from; d > depth; d--) {
        uint64_t w[6];
        for (uint32_t i = 0; i < 6; i++) w[i] = atomic_load_explicit(&t->open[d - 1].word[i], memory_order_relaxed);
        write_event(r, K2I_FLIGHT_SPAN, (k2_flight_name)(w[0] & 0xffff), track, now, w[1], w + 2);
        /* After the event: a process that dies between the two shows the span twice rather than never. */
        atomic_store_explicit(&t->depth, d - 1, memory_order_release);
    }
}

/* ---- threads -------------------------------------------------------------------------------------------------------- */

static uint32_t track_take(recorder *r)
{
    my_generation = r->generation;
    my_depth = 0;
    my_named = false;
    uint32_t n = atomic_fetch_add_explicit(&r->header->threads, 1, memory_order_relaxed) + 1;
    my_track = n <= K2_FLIGHT_THREADS_MAX ? n : NONE;
    if (my_track == NONE) {
        atomic_fetch_sub_explicit(&r->header->threads, 1, memory_order_relaxed);
        return NONE;
    }
    k2i_flight_track *t = &r->tracks[my_track];
    put(&t->name[0], k2_flight_text("thread"));
    atomic_store_explicit(&t->tid, (uint32_t)syscall(SYS_gettid), memory_order_release);
    return my_track;
}

/* Where the calling thread records, NULL where it does not. *track = NONE: recorder, but no track left. */
static recorder *mine(uint32_t *track)
{
    recorder *r = atomic_load_explicit(&current, memory_order_acquire);
    if (r == NULL) return NULL;
    *track = my_generation == r->generation ? my_track : track_take(r);
    if (*track != NONE) return r;
    atomic_fetch_add_explicit(&r->header->left_out, 1, memory_order_relaxed);
    return NULL;
}

void k2_flight_thread(const char *name)
{
    uint32_t track;
    recorder *r = mine(&track);
    if (r == NULL || my_named) return;
    my_named = true;
    put(&r->tracks[track].name[0], k2_flight_text_at(name, 0));
    put(&r->tracks[track].name[1], k2_flight_text_at(name, 8));
}

/* ---- recording ------------------------------------------------------------------------------------------------------ */

bool k2_flight_on(void)
{
    return atomic_load_explicit(&current, memory_order_relaxed) != NULL;
}

uint32_t k2_flight_begin(k2_flight_name name, uint64_t a, uint64_t b, uint64_t c, uint64_t d)
{
    uint32_t track;
    recorder *r = mine(&track);
    if (r == NULL) return 0;
    if (my_depth == K2_FLIGHT_DEPTH_MAX) {
        atomic_fetch_add_explicit(&r->header->left_out, 1, memory_order_relaxed);
        return 0;
    }
    open_put(&r->tracks[track], my_depth, name, k2_now_ns(), (const uint64_t[]){a, b, c, d});
    return ++my_depth;
}

void k2_flight_end(uint32_t span)
{
    uint32_t track;
    recorder *r = span != 0 ? mine(&track) : NULL;
    if (r == NULL || span > my_depth) return; /* begun before this recorder was opened */
    open_end(r, track, my_depth, span - 1, k2_now_ns());
    my_depth = span - 1;
}

void k2_flight_end_with(uint32_t span, uint32_t arg, uint64_t value)
{
    uint32_t track;
    recorder *r = span != 0 ? mine(&track) : NULL;
    if (r == NULL || span > my_depth) return;
    put(&r->tracks[track].open[span - 1].word[2 + arg], value);
    k2_flight_end(span);
}

void k2_flight_state(k2_flight_name name, uint64_t a, uint64_t b, uint64_t c, uint64_t d)
{
    recorder *r = atomic_load_explicit(&current, memory_order_acquire);
    if (r == NULL) return;
    uint64_t now = k2_now_ns();
    open_end(r, 0, atomic_load_explicit(&r->tracks[0].depth, memory_order_relaxed), 0, now);
    open_put(&r->tracks[0], 0, name, now, (const uint64_t[]){a, b, c, d});
}

static void simple(k2i_flight_kind kind, k2_flight_name name, uint64_t extra, const uint64_t *args)
{
    uint32_t track;
    recorder *r = mine(&track);
    if (r != NULL) write_event(r, kind, name, track, k2_now_ns(), extra, args);
}

uint64_t k2_flight_id(void)
{
    return atomic_fetch_add_explicit(&ids, 1, memory_order_relaxed) + 1;
}

void k2_flight_start(k2_flight_name name, uint64_t id, uint64_t a, uint64_t b, uint64_t c, uint64_t d)
{
    simple(K2I_FLIGHT_START, name, id, (const uint64_t[]){a, b, c, d});
}

void k2_flight_finish(k2_flight_name name, uint64_t id, uint64_t a, uint64_t b, uint64_t c, uint64_t d)
{
    simple(K2I_FLIGHT_FINISH, name, id, (const uint64_t[]){a, b, c, d});
}

void k2_flight_mark(k2_flight_name name, uint64_t a, uint64_t b, uint64_t c, uint64_t d)
{
    simple(K2I_FLIGHT_MARK, name, 0, (const uint64_t[]){a, b, c, d});
}

void k2_flight_count(k2_flight_name name, uint64_t a, uint64_t b, uint64_t c, uint64_t d)
{
    simple(K2I_FLIGHT_COUNT, name, 0, (const uint64_t[]){a, b, c, d});
}

/* ---- open and close ------------------------------------------------------------------------------------------------- */

static int by_name(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

/* Rings of this role and index but the last ones. Their names sort by start. What cannot be removed stays. */
static void prune(const char *dir, const char *prefix)
{
    char *names[256];
    size_t count = 0, n = strlen(prefix);
    DIR *d = opendir(dir);
    if (d == NULL) return;
    for (struct dirent *e; (e = readdir(d)) != NULL && count < K2_COUNT(names);) {
        size_t len = strlen(e->d_name);
        if (strncmp(e->d_name, prefix, n) == 0 && len > 5 && strcmp(e->d_name + len - 5, ".ring") == 0)
            names[count++] = k2_strdup(e->d_name);
    }
    qsort(names, count, sizeof *names, by_name);
    for (size_t i = 0; i < count; i++) {
        if (i + K2_FLIGHT_KEPT < count + 1) (void)unlinkat(dirfd(d), names[i], 0); /* +1: the one that is about to be made */
        k2_free(names[i]);
    }
    closedir(d);
}

/* Reserved on the disk before it is mapped: a page that finds no room later would be a SIGBUS. */
static k2_code reserve(int fd, uint64_t bytes, const char *path, k2_error *err)
{
    struct rlimit limit;
    if (getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY && limit.rlim_cur < bytes)
        return k2_error_set(err, K2_NO_SPACE, "%s: files may have %llu bytes here, %llu are needed", path,
                            (unsigned long long)limit.rlim_cur, (unsigned long long)bytes);
    int rc = posix_fallocate(fd, 0, (off_t)bytes);
    return rc == 0 ? K2_OK : k2_error_errno(err, rc, "%s: cannot reserve %llu bytes", path, (unsigned long long)bytes);
}

static void copy_line(const char *path, char *out, size_t size)
{
    FILE *f = fopen(path, "re");
    if (f == NULL) return;
    if (fgets(out, (int)size, f) == NULL) out[0] = 0;
    fclose(f);
    out[strcspn(out, "\n")] = 0;
}

/* Field 22 of /proc/self/stat. The name in field 2 may hold blanks and brackets, so counting begins behind the last one. */
static uint64_t start_ticks(void)
{
    char line[1024] = "";
    copy_line("/proc/self/stat", line, sizeof line);
    const char *p = strrchr(line, ')');
    for (int field = 2; p != NULL && field < 22; field++) {
        p = strchr(p, ' ');
        if (p != NULL) p++;
    }
    return p != NULL ? strtoull(p, NULL, 10) : 0;
}

uint64_t k2i_flight_names_hash(void)
{
    static const char text[] =
#define K2_X(name, category, text, a, b, c, d) category "/" text "/" a "/" b "/" c "/" d "\n"
        K2_FLIGHT_NAMES(K2_X)
#undef K2_X
#define K2_X(name, text) text "\n"
            K2_FLIGHT_COLLECTIVES(K2_X)
#undef K2_X
        ;
    return k2_hash64(text, sizeof text, K2I_FLIGHT_VERSION);
}

const char *k2_flight_collective_text(uint32_t op)
{
    static const char *const names[] = {
#define K2_X(name, text) text,
        K2_FLIGHT_COLLECTIVES(K2_X)
#undef K2_X
    };
    return op < K2_COUNT(names) ? names[op] : "an unknown operation";
}

static void header_fill(k2i_flight_header *h, const k2_flight_config *f)
{
    h->version = K2I_FLIGHT_VERSION;
    h->index = f->index;
    h->names = k2i_flight_names_hash();
    h->bytes = f->kib * 1024;
    h->pid = (uint64_t)getpid();
    h->ticks = start_ticks();
    h->incarnation = f->incarnation;
    snprintf(h->role, sizeof h->role, "%s", f->role);
    snprintf(h->run_id, sizeof h->run_id, "%s", f->run_id != NULL ? f->run_id : "");
    (void)gethostname(h->host, sizeof h->host - 1);
    copy_line("/proc/sys/kernel/random/boot_id", h->boot, sizeof h->boot);
    h->mono_ns = k2_now_ns();
    h->wall_ns = k2_wall_us() * 1000;
    h->magic = K2I_FLIGHT_MAGIC; /* last: a reader of a half-made ring sees that it is none */
}

static k2_code map_ring(const char *path, uint64_t bytes, void **out, k2_error *err)
{
    int fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (fd < 0) return k2_error_errno(err, errno, "%s: cannot create", path);
    k2_code code = reserve(fd, bytes, path, err);
    void *at = code == K2_OK ? mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0) : MAP_FAILED;
    if (code == K2_OK && at == MAP_FAILED) code = k2_error_errno(err, errno, "%s: cannot map", path);
    close(fd);
    if (code != K2_OK)
        (void)unlink(path);
    else
        *out = at;
    return code;
}

static k2_code config_check(const k2_flight_config *f, k2_error *err)
{
    if (f->role[0] == 0 || strlen(f->role) > 15 || strspn(f->role, K2I_FLIGHT_ROLE_LETTERS) != strlen(f->role))
        return k2_error_set(err, K2_BAD_INPUT, "flight: role \"%.40s\", expected at most 15 small letters", f->role);
    if (f->kib < K2_FLIGHT_KIB_MIN || f->kib > K2_FLIGHT_KIB_MAX)
        return k2_error_set(err, K2_LIMIT, "flight: a ring of %llu KiB, expected 0 or %u to %u", (unsigned long long)f->kib,
                            K2_FLIGHT_KIB_MIN, K2_FLIGHT_KIB_MAX);
    return K2_OK;
}

k2_code k2_flight_open(const k2_flight_config *f, k2_error *err)
{
    k2_flight_close();
    if (f->kib == 0) return K2_OK;
    k2_code code = config_check(f, err);
    if (code != K2_OK) return code;
    char *dir = k2_asprintf("%s/flight", f->dir), *prefix = k2_asprintf("%s-%u.", f->role, f->index);
    char *path = k2_asprintf("%s/%s%013llu-%d.ring", dir, prefix, (unsigned long long)(k2_wall_us() / 1000), (int)getpid());
    void *at = NULL;
    code = k2_dir_make(dir, err);
    if (code == K2_OK) {
        prune(dir, prefix);
        code = map_ring(path, f->kib * 1024, &at, err);
    }
    if (code == K2_OK) {
        uint32_t generation = atomic_fetch_add(&generations, 1) + 1;
        recorder *r = &recorders[generation % 2];
        *r = (recorder){.header = at,
                        .tracks = (k2i_flight_track *)(void *)((char *)at + K2I_FLIGHT_TRACKS_AT),
                        .slots = (k2i_flight_slot *)(void *)((char *)at + K2I_FLIGHT_SLOTS_AT),
                        .slot_count = (f->kib * 1024 - K2I_FLIGHT_SLOTS_AT) / sizeof(k2i_flight_slot),
                        .generation = generation};
        header_fill(r->header, f);
        atomic_store_explicit(&current, r, memory_order_release);
    }
    k2_free(dir);
    k2_free(prefix);
    k2_free(path);
    return code;
}

void k2_flight_close(void)
{
    recorder *r = atomic_exchange(&current, NULL);
    if (r == NULL) return;
    uint64_t now = k2_now_ns();
    open_end(r, 0, atomic_load_explicit(&r->tracks[0].depth, memory_order_relaxed), 0, now);
    put(&r->header->closed_ns, now);
}
