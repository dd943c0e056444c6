/* The quickstart's task: word games whose rules are only in the rewards.
 *
 * Every choice is drawn by counter from (seed, item, draw), so that an item is the same whatever the sizes of the other files.
 * Whether a string of letters is held out follows from its hash alone: no list has to be kept to know that a held-out string
 * was never trained on, not even between runs with different sizes.
 */
#include "common/data/data.h"
#include "common/token/token.h"
#include "task_int.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define LETTERS_MAX    26u
#define ANSWER_MAX     (2u * LETTERS_MAX)
#define HELDOUT_ONE_IN 8u     /* of all letter strings */
#define DRAWS_PER_TRY  64u    /* draws that one try may use: 3 and one a letter */
#define TRIES_MAX      20000u /* for one item; the rarest kind of string is one in eight */
#define DOCUMENT_MAX   (16u + LETTERS_MAX + ANSWER_MAX)
#define LINE_BYTES_MAX 256u /* of one prompt as JSON */
#define STAMP_FORMAT   1u   /* goes up when the same seed and sizes begin to give other files */
_Static_assert(DRAWS_PER_TRY >= 3 + LETTERS_MAX, "a try may draw every letter");

/* Items of the three files are numbered apart, so that they never share draws. */
#define ITEM_CORPUS  (0ull << 32)
#define ITEM_PROMPTS (1ull << 32)
#define ITEM_HELDOUT (2ull << 32)

enum { DRAW_LENGTH, DRAW_WORD, DRAW_SKILL, DRAW_LETTERS };

typedef struct game {
    uint32_t word, n;
    char letters[LETTERS_MAX + 1];
} game;

/* ---- the four skills --------------------------------------------------------------------------------------------- */

static size_t answer_copy(const char *s, size_t n, char *out)
{
    memcpy(out, s, n);
    return n;
}

static size_t answer_back(const char *s, size_t n, char *out)
{
    for (size_t i = 0; i < n; i++) out[i] = s[n - 1 - i];
    return n;
}

static size_t answer_twin(const char *s, size_t n, char *out)
{
    for (size_t i = 0; i < n; i++) out[2 * i] = out[2 * i + 1] = s[i];
    return 2 * n;
}

static size_t answer_fold(const char *s, size_t n, char *out)
{
    return answer_copy(s, n, out) + answer_back(s, n, out + n);
}

/* A byte is a token, so short words make short prompts; no two of them begin alike. */
static const struct {
    const char *word;
    size_t (*answer)(const char *s, size_t n, char *out); /* at most 2n bytes */
} games[] = {
    {"copy", answer_copy},
    {"back", answer_back},
    {"twin", answer_twin},
    {"fold", answer_fold},
};
#define WORDS ((uint32_t)K2_COUNT(games))

/* ---- drawing ----------------------------------------------------------------------------------------------------- */

typedef struct source {
    uint64_t seed;
    const k2_task_sizes *sizes;
} source;

static uint64_t below(const source *s, uint64_t item, uint64_t draw, uint64_t n)
{
    return k2_rand_below(s->seed, K2_STREAM_TASK, item, draw, n);
}

/* n distinct letters, each string as likely as any other: the beginning of a Fisher-Yates shuffle. */
static void letters_draw(const source *s, uint64_t item, uint64_t draw, game *g)
{
    char deck[LETTERS_MAX];
    for (uint32_t i = 0; i < s->sizes->alphabet; i++) deck[i] = (char)('a' + i);
    for (uint32_t i = 0; i < g->n; i++) {
        uint64_t j = i + below(s, item, draw + i, s->sizes->alphabet - i);
        g->letters[i] = deck[j];
        deck[j] = deck[i];
    }
    g->letters[g->n] = 0;
}

static bool is_heldout(const source *s, const game *g)
{
    return k2_hash64(g->letters, g->n, s->seed) % HELDOUT_ONE_IN == 0;
}

