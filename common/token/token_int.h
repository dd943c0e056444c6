/* token_int - how a tokenizer of any kind is held: a vocabulary with merges, steps that cut text into pieces, added tokens, a
 * chat layout. The kinds differ only in where these come from; token.c has the path of a text through them.
 *
 *   text -> UTF-8 -> [cuts] -> [added tokens] -> NFC -> [normalized added tokens] -> steps -> pieces -> cache | whole word | merges -> ids
 */
#ifndef K2_TOKEN_TOKEN_INT_H
#define K2_TOKEN_TOKEN_INT_H

#include "common/token/token.h"

/* ---- vocabulary: id to bytes, bytes to id, and which pairs merge (vocab.c) -------------------------------------------- */

#define K2I_TOKEN_BYTES_MAX 512u       /* of one token that text may become; the longest known has 128 spaces */
#define K2I_PAIRS_MAX       (1u << 24) /* 512 MiB as a table; Qwen's 151,643 ranks make 294166 */
#define K2I_MERGE_NONE      UINT32_MAX /* rank of a pair that does not merge */

typedef struct k2i_token {
    uint32_t at, n; /* in blob; n is 0 where the id stands for nothing */
} k2i_token;

typedef struct k2i_pair {
    uint32_t left, right;
    uint32_t rank; /* the pair with the lowest one merges first; K2I_MERGE_NONE: the slot is empty */
    uint32_t id;   /* what it becomes */
} k2i_pair;

typedef struct k2i_byte_pair {
    uint32_t rank, id;
} k2i_byte_pair;

typedef struct k2i_vocab {
    k2i_token *tokens;
    uint32_t count, capacity; /* ids are below count */
    unsigned char *blob;
    size_t blob_bytes, blob_capacity;
    uint32_t *slots; /* bytes to id, open addressing: vocab.c */
    uint32_t slot_count, slot_mask;
    k2i_pair *pairs; /* open addressing */
    uint32_t pair_count, pair_mask;
    uint32_t byte_ids[256];
    k2i_byte_pair *byte_pairs; /* [256, 256]: what two bytes merge to. Every piece begins with these, and the table of all pairs is beyond a cache */
    bool whole; /* a piece that is a token becomes it, whatever the merges would give */
} k2i_vocab;

/* BAD_INPUT: the id has bytes already, or other bytes of `text` tokens are the same. Names neither place nor line. */
k2_code k2i_vocab_put(k2i_vocab *v, uint32_t id, const void *bytes, size_t n, bool text, k2_error *err);
/* The text token of these bytes, UINT32_MAX: none. */
uint32_t k2i_vocab_find(const k2i_vocab *v, const void *bytes, size_t n);
/* For who has k2_hash64(bytes, n, 0). */
uint32_t k2i_vocab_find_hashed(const k2i_vocab *v, uint64_t hash, const void *bytes, size_t n);
/* False where the pair is there already. */
bool k2i_vocab_merge(k2i_vocab *v, uint32_t left, uint32_t right, uint32_t rank, uint32_t id);
/* Every two tokens that make a third one merge, with its id as the rank: tiktoken's rule. LIMIT: more than K2I_PAIRS_MAX do. */
k2_code k2i_vocab_merge_all(k2i_vocab *v, k2_error *err);
/* Fill byte_ids. BAD_INPUT: a byte is no token, so that there would be text without ids. */
k2_code k2i_vocab_finish(k2i_vocab *v, k2_error *err);
void k2i_vocab_fini(k2i_vocab *v);

static inline k2i_pair k2i_vocab_pair(const k2i_vocab *v, uint32_t left, uint32_t right)
{
    const uint64_t key = ((uint64_t)left << 32 | right) * 0x9e3779b97f4a7c15ull;
    for (uint32_t at = (uint32_t)(key >> 32) & v->pair_mask;; at = (at + 1) & v->pair_mask) {
        const k2i_pair p = v->pairs[at];
        if (p.rank == K2I_MERGE_NONE || (p.left == left && p.right == right)) return p;
    }
}

