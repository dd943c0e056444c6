/* parser - what the tests know of a parser of bytes from outside: one row, from which come a unit test under guard pages, the
 * test of every split point, and a fuzz target. README.md in tests/fuzz says how to add one.
 *
 * A *family* is the parsers of one .c file; it has one fuzz target and one corpus, and every input goes to all of its parsers, so
 * that seeds are the files and messages themselves, without a byte that chooses.
 */
#ifndef K2_TEST_PARSER_H
#define K2_TEST_PARSER_H

#include "common/base/base.h"

/* Input that comes in pieces; k2_parser_piece places each behind guard pages. */
typedef struct k2_parser_pieces {
    const uint8_t *bytes;
    size_t n, at;
    size_t first, step; /* the first piece is so long, the others so */
} k2_parser_pieces;

/* The next piece; false: there is none. A piece lies there until the next one is asked for. */
bool k2_parser_piece(k2_parser_pieces *in, const uint8_t **bytes, size_t *n);

typedef struct k2_parser {
    const char *name;
    /* Whole inputs: whether they are accepted. Asserts what must hold of anything accepted (it encodes to the same again, all
     * that it points to lies inside) and of any refusal. NULL for streams. */
    bool (*take)(const uint8_t *bytes, size_t n);
    /* Streams: reads all pieces, appends what came of them to seen, and answers whether they were accepted. However the input is
     * cut, answer and seen are the same; of what is refused, seen may stop earlier. NULL for whole inputs. */
    bool (*stream)(k2_parser_pieces *in, k2_buf *seen);
    bool text;             /* take gets a C string: the input up to its first zero byte, and one behind it (not counted) */
    bool prefixes_refused; /* no beginning of an accepted input is accepted, unless it lacks only white space */
    uint8_t align;         /* of the input's address; 0: any */
} k2_parser;

/* What a family defines. */
extern const k2_parser k2_parsers[];
extern const size_t k2_parsers_count;

/* Has the parser read the input as one piece on one side, or cut in pieces. Guarded; n <= K2_GUARD_BYTES / 2. */
bool k2_parser_whole(const k2_parser *p, bool at_end, const uint8_t *bytes, size_t n);
/* Streams: whether cutting changed anything; then *why says what. */
bool k2_parser_same(const k2_parser *p, const uint8_t *bytes, size_t n, size_t first, size_t step, char why[256]);

#endif
