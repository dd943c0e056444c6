/* data - what a model learns from: prompt files, token files, and the tasks that k2rl generates itself.
 *
 * Nouns: a `k2_prompts` is a JSONL file of prompts, read whole and checked whole; a `k2_idx` is a pair PREFIX.idx/PREFIX.bin of
 * token sequences in Megatron's layout, mapped and checked at open, so that reading it afterwards cannot leave the file; a
 * `k2_idx_builder` writes such a pair. All of them are read-only after open and may be shared by threads. Functions here block
 * on files: not for a loop thread after start.
 */
#ifndef K2_COMMON_DATA_H
#define K2_COMMON_DATA_H

#include "common/base/base.h"

/* ---- prompts ----------------------------------------------------------------------------------------------------- */

#define K2_DATA_FILE_BYTES_MAX (4ull << 30) /* of one JSONL file: it is held in memory */
#define K2_DATA_LINE_BYTES_MAX (8u << 20)   /* of one line: a long document, and far below a file that is no JSONL at all */
#define K2_DATA_PROMPTS_MAX    (16u << 20)  /* lines of one prompt file */
#define K2_DATA_MESSAGES_MAX   256u         /* turns of one prompt */
#define K2_DATA_ID_BYTES_MAX   128u         /* of a prompt's id: it appears in logs and the journal */
#define K2_DATA_CALLS_MAX      128u         /* calls of tools in one message */
#define K2_DATA_TOOLS_MAX      1024u        /* tools of one prompt */

typedef struct k2_prompt_call {
    const char *id, *name;
    const char *arguments; /* meant to be JSON, as the model is to see it */
} k2_prompt_call;

typedef struct k2_prompt_message {
    const char *role;         /* "system", "user", "assistant" or "tool" */
    const char *content;      /* "" for an assistant that only calls */
    const char *name;         /* NULL: none */
    const char *tool_call_id; /* of a tool's message, and only there */
    const k2_prompt_call *calls; /* of an assistant's */
    uint32_t call_count;
} k2_prompt_message;

typedef struct k2_prompt {
    const char *id; /* as given, or "line-N" */
    const k2_prompt_message *messages;
    uint32_t message_count; /* >= 1, the last one is a user's or a tool's */
    const char *tools;      /* their declaration as k2_json_sorted writes it; NULL: none */
    uint32_t line;          /* in the file, from 1 */
    double difficulty;      /* NaN: no number of that name is given */
    const char *answer;     /* NULL where it is not given and limits.answer_optional is set */
    const char *json;       /* the whole line, for a reward command of the user's own; fields that we do not know stay in it */
    size_t json_bytes;
} k2_prompt;

typedef struct k2_prompts k2_prompts;

/* 0 means the default, which is the constant above. */
typedef struct k2_prompts_limits {
    uint64_t file_bytes_max;
    uint32_t line_bytes_max;
    uint32_t prompts_max;
    bool answer_optional; /* a line may lack "answer" (evaluated by hand or by a command) */
} k2_prompts_limits;

/* k2_prompts_load - read and check a prompt file.
 *
 *   One JSON object a line; blank lines are skipped. Either "messages": [{"role", "content"}, ...] or "prompt": "text" (one
 *   user message); "answer": "text"; "id": "text" is optional. Tools are given as to a chat completion: "tools" beside the
 *   messages, "tool_calls", "tool_call_id" and "name" in them; a content may be a list of text parts, and null where an
 *   assistant only calls. Other fields are allowed and kept in `json`.
 *
 * memory   the result is the caller's; k2_prompts_free (NULL is fine). Strings live as long as it does
 * errors   BAD_INPUT or LIMIT as "file:line: ...": not JSON, not UTF-8, a field missing, of a wrong type, given twice or
 *          holding U+0000, an unknown role, both or none of "messages" and "prompt", an id given before (names that line), a
 *          line or the file too long, too many prompts; no prompt at all
 * limits   may be NULL
 * tests    tests/unit/data/prompts_test.c, tests/fuzz/data/prompts.c
 */
k2_code k2_prompts_load(const char *path, const k2_prompts_limits *limits, k2_prompts **out, k2_error *err);
/* The same for bytes in memory; `name` stands for the path in errors. */
k2_code k2_prompts_parse(const char *name, const char *bytes, size_t n, const k2_prompts_limits *limits, k2_prompts **out,
                         k2_error *err);
void k2_prompts_free(k2_prompts *p);
size_t k2_prompts_count(const k2_prompts *p);                 /* >= 1 */
const k2_prompt *k2_prompts_at(const k2_prompts *p, size_t i); /* asserts i < count */
/* Of the lines in order, without line ends, blanks before them and blank lines: two files with the same fingerprint hold the
 * same prompts. */
k2_digest k2_prompts_fingerprint(const k2_prompts *p);

/* ---- token sequences in Megatron's layout -------------------------------------------------------------------------- */

