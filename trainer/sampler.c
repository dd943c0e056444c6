/* sampler - the order in which pretraining reads its corpus. See sampler_int.h. */
#include "trainer/sampler_int.h"

struct k2i_sampler {
    uint64_t documents, windows, seed, epoch; /* epoch: whose order stands in `order` */
    uint64_t *first;                          /* [documents + 1] number of the first window of each document */
    uint64_t *predicts;                       /* [documents] tokens predicted in it */
    uint32_t *order;                          /* [windows] the visits of one epoch */
    uint32_t sequence_tokens;
};

#define EPOCH_NONE UINT64_MAX

k2_code k2i_sampler_new(uint64_t documents, uint64_t (*length)(void *arg, uint64_t document), void *arg,
                        uint32_t sequence_tokens, uint64_t seed, k2i_sampler **out, k2_error *err)
{
    K2_ASSERT(sequence_tokens >= 1);
    k2i_sampler *s = k2_alloc(sizeof(*s));
    *s = (k2i_sampler){.documents = documents, .seed = seed, .epoch = EPOCH_NONE, .sequence_tokens = sequence_tokens};
    s->first = k2_alloc_array(documents + 1, sizeof(*s->first));
    s->predicts = k2_alloc_array(documents, sizeof(*s->predicts));
    for (uint64_t d = 0; d < documents; d++) {
        uint64_t tokens = length(arg, d);
        s->predicts[d] = tokens < 2 ? 0 : tokens - 1;
        s->windows += s->predicts[d] / sequence_tokens + (s->predicts[d] % sequence_tokens != 0);
        s->first[d + 1] = s->windows;
        if (s->windows > K2I_WINDOWS_MAX) break;
    }
    k2_code code = K2_OK;
    if (s->windows > K2I_WINDOWS_MAX)
        code = k2_error_set(err, K2_LIMIT, "the corpus has more than %u windows of pretrain.sequence_tokens = %u; raise it",
                            K2I_WINDOWS_MAX, sequence_tokens);
    else if (s->windows == 0)
        code = k2_error_set(err, K2_BAD_INPUT, "the corpus has %llu documents, and not one of two tokens or more",
                            (unsigned long long)documents);
    if (code != K2_OK) {
        k2i_sampler_free(s);
        return code;
    }
    s->order = k2_alloc_array(s->windows, sizeof(*s->order));
    *out = s;
    return K2_OK;
}

void k2i_sampler_free(k2i_sampler *s)
{
    if (!s) return;
    k2_free(s->order);
    k2_free(s->predicts);
    k2_free(s->first);
    k2_free(s);
}

uint64_t k2i_sampler_windows(const k2i_sampler *s)
{
    return s->windows;
}

/* Fisher-Yates from the identity, each draw by counter: any epoch's order can be made alone. */
static void order_draw(k2i_sampler *s, uint64_t epoch)
{
    if (s->epoch == epoch) return;
    for (uint64_t i = 0; i < s->windows; i++) s->order[i] = (uint32_t)i;
    for (uint64_t i = s->windows - 1; i > 0; i--) {
        uint64_t j = k2_rand_below(s->seed, K2_STREAM_SHUFFLE, epoch, i, i + 1);
        uint32_t held = s->order[i];
        s->order[i] = s->order[j];
        s->order[j] = held;
    }
    s->epoch = epoch;
}

static uint64_t document_of(const k2i_sampler *s, uint64_t window)
{
    uint64_t low = 0, high = s->documents; /* first[low] <= window < first[high] */
    while (high - low > 1) {
        uint64_t middle = low + (high - low) / 2;
        if (s->first[middle] <= window)
            low = middle;
        else
            high = middle;
    }
    return low;
}

void k2i_sampler_step(k2i_sampler *s, uint64_t step, uint32_t n, k2i_window *out)
{
    for (uint32_t i = 0; i < n; i++) {
        uint64_t position = step * n + i;
        order_draw(s, position / s->windows);
        uint64_t window = s->order[position % s->windows], d = document_of(s, window);
        uint64_t offset = (window - s->first[d]) * s->sequence_tokens, left = s->predicts[d] - offset;
        out[i] = (k2i_window){.document = d, .offset = offset, .tokens = (uint32_t)K2_MIN(left, (uint64_t)s->sequence_tokens)};
    }
}
