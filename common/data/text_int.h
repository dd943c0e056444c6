/* text_int - text files to a token file, for `k2rl data` and for tasks that are made of text. */
#ifndef K2_DATA_TEXT_INT_H
#define K2_DATA_TEXT_INT_H

#include "common/base/base.h"

typedef struct k2i_text_options {
    bool split;        /* documents are paragraphs, not files */
    const char *tokenizer; /* its directory or file; NULL: the byte tokenizer */
    const char *pattern;   /* of ranks whose file's name says nothing; NULL otherwise */
    const char *field; /* the files are JSON lines, and this field of each is a document; NULL: they are text */
} k2i_text_options;

typedef struct k2i_text_counts {
    uint64_t documents, tokens;
} k2i_text_counts;

/* Write PREFIX.idx and PREFIX.bin from files and directories (of a directory: its regular files in the order of their names).
 *
 * errors   BAD_INPUT where there is no document at all, and what reading and writing gives; then nothing is written
 */
k2_code k2i_text_convert(const char *prefix, char **paths, int count, k2i_text_options options, k2i_text_counts *counts,
                         k2_error *err);

#endif