#define K2_IDX_SEQUENCES_MAX (1ull << 36) /* of one file; beyond that 12 bytes each overflow what a machine can map */

/* code in the file, name, bytes an element, lowest and highest value */
#define K2_IDX_DTYPES(X)                     \
    X(UINT8, 1, 1, 0, UINT8_MAX)             \
    X(INT8, 2, 1, INT8_MIN, INT8_MAX)        \
    X(INT16, 3, 2, INT16_MIN, INT16_MAX)     \
    X(INT32, 4, 4, INT32_MIN, INT32_MAX)     \
    X(INT64, 5, 8, INT64_MIN, INT64_MAX)     \
    X(UINT16, 8, 2, 0, UINT16_MAX)

typedef enum k2_idx_dtype {
#define K2_X(name, code, bytes, low, high) K2_IDX_##name = code,
    K2_IDX_DTYPES(K2_X)
#undef K2_X
} k2_idx_dtype;

/* The type Megatron would choose: uint16 below 65500 ids, else int32. */
k2_idx_dtype k2_idx_dtype_for(uint32_t vocab);

typedef struct k2_idx k2_idx;

/* k2_idx_open - map PREFIX.idx and PREFIX.bin and check them against each other.
 *
 *   .idx: "MMIDIDX\0\0", u64 version 1, u8 dtype, u64 S sequences, u64 D boundaries, S x i32 lengths, S x i64 byte offsets in
 *   .bin, D x i64 document boundaries (first 0, last S); all little-endian and packed. .bin: the sequences one behind the
 *   other.
 *
 * memory   the result is the caller's; k2_idx_close (NULL is fine)
 * errors   NOT_FOUND: a file is missing; BAD_INPUT: magic, version, dtype, a size that does not fit the counts, lengths and
 *          offsets that are not one behind the other, boundaries that do not rise from 0 to S, ".idx and .bin disagree" where
 *          .bin is not as long as the last sequence says, no sequence at all; UNSUPPORTED: float data, multimodal modes; LIMIT:
 *          too many sequences
 * source   Megatron-LM, megatron/core/datasets/indexed_dataset.py
 * tests    tests/unit/data/idx_test.c (byte-exact), tests/fuzz/data/idx.c
 */
k2_code k2_idx_open(const char *prefix, k2_idx **out, k2_error *err);
void k2_idx_close(k2_idx *x);
/* Give back the pages that were read (k2_file_forget). What goes through a whole file here does so by itself. */
void k2_idx_forget(const k2_idx *x);

/* What a pair holds by its header and its files' lengths, nothing else of it being read or checked. */
typedef struct k2_idx_sizes {
    uint64_t documents, tokens, idx_bytes, bin_bytes;
} k2_idx_sizes;
/* errors   as k2_idx_open's, as far as the header goes */
k2_code k2_idx_sizes_read(const char *prefix, k2_idx_sizes *out, k2_error *err);
/* The check alone, for the bytes of an .idx and the size of its .bin. */
k2_code k2_idx_check(const char *name, const void *idx, size_t idx_bytes, uint64_t bin_bytes, k2_error *err);

k2_idx_dtype k2_idx_dtype_of(const k2_idx *x);
uint64_t k2_idx_sequences(const k2_idx *x);
uint64_t k2_idx_documents(const k2_idx *x);
uint64_t k2_idx_tokens(const k2_idx *x);                     /* of all sequences */
uint64_t k2_idx_bytes(const k2_idx *x);                      /* of both files */
uint32_t k2_idx_length(const k2_idx *x, uint64_t sequence);  /* tokens; asserts that it exists */
/* Sequences [*first, *end) of a document; it may be empty. */
void k2_idx_document(const k2_idx *x, uint64_t document, uint64_t *first, uint64_t *end);

/* k2_idx_read - tokens [first, first + count) of a sequence as int32.
 *
 * errors   BAD_INPUT: a value below 0 or above INT32_MAX (names sequence and position). A range outside the sequence is
 *          asserted
 */
k2_code k2_idx_read(const k2_idx *x, uint64_t sequence, uint32_t first, uint32_t count, int32_t *out, k2_error *err);
/* Reads all of .bin: BAD_INPUT where a token is not in 0 .. vocab-1. Once at start, so that no step fails later. */
k2_code k2_idx_check_vocab(const k2_idx *x, uint32_t vocab, k2_error *err);
/* Of both files' bytes. Reads all of them. */
k2_digest k2_idx_fingerprint(const k2_idx *x);

typedef struct k2_idx_builder k2_idx_builder;

/* k2_idx_builder_begin - begin to write a pair; it is seen under its names only after commit.
 *
 * memory   the builder is the caller's until commit or abort, which free it
 * errors   NO_SPACE, IO. The files are PREFIX.bin.PID.tmp and so on until commit
 */
