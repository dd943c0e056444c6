/* Slots by name. */
#include "slots_int.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int by_name(const void *a, const void *b)
{
    return strcmp((*(const k2_weights_slot *const *)a)->name, (*(const k2_weights_slot *const *)b)->name);
}

const k2_weights_slot **k2i_slots_sort(const k2_weights_slot *slots, size_t count)
{
    const k2_weights_slot **sorted = k2_alloc_array(count, sizeof *sorted);
    for (size_t i = 0; i < count; i++) sorted[i] = &slots[i];
    qsort(sorted, count, sizeof *sorted, by_name);
    for (size_t i = 1; i < count; i++) K2_ASSERT(strcmp(sorted[i - 1]->name, sorted[i]->name) != 0);
    return sorted;
}

size_t k2i_slots_place(const k2_weights_slot *const *sorted, size_t count, const char *name)
{
    const k2_weights_slot key = {.name = name}, *key_at = &key;
    const k2_weights_slot *const *found = bsearch(&key_at, sorted, count, sizeof *sorted, by_name);
    return found ? (size_t)(found - sorted) : count;
}

const k2_weights_slot *k2i_slots_find(const k2_weights_slot *const *sorted, size_t count, const char *name)
{
    const size_t place = k2i_slots_place(sorted, count, name);
    return place < count ? sorted[place] : NULL;
}

uint64_t k2i_slot_bytes(const k2_weights_slot *s)
{
    uint64_t n = 0;
    const bool fits = k2_shape_count(&s->shape, &n) && n <= UINT64_MAX / sizeof(float);
    K2_ASSERT(fits);
    return n * sizeof(float);
}

const char *k2i_shape_text(const k2_shape *s, char out[K2I_SHAPE_TEXT_MAX])
{
    int n = snprintf(out, K2I_SHAPE_TEXT_MAX, "[");
    for (uint32_t i = 0; i < s->rank; i++)
        n += snprintf(out + n, K2I_SHAPE_TEXT_MAX - (size_t)n, "%s%" PRIu64, i ? "," : "", s->size[i]);
    snprintf(out + n, K2I_SHAPE_TEXT_MAX - (size_t)n, "]");
    return out;
}
