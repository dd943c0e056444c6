/* token - text to token ids and back, and the layout of a chat as tokens.
 *
 * Nouns: a `k2_tokenizer` is read-only after open and may be shared by threads; a `k2_tokens` is a growing list of ids with a
 * cap; a `k2_token_stream` remembers the bytes of a character whose rest has not been generated yet. The token ids of an
 * answer are the truth; text made from them is for people and for rewards, and is always valid UTF-8.
 *
 * Kinds:
 *   byte      no file: ids 0..255 are bytes, 256.. are the special ids below
 *   tiktoken  a file of ranks ("base64 rank" lines) and a pattern: Kimi's, Qwen's first one, or cl100k's
 *   json      tokenizer.json of Hugging Face: byte-level BPE as Qwen, Llama 3 and DeepSeek have it; anything else is refused by
 *             name and place
 *   auto      whichever of the two the directory holds
 *
 * A *control token* is one that says what a text is, not what it says: all special tokens, and with kind tiktoken all added ones.
 * Text never encodes to one, so a prompt cannot forge a turn; only the chat layouts and k2_tokenizer_encode_trusted make them.
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

#define K2_TOKEN_VOCAB_MAX (1u << 20)   /* ids of one vocabulary: six times Kimi-K2's */
#define K2_TOKEN_FILE_MAX  (256u << 20) /* bytes of one tokenizer file; Kimi-K2's has 3 MB, the largest known 35 */
#define K2_TOKEN_WORD_MAX  (64u << 20)  /* bytes of one piece between two cuts of the pattern: merging takes 32 times as many */

typedef struct k2_tokenizer_spec {
    const char *kind;    /* "byte", "tiktoken", "json", "auto" */
    const char *path;    /* a directory or the file itself; NULL or "" for kind "byte" */
    const char *pattern; /* kind tiktoken: "kimi", "qwen", "cl100k"; NULL or "": the one that goes with the file's name */
} k2_tokenizer_spec;

/* k2_tokenizer_load - read a tokenizer.
 *
 *   Beside the file, tokenizer_config.json gives the names of special tokens (added_tokens_decoder) and which of them begin and
 *   end a text; where it is missing, ids behind the ranks of tiktoken.model are called <|reserved_token_ID|>.
 *
 * memory   the result is the caller's; k2_tokenizer_close (NULL is fine)
 * errors   UNSUPPORTED: a kind, pattern or part of a tokenizer.json that is not known, by name and place; BAD_INPUT: a damaged
 *          file, by line or JSON path; NOT_FOUND: no file; LIMIT: a size above those stated here
 * threads  every other function here may be called from any thread with the same tokenizer
 * source   github.com/openai/tiktoken; github.com/huggingface/tokenizers
 * tests    tests/unit/token, tests/interop/token, tests/fuzz/token
 */
k2_code k2_tokenizer_load(const k2_tokenizer_spec *spec, k2_tokenizer **out, k2_error *err);
/* k2_tokenizer_fingerprint - of the bytes of the files that loading would read, of kind and pattern: equal ones load equally.
 *
 * errors   NOT_FOUND, LIMIT, IO, as above; what is in the files is not looked at
 */
k2_code k2_tokenizer_fingerprint(const k2_tokenizer_spec *spec, k2_digest *out, k2_error *err);
/* The same without a pattern. */
k2_code k2_tokenizer_open(const char *kind, const char *path, k2_tokenizer **out, k2_error *err);
void k2_tokenizer_close(k2_tokenizer *t);

const char *k2_tokenizer_kind(const k2_tokenizer *t);
uint32_t k2_tokenizer_vocab(const k2_tokenizer *t); /* ids are 0 .. vocab-1 */
int32_t k2_tokenizer_bos(const k2_tokenizer *t); /* -1: the tokenizer's files name none; so eos and pad */
int32_t k2_tokenizer_eos(const k2_tokenizer *t);
int32_t k2_tokenizer_pad(const k2_tokenizer *t);
/* Ids that end an answer: of a chat (the layout's end of a turn, EOS) or of a plain completion (EOS). The array lives as long as
 * the tokenizer. */
const int32_t *k2_tokenizer_stops(const k2_tokenizer *t, bool chat, size_t *count);
/* "IM_END" for a control token, NULL for any other. */
const char *k2_tokenizer_special_name(const k2_tokenizer *t, int32_t id);
int32_t k2_tokenizer_special_id(const k2_tokenizer *t, const char *name); /* -1: there is none of that name */

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