static uint32_t lengths_count(const source *s)
{
    return s->sizes->letters_max - s->sizes->letters_min + 1;
}

/* Letters of one length and one class; false where none was found. `tried` goes on where an earlier call of this item stopped.
 */
static bool letters_find(const source *s, uint64_t item, bool heldout, uint64_t *tried, game *g)
{
    while (*tried < TRIES_MAX) {
        letters_draw(s, item, (*tried)++ * DRAWS_PER_TRY + DRAW_LETTERS, g);
        if (is_heldout(s, g) == heldout) return true;
    }
    return false;
}

/* ---- corpus ------------------------------------------------------------------------------------------------------ */

static k2_code document_add(const k2_tokenizer *t, k2_idx_builder *b, const game *g, uint32_t skill, k2_tokens *tokens,
                            k2_error *err)
{
    char user[16 + LETTERS_MAX], answer[ANSWER_MAX];
    int user_bytes = snprintf(user, sizeof user, "%s %s", games[g->word].word, g->letters);
    size_t answer_bytes = games[skill].answer(g->letters, g->n, answer);
    const k2_token_message chat[] = {{.role = "user", .content = user, .content_bytes = (size_t)user_bytes},
                                     {.role = "assistant", .content = answer, .content_bytes = answer_bytes}};
    k2_tokens_clear(tokens);
    k2_code code = k2_tokenizer_chat(t, chat, K2_COUNT(chat), false, tokens, err);
    if (code == K2_OK) code = k2_idx_builder_add(b, tokens->ids, tokens->count, err);
    if (code == K2_OK) k2_idx_builder_document_end(b);
    return code;
}

static k2_code corpus_fill(const source *s, const k2_tokenizer *t, k2_idx_builder *b, k2_error *err)
{
    k2_tokens tokens;
    k2_tokens_init(&tokens, DOCUMENT_MAX);
    k2_code code = K2_OK;
    for (uint64_t i = 0; i < s->sizes->corpus && code == K2_OK; i++) {
        const uint64_t item = ITEM_CORPUS + i;
        game g = {.word = (uint32_t)below(s, item, DRAW_WORD, WORDS),
                  .n = s->sizes->letters_min + (uint32_t)below(s, item, DRAW_LENGTH, lengths_count(s))};
        const uint32_t skill = (uint32_t)below(s, item, DRAW_SKILL, WORDS);
        uint64_t tried = 0;
        if (!letters_find(s, item, false, &tried, &g))
            code = k2_error_set(err, K2_BAD_INPUT, "alphabet: %u letters leave no string of %u for the corpus",
                                s->sizes->alphabet, g.n);
        else
            code = document_add(t, b, &g, skill, &tokens, err);
    }
    k2_tokens_fini(&tokens);
    return code;
}

static k2_code corpus_write(const source *s, const char *dir, k2_error *err)
{
    k2_tokenizer *t = NULL;
    k2_idx_builder *b = NULL;
    char *prefix = k2_asprintf("%s/%s", dir, K2_TASK_CORPUS_PREFIX);
    k2_code code = k2_tokenizer_open("byte", NULL, &t, err);
    if (code != K2_OK) goto free_prefix;
    code = k2_idx_builder_begin(prefix, k2_idx_dtype_for(k2_tokenizer_vocab(t)), &b, err);
    if (code != K2_OK) goto close_tokenizer;
    code = corpus_fill(s, t, b, err);
    if (code == K2_OK)
        code = k2_idx_builder_commit(b, err);
    else
        k2_idx_builder_abort(b);
close_tokenizer:
    k2_tokenizer_close(t);
free_prefix:
    k2_free(prefix);
    return code;
}

/* ---- prompts ----------------------------------------------------------------------------------------------------- */

/* The prompts taken so far: open addressing over the index of the prompt, 0 for an empty place. */
typedef struct taken {
    const game *list;
    uint32_t *places;
    size_t mask;
} taken;

