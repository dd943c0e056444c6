/* Growing lists of ids. */
#include "common/token/token.h"

#include <string.h>

void k2_tokens_init(k2_tokens *list, size_t count_max)
{
    *list = (k2_tokens){.count_max = count_max};
}

void k2_tokens_fini(k2_tokens *list)
{
    k2_free(list->ids);
    *list = (k2_tokens){.count_max = list->count_max};
}

void k2_tokens_clear(k2_tokens *list)
{
    list->count = 0;
    list->overflow = false;
}

/* Room for `count` more ids, or NULL (and `overflow`) past the cap. */
static int32_t *tokens_reserve(k2_tokens *list, size_t count)
{
    if (count > list->count_max || list->count > list->count_max - count) {
        list->overflow = true;
        return NULL;
    }
    size_t need = list->count + count;
    if (need > list->capacity || !list->ids) {
        size_t grown = K2_MAX(need, K2_MIN(K2_MAX(list->capacity * 2, (size_t)64), list->count_max));
        list->ids = k2_realloc_array(list->ids, grown, sizeof *list->ids);
        list->capacity = grown;
    }
    return list->ids + list->count;
}

bool k2_tokens_push(k2_tokens *list, const int32_t *ids, size_t count)
{
    int32_t *room = tokens_reserve(list, count);
    if (!room) return false;
    if (count) memcpy(room, ids, count * sizeof *ids);
    list->count += count;
    return true;
}