/* ---- a piece to ids (merge.c, cache.c) --------------------------------------------------------------------------------- */

typedef struct k2i_cache k2i_cache;
k2i_cache *k2i_cache_new(void);
void k2i_cache_free(k2i_cache *c);
#define K2I_CACHE_BYTES 32u /* longer pieces and those of more ids are not kept: they hardly come again */
#define K2I_CACHE_IDS   5u
/* Number of ids, 0: not there. The hash is that of the piece's bytes. */
uint32_t k2i_cache_get(const k2i_cache *c, uint64_t hash, const void *bytes, size_t n, int32_t ids[K2I_CACHE_IDS]);
void k2i_cache_put(k2i_cache *c, uint64_t hash, const void *bytes, size_t n, const int32_t *ids, uint32_t count);

/* Append the ids of a piece, n >= 1. */
k2_code k2i_piece_encode(const k2i_vocab *v, k2i_cache *c, const unsigned char *bytes, size_t n, k2_tokens *out, k2_error *err);

/* ---- text to pieces (split.c, pattern.c) ------------------------------------------------------------------------------- */

#define K2I_STEPS_MAX 8u

typedef struct k2i_split {
    void *codes[K2I_STEPS_MAX]; /* pcre2_code */
    uint32_t count;
} k2i_split;

/* The pattern, in PCRE2's syntax, of a name: "kimi", "qwen", "cl100k", "gpt2"; NULL: not known. */
const char *k2i_pattern_named(const char *name);
/* Patterns as Rust's and Ruby's regular expressions have them, to PCRE2's; what differs in meaning and is not handled is UNSUPPORTED. */
k2_code k2i_pattern_translate(const char *pattern, k2_buf *out, k2_error *err);
/* One more step, cutting each piece so far into matches and what lies between them. */
k2_code k2i_split_add(k2i_split *s, const char *pattern, k2_error *err);
void k2i_split_fini(k2i_split *s);

typedef k2_code k2i_piece_take(void *arg, const unsigned char *bytes, size_t n, k2_error *err);
k2_code k2i_split_run(const k2i_split *s, const unsigned char *text, size_t n, k2i_piece_take *take, void *arg, k2_error *err);

/* ---- cuts before anything else (cuts.c) ---------------------------------------------------------------------------------- */

/* What a text has had so far; all zero at its beginning. */
typedef struct k2i_cuts {
    uint32_t window; /* characters since the last cut at a fixed distance */
    uint32_t run;    /* of these, the last that are alike */
    bool space;      /* what they are */
} k2i_cuts;
/* Bytes of valid UTF-8 up to the next cut, at most n; they are had then. */
size_t k2i_cuts_next(k2i_cuts *c, const unsigned char *text, size_t n);
/* k2_tokenizer_encode of what comes next in a text; cuts is NULL, or what the text has had. */
k2_code k2i_encode_next(const k2_tokenizer *t, k2i_cuts *cuts, const char *text, size_t n, k2_tokens *out, k2_error *err);

/* ---- added tokens (added.c) ------------------------------------------------------------------------------------------ */

enum {
    K2I_ADDED_CONTROL = 1,    /* never from text that is not trusted */
    K2I_ADDED_HIDDEN = 2,     /* no text when decoded */
    K2I_ADDED_NORMALIZED = 4, /* looked for after normalisation */
    K2I_ADDED_LSTRIP = 8,     /* takes the white space before it along */
    K2I_ADDED_RSTRIP = 16     /* and behind */
};

typedef struct k2i_added {
    char *name;
    uint32_t n, id;
    uint8_t flags;
} k2i_added;

typedef struct k2i_trie_node {
    uint32_t child, sibling; /* 0: none */
    int32_t added;           /* index of the token that ends here, -1: none */
    unsigned char byte;
} k2i_trie_node;

typedef struct k2i_trie {
    k2i_trie_node *nodes; /* 0 is the root */
    uint32_t count, capacity;
} k2i_trie;

typedef struct k2i_addeds {
    k2i_added *list; /* by id, after k2i_added_finish */
    uint32_t count, capacity;
    k2i_trie tries[2];  /* before and after normalisation */
    bool from_text[2];  /* some of the trie are not control tokens */
} k2i_addeds;