static bool taken_add(taken *t, uint32_t index)
{
    const game *g = &t->list[index];
    size_t at = k2_hash64(g->letters, g->n, g->word) & t->mask;
    for (; t->places[at]; at = (at + 1) & t->mask) {
        const game *other = &t->list[t->places[at] - 1];
        if (other->word == g->word && strcmp(other->letters, g->letters) == 0) return false;
    }
    t->places[at] = index + 1;
    return true;
}

static void line_append(k2_buf *out, const char *name, uint32_t i, const game *g)
{
    char answer[ANSWER_MAX];
    const int answer_bytes = (int)games[g->word].answer(g->letters, g->n, answer);
    k2_buf_printf(out,
                  "{\"id\":\"%s-%u\",\"messages\":[{\"role\":\"user\",\"content\":\"%s %s\"}],\"answer\":\"%.*s\","
                  "\"op\":\"%s\",\"n\":%u}\n",
                  name, i, games[g->word].word, g->letters, answer_bytes, answer, games[g->word].word, g->n);
}

/* A prompt that was not drawn before. Where all strings of its length are used up, a longer one takes its place. */
static bool prompt_find(const source *s, uint64_t item, bool heldout, taken *t, uint32_t index, game *g)
{
    for (; g->n <= s->sizes->letters_max; g->n++) {
        uint64_t tried = 0;
        while (letters_find(s, item, heldout, &tried, g))
            if (taken_add(t, index)) return true;
    }
    return false;
}

/* Words and lengths take turns, so that every beginning of the file is balanced: a short evaluation is a fair one. */
static k2_code prompts_draw(const source *s, const char *name, uint64_t item0, uint32_t count, bool heldout, game *list,
                            k2_error *err)
{
    size_t places = 16;
    while (places < 2 * (size_t)count) places *= 2;
    taken t = {.list = list, .places = k2_alloc_array(places, sizeof *t.places), .mask = places - 1};
    k2_code code = K2_OK;
    for (uint32_t i = 0; i < count && code == K2_OK; i++) {
        list[i].word = i % WORDS;
        list[i].n = s->sizes->letters_min + i / WORDS % lengths_count(s);
        if (!prompt_find(s, item0 + i, heldout, &t, i, &list[i]))
            code = k2_error_set(err, K2_BAD_INPUT,
                                "%s: %u prompts are too many: an alphabet of %u letters has no more strings of up to %u", name,
                                count, s->sizes->alphabet, s->sizes->letters_max);
    }
    k2_free(t.places);
    return code;
}

static k2_code prompts_encode(const source *s, const char *name, uint64_t item0, uint32_t count, bool heldout, k2_buf *out,
                              k2_error *err)
{
    game *list = k2_alloc_array(count, sizeof *list);
    k2_buf_init(out, (size_t)count * LINE_BYTES_MAX);
    k2_code code = prompts_draw(s, name, item0, count, heldout, list, err);
    for (uint32_t i = 0; code == K2_OK && i < count; i++) line_append(out, name, i, &list[i]);
    K2_ASSERT(!out->overflow);
    k2_free(list);
    return code;
}

/* ---- the directory ----------------------------------------------------------------------------------------------- */

static k2_task_sizes with_defaults(const k2_task_sizes *given)
{
    const k2_task_sizes defaults = K2_TASK_SIZES_DEFAULT;
    k2_task_sizes s = given ? *given : defaults;
    if (!s.corpus) s.corpus = defaults.corpus;
    if (!s.prompts) s.prompts = defaults.prompts;
    if (!s.heldout) s.heldout = defaults.heldout;
    if (!s.alphabet) s.alphabet = defaults.alphabet;
    if (!s.letters_min) s.letters_min = defaults.letters_min;
    if (!s.letters_max) s.letters_max = K2_MIN(defaults.letters_max, s.alphabet);
    return s;
}

