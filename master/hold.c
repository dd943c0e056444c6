/* hold - see hold_int.h. */
#include "master/hold_int.h"

#include <string.h>

#include "common/base/planted.h"

void k2m_hold_put(k2m_hold *h, const k2m_action *a, uint64_t needs, void *call)
{
    if (h->count == h->capacity && h->first > h->count / 2) { /* room in front: no need to grow */
        h->count -= h->first;
        memmove(h->list, h->list + h->first, h->count * sizeof *h->list);
        h->first = 0;
    }
    if (h->count == h->capacity) {
        h->capacity = h->capacity ? h->capacity * 2 : 256;
        h->list = k2_realloc_array(h->list, h->capacity, sizeof *h->list);
    }
    k2m_held *x = &h->list[h->count++];
    *x = (k2m_held){.needs = needs, .action = *a, .call = call};
    if (a->type == K2M_ACT_COMMAND) k2_msg_copy(&x->action.msg, &a->msg);
}

bool k2m_hold_take(k2m_hold *h, uint64_t durable, k2m_held *out)
{
    if (h->first == h->count || (h->list[h->first].needs > durable && !K2_PLANTED(ACTION_BEFORE_RECORD))) return false;
    *out = h->list[h->first++];
    if (h->first == h->count) h->first = h->count = 0;
    return true;
}

void k2m_held_free(k2m_held *held)
{
    if (held->action.type == K2M_ACT_COMMAND) k2_msg_free(&held->action.msg);
}

void k2m_hold_fini(k2m_hold *h)
{
    for (size_t i = h->first; i < h->count; i++) k2m_held_free(&h->list[i]);
    k2_free(h->list);
    *h = (k2m_hold){0};
}
