/* token - text to token ids and back, and the layout of a chat as tokens.
 *
 * Nouns: a `k2_tokenizer` is read-only after open and may be shared by threads; a `k2_tokens` is a growing list of ids with a
 * cap; a `k2_token_stream` remembers the bytes of a character whose rest has not been generated yet. The token ids of an
 * answer are the truth; text made from them is for people and for rewards, and is always valid UTF-8.
 *
 * Kind "byte" (the only one so far): ids 0..255 are bytes, 256.. are the special ids below. Text never encodes to a special id,
 * so a prompt cannot forge a turn. The layout of a chat is
 *
 *     IM_SYSTEM text IM_END   IM_USER text IM_END   IM_ASSISTANT text IM_END   ...   [IM_ASSISTANT: the generation prompt]
 */
#ifndef K2_COMMON_TOKEN_H
#define K2_COMMON_TOKEN_H

#include "common/base/base.h"

/* name, id of kind "byte" */
#define K2_TOKEN_BYTE_SPECIALS(X) \
    X(BOS, 256)                   \
    X(EOS, 257)                   \
    X(PAD, 258)                   \
    X(IM_USER, 259)               \
    X(IM_ASSISTANT, 260)          \
    X(IM_SYSTEM, 261)             \
    X(IM_MIDDLE, 262)             \
    X(IM_END, 263)

enum {
#define K2_X(name, id) K2_TOKEN_BYTE_##name = id,
    K2_TOKEN_BYTE_SPECIALS(K2_X)
#undef K2_X
    K2_TOKEN_BYTE_VOCAB = 264
};

typedef struct k2_tokenizer k2_tokenizer;

/* k2_tokenizer_open - the tokenizer of one kind.
 *
 * memory   the result is the caller's; k2_tokenizer_close (NULL is fine)
 * errors   UNSUPPORTED: a kind that is not known (the text lists those that are); BAD_INPUT: kind "byte" with a path, for it
 *          reads no file
 * threads  every other function here may be called from any thread with the same tokenizer
 * tests    tests/unit/token/token_test.c
 */
k2_code k2_tokenizer_open(const char *kind, const char *path, k2_tokenizer **out, k2_error *err);
void k2_tokenizer_close(k2_tokenizer *t);

const char *k2_tokenizer_kind(const k2_tokenizer *t);
uint32_t k2_tokenizer_vocab(const k2_tokenizer *t); /* ids are 0 .. vocab-1 */
int32_t k2_tokenizer_bos(const k2_tokenizer *t);
int32_t k2_tokenizer_eos(const k2_tokenizer *t);
int32_t k2_tokenizer_pad(const k2_tokenizer *t);
/* Ids that end an answer: of a chat (IM_END, EOS) or of a plain completion (EOS). The array lives as long as the tokenizer. */
const int32_t *k2_tokenizer_stops(const k2_tokenizer *t, bool chat, size_t *count);
/* "IM_END" for a special id, NULL for any other. */
const char *k2_tokenizer_special_name(const k2_tokenizer *t, int32_t id);

/* A growing list of ids. A push past count_max changes nothing but sets `overflow`; check it once at the end. */
typedef struct k2_tokens {
    int32_t *ids;
    size_t count, capacity, count_max;
    bool overflow;
} k2_tokens;
void k2_tokens_init(k2_tokens *list, size_t count_max);
void k2_tokens_fini(k2_tokens *list);
void k2_tokens_clear(k2_tokens *list);
bool k2_tokens_push(k2_tokens *list, const int32_t *ids, size_t count);

/* k2_tokenizer_encode - append the ids of n bytes of text. Never gives a special id.
 *
 * errors   false where the list's cap is reached (then nothing was appended)
 */
bool k2_tokenizer_encode(const k2_tokenizer *t, const char *text, size_t n, k2_tokens *out);

/* k2_tokenizer_decode - append the text of ids; special ids are no text; what is not UTF-8 becomes U+FFFD, and so does a zero
 * byte.
 *
 *   One U+FFFD stands for each longest beginning of a character that was broken off, as Unicode recommends and as others'
 *   decoders do, so "E2 82" (a beginning of the euro sign) at the end gives one mark, not two.
 *
 * errors   BAD_INPUT: an id outside the vocabulary (names it and its place); LIMIT: the buffer's cap. On errors nothing was
 *          appended.
 * source   The Unicode Standard, 3.9, "U+FFFD Substitution of Maximal Subparts"
 */
k2_code k2_tokenizer_decode(const k2_tokenizer *t, const int32_t *ids, size_t count, k2_buf *out, k2_error *err);

/* Streaming decode: feeding the ids in any pieces and ending gives the same text as k2_tokenizer_decode of all of them, and no
 * piece ever ends within a character. Zero-initialise; no clean-up. */
typedef struct k2_token_stream {
    unsigned char pending[4]; /* beginning of a character */
    uint8_t pending_count;
} k2_token_stream;
/* Append the text that is certain by now. Errors as k2_tokenizer_decode; the stream is unchanged by a failed call. */
k2_code k2_token_stream_feed(const k2_tokenizer *t, k2_token_stream *s, const int32_t *ids, size_t count, k2_buf *out,
                             k2_error *err);
/* The sequence is over: a character that never came to its end becomes U+FFFD. False where the buffer's cap is reached. */
bool k2_token_stream_end(k2_token_stream *s, k2_buf *out);

/* One turn. Roles: "system", "user", "assistant". */
typedef struct k2_token_message {
    const char *role;
    const char *content;
    size_t content_bytes;
} k2_token_message;

/* k2_tokenizer_chat - append the ids of a chat; with `generate` also the generation prompt, behind which the answer begins.
 *
 * errors   BAD_INPUT: no message, or an unknown role (named as messages[i].role); LIMIT: the list's cap. On errors nothing was
 *          appended
 */
k2_code k2_tokenizer_chat(const k2_tokenizer *t, const k2_token_message *messages, size_t count, bool generate, k2_tokens *out,
                          k2_error *err);

#endif