k2_code k2_idx_builder_begin(const char *prefix, k2_idx_dtype dtype, k2_idx_builder **out, k2_error *err);
/* One sequence. BAD_INPUT: a token that the type cannot hold; LIMIT: longer than INT32_MAX. After an error only abort is
 * left. */
k2_code k2_idx_builder_add(k2_idx_builder *b, const int32_t *tokens, size_t count, k2_error *err);
/* The sequences since the last call are one document (possibly an empty one). */
void k2_idx_builder_document_end(k2_idx_builder *b);
uint64_t k2_idx_builder_sequences(const k2_idx_builder *b);
uint64_t k2_idx_builder_tokens(const k2_idx_builder *b);
/* Make both files durable and visible: the old .idx goes first and the new one comes last, so that a crash in between leaves a
 * pair that is missing, never one that disagrees. Sequences behind the last document_end become a document. Frees b. */
k2_code k2_idx_builder_commit(k2_idx_builder *b, k2_error *err);
void k2_idx_builder_abort(k2_idx_builder *b); /* NULL is fine */

/* ---- tasks --------------------------------------------------------------------------------------------------------- */

/* Files of a task's directory. */
#define K2_TASK_CORPUS_PREFIX "corpus"        /* corpus.idx, corpus.bin */
#define K2_TASK_PROMPTS_FILE  "prompts.jsonl"
#define K2_TASK_HELDOUT_FILE  "heldout.jsonl"
#define K2_TASK_STAMP_FILE    "task.json"     /* what the files were made from; written last */

/* Sizes of the quickstart's task; 0 means the default. */
typedef struct k2_task_sizes {
    uint32_t corpus;      /* documents */
    uint32_t prompts;     /* training prompts */
    uint32_t heldout;     /* held-out prompts */
    uint32_t letters_min; /* letters of a prompt, >= 2 */
    uint32_t letters_max; /* <= alphabet, for they are distinct */
    uint32_t alphabet;    /* letters come from the first so many of a..z */
} k2_task_sizes;
#define K2_TASK_SIZES_DEFAULT                                                                                        \
    ((k2_task_sizes){                                                                                                \
        .corpus = 20000, .prompts = 4096, .heldout = 256, .letters_min = 2, .letters_max = 10, .alphabet = 16})
#define K2_TASK_ITEMS_MAX 10000000u /* corpus, prompts and heldout each */

/* k2_task_quickstart_write - generate the word games: a user's message "<word> <letters>", answered by one of four skills.
 *
 *   copy abc -> abc     back abc -> cba     twin abc -> aabbcc     fold abc -> abccba
 *
 *   In the corpus the words carry no meaning: each document pairs a random word with a random skill, in exactly the tokens of a
 *   chat. A model trained on it knows the four skills and the layout, and answers one question in four right; what each word
 *   means is in the rewards alone, so reinforcement learning is what teaches it. Letter strings of held-out prompts occur
 *   neither in the corpus nor in the training prompts; no two prompts are equal.
 *
 * keeps    a pure function of (seed, sizes): the same bytes on every machine
 * errors   BAD_INPUT: sizes out of range, or more prompts than there are letter strings (names the field); NO_SPACE, IO
 * tests    tests/unit/data/task_test.c
 */
k2_code k2_task_quickstart_write(const char *dir, uint64_t seed, const k2_task_sizes *sizes, k2_error *err);
/* The same, but does nothing where DIR already holds the files of this seed and these sizes. */
k2_code k2_task_quickstart_ensure(const char *dir, uint64_t seed, const k2_task_sizes *sizes, k2_error *err);

#define K2_TASK_LICENCES_DIR "/usr/share/common-licenses"

/* k2_task_licences_write - a corpus for pretraining from the licence texts that every Debian has; no prompts.
 *
 *   Each regular file is a document. `from` is another directory of text files, NULL for K2_TASK_LICENCES_DIR.
 *
 * keeps    what `_ensure` made once stays, though the texts may change with an upgrade of the system: a run that is resumed
 *          goes on with the corpus that it was begun with
 * errors   NOT_FOUND: no such directory; BAD_INPUT: no text in it; NO_SPACE, IO
 * tests    tests/unit/data/task_test.c, tests/e2e/configs_test.sh
 */
k2_code k2_task_licences_write(const char *dir, const char *from, k2_error *err);
/* The same, but does nothing where DIR holds these files already. */
k2_code k2_task_licences_ensure(const char *dir, const char *from, k2_error *err);
/* Whether there is something to read, without writing anything: to be called before a run directory is made. */
k2_code k2_task_licences_check(const char *from, k2_error *err);

/* ---- the command ----------------------------------------------------------------------------------------------------- */

/* `k2rl data ...`; argv[0] is "data". Returns the exit status: 0, 2 for bad input or usage, 1 otherwise. */
int k2_data_main(int argc, char **argv);

#endif
