/* sample - see sample.h. One page a sequence: all are short. */
#include "tests/bench/trainer/sample.h"

#include <string.h>

#include "common/token/token.h"

enum { PAGE = 96, ANSWER_MAX = 56 };

typedef struct answers {
    k2_model *model;
    k2_model_kv kv;
    k2_arena arena;
    uint32_t count, vocab;
    uint32_t *pages;
    k2_tokens *text; /* [count] prompt, then answer */
    size_t *prompt;  /* [count] tokens of the prompt */
    bool *done;
    float *logits; /* [count, vocab] */
    k2_softmax *softmax;
} answers;

static void begin(answers *a, k2_model *model, const k2_prompts *prompts, uint32_t count)
{
    const k2_dims *dims = k2_model_dims(model);
    k2_tokenizer *t;
    K2_ASSERT(k2_tokenizer_open("byte", NULL, &t, NULL) == K2_OK);
    *a = (answers){.model = model, .count = count, .vocab = dims->vocab_size};
    a->kv = (k2_model_kv){.page_tokens = PAGE, .pages_count = count};
    a->kv.pages = k2_alloc_aligned(64, k2_model_page_floats(dims, PAGE) * count * sizeof(float));
    k2_arena_init(&a->arena, k2_model_decode_bytes(dims, 1, (size_t)count * PAGE / 2, PAGE));
    a->pages = k2_alloc_array(count, sizeof(*a->pages));
    a->text = k2_alloc_array(count, sizeof(*a->text));
    a->prompt = k2_alloc_array(count, sizeof(*a->prompt));
    a->done = k2_alloc_array(count, sizeof(*a->done));
    a->logits = k2_alloc_array((size_t)count * a->vocab, sizeof(float));
    a->softmax = k2_alloc_array(count, sizeof(*a->softmax));
    for (uint32_t i = 0; i < count; i++) {
        const char *content = k2_prompts_at(prompts, i)->messages[0].content;
        k2_token_message message = {.role = "user", .content = content, .content_bytes = strlen(content)};
        a->pages[i] = i;
        k2_tokens_init(&a->text[i], PAGE);
        K2_ASSERT(k2_tokenizer_chat(t, &message, 1, true, &a->text[i], NULL) == K2_OK);
        a->prompt[i] = a->text[i].count;
    }
    k2_tokenizer_close(t);
}

static void end(answers *a)
{
    for (uint32_t i = 0; i < a->count; i++) k2_tokens_fini(&a->text[i]);
    k2_free(a->softmax);
    k2_free(a->logits);
    k2_free(a->done);
    k2_free(a->prompt);
    k2_free(a->text);
    k2_free(a->pages);
    k2_arena_fini(&a->arena);
    k2_free(a->kv.pages);
}

static int32_t draw(const float *logits, const k2_softmax *s, uint32_t vocab, double u, bool greedy)
{
    float best = logits[0], p[512];
    int32_t at = 0;
    K2_ASSERT(vocab <= K2_COUNT(p));
    for (uint32_t i = 1; i < vocab && greedy; i++)
        if (logits[i] > best) best = logits[at = (int32_t)i];
    if (greedy) return at;
    k2_kern_exp(vocab, logits, s->max + s->logsum, p);
    double sum = 0;
    for (uint32_t i = 0; i < vocab; i++) {
        sum += (double)p[i];
        if (u < sum) return (int32_t)i;
    }
    return (int32_t)vocab - 1;
}

/* One token for everybody who is not done; the first call feeds whole prompts. */
static uint32_t step(answers *a, bool first, uint64_t seed, bool greedy)
{
    k2_model_row *rows = k2_alloc_array((size_t)a->count * PAGE, sizeof(*rows));
    uint32_t count = 0, live = 0;
    for (uint32_t i = 0; i < a->count; i++) {
        const k2_tokens *t = &a->text[i];
        for (size_t p = first ? 0 : t->count - 1; p < t->count && !a->done[i]; p++)
            rows[count++] = (k2_model_row){.token = t->ids[p],
                                           .position = (uint32_t)p,
                                           .page_table = &a->pages[i],
                                           .logits = p + 1 == t->count ? a->logits + (size_t)i * a->vocab : NULL,
                                           .softmax = &a->softmax[i]};
    }
    if (count > 0) k2_model_decode(a->model, &a->kv, rows, count, &a->arena);
    k2_free(rows);
    for (uint32_t i = 0; i < a->count; i++) {
        if (a->done[i]) continue;
        double u = k2_rand_unit(seed, K2_STREAM_SAMPLE, i, a->text[i].count);
        int32_t id = draw(a->logits + (size_t)i * a->vocab, &a->softmax[i], a->vocab, u, greedy);
        (void)k2_tokens_push(&a->text[i], &id, 1);
        a->done[i] = id == K2_TOKEN_BYTE_IM_END || a->text[i].count - a->prompt[i] >= ANSWER_MAX;
        live += !a->done[i];
    }
    return live;
}

static size_t skill_apply(uint32_t skill, const char *s, size_t n, char *out)
{
    for (size_t i = 0; i < n; i++) {
        if (skill == 0 || skill == 3) out[i] = s[i];
        if (skill == 1) out[i] = s[n - 1 - i];
        if (skill == 2) out[2 * i] = out[2 * i + 1] = s[i];
        if (skill == 3) out[2 * n - 1 - i] = s[i];
    }
    return skill < 2 ? n : 2 * n;
}

static void score(const answers *a, const k2_prompts *prompts, uint32_t i, sample_score *out)
{
    const k2_prompt *p = k2_prompts_at(prompts, i);
    const char *letters = strchr(p->messages[0].content, ' ') + 1;
    const int32_t *ids = a->text[i].ids + a->prompt[i];
    size_t n = a->text[i].count - a->prompt[i], letters_count = strlen(letters);
    char answer[ANSWER_MAX + 1] = "", want[64];
    out->tokens += n;
    if (n == 0 || ids[n - 1] != K2_TOKEN_BYTE_IM_END) return;
    for (size_t t = 0; t + 1 < n; t++) answer[t] = ids[t] > 0 && ids[t] < 128 ? (char)ids[t] : '?';
    for (uint32_t skill = 0; skill < SAMPLE_SKILLS; skill++) {
        size_t bytes = skill_apply(skill, letters, letters_count, want);
        if (bytes != n - 1 || memcmp(want, answer, bytes) != 0) continue;
        out->skill[skill]++;
        out->valid++;
        break;
    }
    out->right += strcmp(answer, p->answer) == 0;
}

sample_score sample_answers(k2_model *model, const k2_prompts *prompts, uint32_t count, uint64_t seed, bool greedy)
{
    answers a;
    sample_score out = {.prompts = K2_MIN(count, (uint32_t)k2_prompts_count(prompts))};
    begin(&a, model, prompts, out.prompts);
    for (bool first = true; step(&a, first, seed, greedy) > 0;) first = false;
    for (uint32_t i = 0; i < out.prompts; i++) score(&a, prompts, i, &out);
    end(&a);
    return out;
}
