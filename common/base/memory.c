/* Memory: allocation that cannot fail, arenas. */
#include "common/base/base.h"

#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static _Thread_local unsigned hot_depth; /* > 0 inside a phase that must not allocate */

void k2_hot_begin(void)
{
    hot_depth++;
}

void k2_hot_end(void)
{
    K2_ASSERT(hot_depth > 0);
    hot_depth--;
}

#define MAPPED_BYTES (1 << 20)

void k2_memory_begin(void)
{
    mallopt(M_MMAP_THRESHOLD, MAPPED_BYTES);
    mallopt(M_TRIM_THRESHOLD, 2 * MAPPED_BYTES);
}

static void *checked(void *p, size_t bytes)
{
    if (p) return p;
    fprintf(stderr, "k2rl: out of memory: %zu bytes were asked for\n", bytes);
    fflush(stderr);
    _Exit(1);
}

void *k2_alloc(size_t bytes)
{
    K2_ASSERT(hot_depth == 0);
    return checked(calloc(1, bytes ? bytes : 1), bytes);
}

void *k2_alloc_array(size_t count, size_t size)
{
    size_t bytes;
    if (__builtin_mul_overflow(count, size, &bytes)) checked(NULL, SIZE_MAX);
    return k2_alloc(bytes);
}

void *k2_realloc_array(void *old, size_t count, size_t size)
{
    K2_ASSERT(hot_depth == 0);
    size_t bytes;
    if (__builtin_mul_overflow(count, size, &bytes)) checked(NULL, SIZE_MAX);
    return checked(realloc(old, bytes ? bytes : 1), bytes);
}

void *k2_alloc_aligned(size_t align, size_t bytes)
{
    K2_ASSERT(hot_depth == 0 && align >= 8 && (align & (align - 1)) == 0);
    K2_ASSERT(bytes <= SIZE_MAX - align);
    size_t rounded = (K2_MAX(bytes, (size_t)1) + align - 1) & ~(align - 1);
    void *p = checked(aligned_alloc(align, rounded), rounded);
    return memset(p, 0, rounded);
}

char *k2_strndup(const char *s, size_t n)
{
    n = strnlen(s, n);
    char *copy = k2_alloc(n + 1);
    memcpy(copy, s, n);
    return copy;
}

char *k2_strdup(const char *s)
{
    return k2_strndup(s, strlen(s));
}

char *k2_asprintf(const char *fmt, ...)
{
    K2_ASSERT(hot_depth == 0);
    va_list ap;
    char *out = NULL;
    va_start(ap, fmt);
    int n = vasprintf(&out, fmt, ap);
    va_end(ap);
    return checked(n < 0 ? NULL : out, 0);
}

void k2_free(void *p)
{
    free(p);
}

#define ARENA_ALIGN 64u /* one cache line, and the widest vector register */

void k2_arena_init(k2_arena *a, size_t capacity)
{
    *a = (k2_arena){.base = k2_alloc_aligned(ARENA_ALIGN, capacity), .capacity = capacity};
}

void k2_arena_fini(k2_arena *a)
{
    k2_free(a->base);
    *a = (k2_arena){0};
}

void *k2_arena_try(k2_arena *a, size_t bytes)
{
    K2_ASSERT(!a->sealed);
    size_t start = (a->used + ARENA_ALIGN - 1) & ~(size_t)(ARENA_ALIGN - 1);
    if (start > a->capacity || bytes > a->capacity - start) return NULL;
    a->used = start + bytes;
    if (a->used > a->peak) a->peak = a->used;
    return a->base + start;
}

void *k2_arena_alloc(k2_arena *a, size_t bytes)
{
    void *p = k2_arena_try(a, bytes);
    K2_ASSERT(p != NULL);
    return p;
}