void k2i_added_put(k2i_addeds *a, uint32_t id, const char *name, size_t n, uint8_t flags);
/* Sort, and build the tries. BAD_INPUT: an id or a name twice. */
k2_code k2i_added_finish(k2i_addeds *a, bool nfc, k2_error *err);
void k2i_added_fini(k2i_addeds *a);
const k2i_added *k2i_added_of(const k2i_addeds *a, int32_t id);
const k2i_added *k2i_added_named(const k2i_addeds *a, const char *name);

typedef struct k2i_found {
    const k2i_added *added; /* NULL: none up to the end */
    size_t begin, end;
} k2i_found;
/* The first added token at or behind `from`, the longest where several begin; control tokens only with `trusted`. `floor`: white space before
 * it is not taken. */
k2i_found k2i_added_find(const k2i_addeds *a, unsigned trie, bool trusted, const unsigned char *text, size_t n, size_t floor);

/* ---- characters (text.c, utf8.c) -------------------------------------------------------------------------------------- */

bool k2i_is_space(const unsigned char *s, size_t n, size_t *len); /* whether a White_Space character begins there; its bytes */
/* NFC of valid UTF-8: NULL where the text is in it, else allocated by k2_alloc. */
unsigned char *k2i_nfc(const unsigned char *text, size_t n, size_t *out_n);
/* Bytes to valid UTF-8 (zero bytes stay). NULL where it is valid. */
unsigned char *k2i_lossy(const unsigned char *text, size_t n, size_t *out_n);

/* ---- chat (layout.c) --------------------------------------------------------------------------------------------------- */

#define K2I_CONTROLS_MAX 10u

typedef struct k2i_layout {
    const char *name;
    const char *controls[K2I_CONTROLS_MAX]; /* control tokens by which it is known, and then those that only tools need */
    uint32_t required;                      /* how many a tokenizer must have */
    uint32_t turn_end;                      /* which of them ends a turn */
    const char *roles;                      /* for errors */
    bool tools;
    k2_code (*render)(const k2_tokenizer *t, const k2_token_chat *chat, k2_tokens *out, k2_error *err);
} k2i_layout;
extern const k2i_layout k2i_layout_byte, k2i_layout_kimi, k2i_layout_chatml;

/* ---- the whole --------------------------------------------------------------------------------------------------------- */

enum { K2I_BOS, K2I_EOS, K2I_PAD, K2I_MARKS };

struct k2_tokenizer {
    const char *kind;
    k2i_vocab vocab;
    k2i_split split;
    k2i_addeds added;
    k2i_cache *cache;
    const k2i_layout *layout; /* NULL: none that is known */
    int32_t controls[K2I_CONTROLS_MAX];
    bool bytes_only; /* kind "byte": an id a byte, any bytes */
    bool nfc;
    bool cuts; /* texts are cut as Kimi's program does */
    char *mark_names[K2I_MARKS]; /* NULL: not named */
    int32_t marks[K2I_MARKS];    /* -1: there is none */
    int32_t stops[2];            /* the turn's end, EOS: as many as there are */
    uint32_t stop_count, plain_count;
};

/* Readers of whole files: pure functions of bytes, which tests and fuzzers hand anything. On errors the tokenizer may be half
 * filled; it can only be closed then. */
k2_tokenizer *k2i_tokenizer_new(const char *kind);
k2_code k2i_tiktoken_parse(k2_tokenizer *t, const char *bytes, size_t n, k2_error *err);
k2_code k2i_tiktoken_pattern(k2_tokenizer *t, const char *pattern, k2_error *err);
k2_code k2i_tokjson_parse(k2_tokenizer *t, const char *bytes, size_t n, k2_error *err);
k2_code k2i_config_parse(k2_tokenizer *t, const char *bytes, size_t n, k2_error *err); /* tokenizer_config.json */
k2_code k2i_tokenizer_finish(k2_tokenizer *t, k2_error *err);

#endif