/* k2_tokenizer_encode - append the ids of n bytes of text. Never gives a control token.
 *
 *   Kind "byte" takes any bytes. The others are defined on characters: what is not UTF-8 becomes U+FFFD first, one for each
 *   longest beginning of a character that was broken off, as others' programs do.
 *
 * errors   LIMIT: the list's cap, a word above K2_TOKEN_WORD_MAX, or a pattern of a tokenizer.json that does not come to an end
 *          in time that is proportional to the text. Then nothing was appended
 * threads  pure, but for a cache of words inside the tokenizer, which any number of threads may use
 */
k2_code k2_tokenizer_encode(const k2_tokenizer *t, const char *text, size_t n, k2_tokens *out, k2_error *err);
/* The same for text that is our own or was checked: names of control tokens in it become their ids, the longest name first. */
k2_code k2_tokenizer_encode_trusted(const k2_tokenizer *t, const char *text, size_t n, k2_tokens *out, k2_error *err);

/* k2_tokenizer_decode - append the text of ids; special tokens are no text; what is not UTF-8 becomes U+FFFD, and so does a zero
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

/* A call of a tool, in a turn of the assistant. */
typedef struct k2_token_call {
    const char *id; /* "functions.NAME:IDX" where Kimi's models are to understand it */
    const char *arguments; /* JSON text */
} k2_token_call;

/* One turn. Roles: "system", "user", "assistant", and where the layout has tools "tool". */
typedef struct k2_token_message {
    const char *role;
    const char *content;
    size_t content_bytes;
    const char *name;        /* NULL: the role */
    const char *tool_call_id; /* of a tool's turn: the call that it answers */
    const k2_token_call *calls;
    size_t call_count;
} k2_token_message;

typedef struct k2_token_chat {
    const k2_token_message *messages;
    size_t count;
    const char *tools; /* their declaration, compact JSON with sorted keys; NULL: none */
    bool generate; /* with the generation prompt at the end, behind which the answer begins */
} k2_token_chat;

/* k2_tokenizer_chat_layout - the layout's name, or NULL where the tokenizer has none that is known.
 *
 *   byte    IM_SYSTEM text IM_END   IM_USER text IM_END   IM_ASSISTANT text IM_END   ...   [IM_ASSISTANT]
 *   kimi    <|im_system|>NAME<|im_middle|>text<|im_end|> ...   [<|im_assistant|>assistant<|im_middle|>], with tools; a chat that
 *           does not begin with a system turn gets Kimi's own
 *   chatml  <|im_start|>ROLE newline text<|im_end|> newline ...   [<|im_start|>assistant newline]
 *
 * kimi and chatml are recognised by the names of the control tokens. */
const char *k2_tokenizer_chat_layout(const k2_tokenizer *t);

/* What an id is to the calls of tools that a model writes into its answer:
 * CALLS_BEGIN (CALL_BEGIN id CALL_ARGUMENTS arguments CALL_END)* CALLS_END. */
typedef enum k2_token_mark {
    K2_TOKEN_TEXT, /* nothing */
    K2_TOKEN_CALLS_BEGIN,
    K2_TOKEN_CALLS_END,
    K2_TOKEN_CALL_BEGIN,
    K2_TOKEN_CALL_ARGUMENTS,
    K2_TOKEN_CALL_END
} k2_token_mark;
/* Text where the layout has no calls, or the tokenizer not all of these. */
k2_token_mark k2_tokenizer_mark(const k2_tokenizer *t, int32_t id);

/* k2_tokenizer_render - append the ids of a chat.
 *
 * errors   BAD_INPUT: no message, or an unknown role (named as messages[i].role); UNSUPPORTED: a tokenizer without a layout, or
 *          names and tools where the layout has none; LIMIT: as k2_tokenizer_encode. On errors nothing was appended
 */
k2_code k2_tokenizer_render(const k2_tokenizer *t, const k2_token_chat *chat, k2_tokens *out, k2_error *err);
/* The same without tools. */
k2_code k2_tokenizer_chat(const k2_tokenizer *t, const k2_token_message *messages, size_t count, bool generate, k2_tokens *out,
                          k2_error *err);

#endif
