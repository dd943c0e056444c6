/* Equal stacks together, outliers first. Pure. */
#include "common/stack/stack.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void k2_stack_function(const char *symbol, char out[K2_STACK_NAME_MAX])
{
    static const char *const clones[] = {".constprop.", ".isra.", ".part.", ".cold", ".lto_priv.", "@"};
    size_t n = strlen(symbol);
    for (size_t i = 0; i < K2_COUNT(clones); i++) {
        const char *at = strstr(symbol, clones[i]);
        if (at && at > symbol && (size_t)(at - symbol) < n) n = (size_t)(at - symbol);
    }
    snprintf(out, K2_STACK_NAME_MAX, "%.*s", (int)K2_MIN(n, K2_STACK_NAME_MAX - 1), symbol);
}

void k2_frame_name(const k2_frame *f, char out[2 * K2_STACK_NAME_MAX])
{
    if (f->function[0])
        snprintf(out, 2 * K2_STACK_NAME_MAX, "%s", f->function);
    else
        snprintf(out, 2 * K2_STACK_NAME_MAX, "%s+0x%llx", f->module[0] ? f->module : "?", (unsigned long long)f->offset);
}

void k2_frame_text(const k2_frame *f, char *out, size_t n)
{
    char name[2 * K2_STACK_NAME_MAX];
    k2_frame_name(f, name);
    if (f->file[0])
        snprintf(out, n, "%s (%s:%u)", name, f->file, f->line);
    else if (f->function[0] && f->module[0])
        snprintf(out, n, "%s (%s)", name, f->module);
    else
        snprintf(out, n, "%s", name);
}

/* Where there is no name the place in the module stands for it: one library has one address for all of a run's processes. An
 * address of no module (generated code) says nothing. */
static int compare_frames(const k2_frame *a, const k2_frame *b)
{
    int d = strcmp(a->function, b->function);
    if (d == 0) d = strcmp(a->module, b->module);
    if (d == 0 && !a->function[0] && a->module[0]) d = (a->offset > b->offset) - (a->offset < b->offset);
    return d;
}

static int compare_stacks(const k2_stack *a, const k2_stack *b)
{
    for (uint32_t i = 0; i < a->count && i < b->count; i++) {
        int d = compare_frames(&a->frames[i], &b->frames[i]);
        if (d) return d;
    }
    return (a->count > b->count) - (a->count < b->count);
}

bool k2_stack_same(const k2_stack *a, const k2_stack *b)
{
    return compare_stacks(a, b) == 0;
}

bool k2_stack_own(const k2_stack *s)
{
    for (uint32_t i = 0; i < s->count; i++)
        if (s->frames[i].own) return true;
    return false;
}

void k2_stack_line(const k2_stack *s, uint32_t functions, char *out, size_t n)
{
    size_t at = 0;
    uint32_t end = s->count; /* what calls main, or a thread's first function, is always the same */
    while (end > 0 && (!s->frames[end - 1].own || strcmp(s->frames[end - 1].function, "_start") == 0)) end--;
    if (end == 0) end = s->count;
    out[0] = 0;
    for (uint32_t i = 0; i < end && functions > 0 && at + 1 < n; i++) {
        const k2_frame *f = &s->frames[i];
        char name[2 * K2_STACK_NAME_MAX];
        if (!f->function[0] && i > 0) continue;
        k2_frame_name(f, name);
        int did = snprintf(out + at, n - at, "%s%s", at ? " < " : "", name);
        at += (size_t)did;
        functions -= f->own;
    }
}

static int by_stack(const void *a, const void *b)
{
    const k2_stack_member *x = a, *y = b;
    int d = compare_stacks(x->stack, y->stack);
    if (d == 0) d = (x->process > y->process) - (x->process < y->process);
    if (d == 0) d = (x->stack->tid > y->stack->tid) - (x->stack->tid < y->stack->tid);
    return d;
}

static int by_number(const void *a, const void *b)
{
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return (x > y) - (x < y);
}

/* Different processes of a role (NULL: of all) among members. */
static uint32_t processes_of(const k2_stack_member *members, size_t count, const char *role)
{
    uint32_t *numbers = k2_alloc_array(count + 1, sizeof *numbers), n = 0, different = 0;
    for (size_t i = 0; i < count; i++)
        if (!role || strcmp(members[i].role, role) == 0) numbers[n++] = members[i].process;
    qsort(numbers, n, sizeof *numbers, by_number);
    for (uint32_t i = 0; i < n; i++) different += i == 0 || numbers[i] != numbers[i - 1];
    k2_free(numbers);
    return different;
}

static void weigh(const k2_stack_member *members, size_t count, k2_stack_cluster *c)
{
    const k2_stack_member *own = members + c->first;
    c->processes = processes_of(own, c->count, NULL);
    for (uint32_t i = 0; i < c->count; i++) {
        c->stopped = c->stopped || own[i].stack->state == 'T';
        if (i > 0 && strcmp(own[i].role, own[i - 1].role) == 0) continue;
        uint32_t here = processes_of(own, c->count, own[i].role), all = processes_of(members, count, own[i].role);
        if (c->share_of && (uint64_t)here * c->share_of >= (uint64_t)c->share * all) continue;
        c->share = here;
        c->share_of = all;
        memcpy(c->role, own[i].role, sizeof c->role);
    }
}

static int by_rarity(const void *a, const void *b)
{
    const k2_stack_cluster *x = a, *y = b;
    if (x->stopped != y->stopped) return x->stopped ? -1 : 1;
    uint64_t left = (uint64_t)x->share * y->share_of, right = (uint64_t)y->share * x->share_of;
    if (left != right) return left < right ? -1 : 1;
    if (x->processes != y->processes) return x->processes < y->processes ? -1 : 1;
    return x->first < y->first ? -1 : x->first > y->first;
}

size_t k2_stack_clusters(k2_stack_member *members, size_t count, k2_stack_cluster **out)
{
    qsort(members, count, sizeof *members, by_stack);
    k2_stack_cluster *list = k2_alloc_array(count + 1, sizeof *list);
    size_t n = 0;
    for (size_t i = 0; i < count; i++) {
        if (i == 0 || !k2_stack_same(members[i].stack, members[i - 1].stack)) list[n++].first = (uint32_t)i;
        list[n - 1].count++;
    }
    for (size_t i = 0; i < n; i++) weigh(members, count, &list[i]);
    qsort(list, n, sizeof *list, by_rarity);
    *out = list;
    return n;
}