static k2_code sizes_check(const k2_task_sizes *s, k2_error *err)
{
    const struct {
        const char *name;
        uint32_t value, low, high;
    } ranges[] = {
        {"corpus", s->corpus, 1, K2_TASK_ITEMS_MAX},     {"prompts", s->prompts, 1, K2_TASK_ITEMS_MAX},
        {"heldout", s->heldout, 1, K2_TASK_ITEMS_MAX},   {"alphabet", s->alphabet, 2, LETTERS_MAX},
        {"letters_min", s->letters_min, 2, s->alphabet}, {"letters_max", s->letters_max, s->letters_min, s->alphabet},
    };
    for (size_t i = 0; i < K2_COUNT(ranges); i++)
        if (ranges[i].value < ranges[i].low || ranges[i].value > ranges[i].high)
            return k2_error_set(err, K2_BAD_INPUT, "%s: %u, expected %u to %u", ranges[i].name, ranges[i].value, ranges[i].low,
                                ranges[i].high);
    return K2_OK;
}

static void stamp_encode(uint64_t seed, const k2_task_sizes *s, char out[K2I_STAMP_BYTES_MAX])
{
    snprintf(out, K2I_STAMP_BYTES_MAX,
             "{\"task\": \"quickstart\", \"format\": %u, \"seed\": \"%" PRIu64 "\", \"corpus\": %u, \"prompts\": %u, "
             "\"heldout\": %u, \"letters_min\": %u, \"letters_max\": %u, \"alphabet\": %u}\n",
             STAMP_FORMAT, seed, s->corpus, s->prompts, s->heldout, s->letters_min, s->letters_max, s->alphabet);
}

static k2_code files_write(const source *s, const char *dir, const k2_buf *prompts, const k2_buf *heldout, k2_error *err)
{
    char stamp[K2I_STAMP_BYTES_MAX];
    stamp_encode(s->seed, s->sizes, stamp);
    k2_code code = k2i_task_begin(dir, err);
    if (code == K2_OK) code = corpus_write(s, dir, err);
    if (code == K2_OK) code = k2i_task_file_write(dir, K2_TASK_PROMPTS_FILE, prompts->data, prompts->len, err);
    if (code == K2_OK) code = k2i_task_file_write(dir, K2_TASK_HELDOUT_FILE, heldout->data, heldout->len, err);
    if (code == K2_OK) code = k2i_task_end(dir, stamp, err);
    return code;
}

k2_code k2_task_quickstart_write(const char *dir, uint64_t seed, const k2_task_sizes *sizes, k2_error *err)
{
    const k2_task_sizes s = with_defaults(sizes);
    const source from = {.seed = seed, .sizes = &s};
    k2_buf prompts, heldout;
    k2_buf_init(&prompts, 0);
    k2_buf_init(&heldout, 0);
    k2_code code = sizes_check(&s, err);
    if (code == K2_OK) code = prompts_encode(&from, "prompts", ITEM_PROMPTS, s.prompts, false, &prompts, err);
    if (code == K2_OK) code = prompts_encode(&from, "heldout", ITEM_HELDOUT, s.heldout, true, &heldout, err);
    if (code == K2_OK) code = files_write(&from, dir, &prompts, &heldout, err);
    k2_buf_fini(&prompts);
    k2_buf_fini(&heldout);
    return code;
}

k2_code k2_task_quickstart_ensure(const char *dir, uint64_t seed, const k2_task_sizes *sizes, k2_error *err)
{
    static const char *const files[] = {K2_TASK_PROMPTS_FILE, K2_TASK_HELDOUT_FILE, K2_TASK_CORPUS_PREFIX ".idx",
                                        K2_TASK_CORPUS_PREFIX ".bin"};
    const k2_task_sizes s = with_defaults(sizes);
    char stamp[K2I_STAMP_BYTES_MAX];
    stamp_encode(seed, &s, stamp);
    if (k2i_task_is_made(dir, stamp, files, K2_COUNT(files))) return K2_OK;
    return k2_task_quickstart_write(dir, seed, &s, err);
}
