/* idx: the layout byte for byte, what the builder writes is read back, and every way that .idx and .bin can be wrong. */
#include "common/data/data.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

/* Two documents: [[1, 2, 300], [4]] and [[5, 65535]], uint16. Written by hand from the format's description. */
static const unsigned char example_idx[] = {
    'M', 'M', 'I', 'D', 'I', 'D', 'X', 0, 0,          /* magic */
    1,   0,   0,   0,   0,   0,   0,   0,             /* version */
    8,                                                /* uint16 */
    3,   0,   0,   0,   0,   0,   0,   0,             /* sequences */
    3,   0,   0,   0,   0,   0,   0,   0,             /* boundaries: two documents and the leading 0 */
    3,   0,   0,   0,   1,   0,   0,   0, 2, 0, 0, 0, /* lengths */
    0,   0,   0,   0,   0,   0,   0,   0,             /* byte offsets */
    6,   0,   0,   0,   0,   0,   0,   0,             /* */
    8,   0,   0,   0,   0,   0,   0,   0,             /* */
    0,   0,   0,   0,   0,   0,   0,   0,             /* boundaries */
    2,   0,   0,   0,   0,   0,   0,   0,             /* */
    3,   0,   0,   0,   0,   0,   0,   0,             /* */
};
static const unsigned char example_bin[] = {1, 0, 2, 0, 0x2c, 1, 4, 0, 5, 0, 0xff, 0xff};

typedef struct place {
    char dir[32];
    char *prefix, *idx, *bin;
} place;

static int setup(void **state)
{
    place *p = k2_alloc(sizeof *p);
    strcpy(p->dir, "/tmp/k2_idx_XXXXXX");
    if (!mkdtemp(p->dir)) return -1;
    p->prefix = k2_asprintf("%s/t_text_document", p->dir);
    p->idx = k2_asprintf("%s.idx", p->prefix);
    p->bin = k2_asprintf("%s.bin", p->prefix);
    *state = p;
    return 0;
}

static int teardown(void **state)
{
    place *p = *state;
    k2_dir_remove(p->dir, NULL);
    k2_free(p->prefix);
    k2_free(p->idx);
    k2_free(p->bin);
    k2_free(p);
    return 0;
}

static void build_example(const place *p)
{
    static const int32_t first[] = {1, 2, 300}, second[] = {4}, third[] = {5, 65535};
    k2_idx_builder *b = NULL;
    k2_error err;
    assert_int_equal(k2_idx_builder_begin(p->prefix, K2_IDX_UINT16, &b, &err), K2_OK);
    assert_int_equal(k2_idx_builder_add(b, first, 3, &err), K2_OK);
    assert_int_equal(k2_idx_builder_add(b, second, 1, &err), K2_OK);
    k2_idx_builder_document_end(b);
    assert_int_equal(k2_idx_builder_add(b, third, 2, &err), K2_OK);
    assert_int_equal(k2_idx_builder_sequences(b), 3);
    assert_int_equal(k2_idx_builder_tokens(b), 6);
    assert_int_equal(k2_idx_builder_commit(b, &err), K2_OK);
}

static void assert_file(const char *path, const void *bytes, size_t n)
{
    char *data = NULL;
    size_t len = 0;
    k2_error err;
    assert_int_equal(k2_file_read(path, 1u << 20, &data, &len, &err), K2_OK);
    assert_int_equal(len, n);
    assert_memory_equal(data, bytes, n);
    k2_free(data);
}

static void the_builder_writes_the_format(void **state)
{
    const place *p = *state;
    build_example(p);
    assert_file(p->idx, example_idx, sizeof example_idx);
    assert_file(p->bin, example_bin, sizeof example_bin);
    /* Over an older pair too: until the commit the old one stands, and nothing but the two files stays. */
    k2_idx_builder *b = NULL;
    k2_error err;
    const int32_t token = 9;
    assert_int_equal(k2_idx_builder_begin(p->prefix, K2_IDX_UINT16, &b, &err), K2_OK);
    assert_int_equal(k2_idx_builder_add(b, &token, 1, &err), K2_OK);
    assert_file(p->idx, example_idx, sizeof example_idx);
    assert_file(p->bin, example_bin, sizeof example_bin);
    assert_int_equal(k2_idx_builder_commit(b, &err), K2_OK);
    assert_file(p->bin, "\x09", 2);
    build_example(p);
    assert_file(p->idx, example_idx, sizeof example_idx);
    assert_int_equal(unlink(p->idx), 0);
    assert_int_equal(unlink(p->bin), 0);
    assert_int_equal(rmdir(p->dir), 0);
}

static void reading(void **state)
{
    const place *p = *state;
    k2_idx *x = NULL;
    k2_error err;
    int32_t tokens[3];
    uint64_t first, end;
    build_example(p);
    assert_int_equal(k2_idx_open(p->prefix, &x, &err), K2_OK);
    assert_int_equal(k2_idx_dtype_of(x), K2_IDX_UINT16);
    assert_int_equal(k2_idx_sequences(x), 3);
    assert_int_equal(k2_idx_documents(x), 2);
    assert_int_equal(k2_idx_tokens(x), 6);
    assert_int_equal(k2_idx_length(x, 0), 3);
    assert_int_equal(k2_idx_length(x, 2), 2);
    k2_idx_document(x, 0, &first, &end);
    assert_int_equal(first, 0);
    assert_int_equal(end, 2);
    k2_idx_document(x, 1, &first, &end);
    assert_int_equal(first, 2);
    assert_int_equal(end, 3);
    assert_int_equal(k2_idx_read(x, 0, 0, 3, tokens, &err), K2_OK);
    assert_int_equal(tokens[2], 300);
    assert_int_equal(k2_idx_read(x, 2, 1, 1, tokens, &err), K2_OK);
    assert_int_equal(tokens[0], 65535);
    assert_int_equal(k2_idx_read(x, 1, 1, 0, tokens, &err), K2_OK);
    assert_int_equal(k2_idx_check_vocab(x, 65536, &err), K2_OK);
    assert_int_equal(k2_idx_check_vocab(x, 65535, &err), K2_BAD_INPUT);
    assert_string_equal(err.text, "sequence 2, token 1: id 65535 is not in 0..65534");
    const k2_digest d = k2_idx_fingerprint(x);
    k2_idx_close(x);
    assert_int_equal(k2_idx_open(p->prefix, &x, &err), K2_OK);
    assert_true(k2_digest_equal(d, k2_idx_fingerprint(x)));
    k2_idx_close(x);
    k2_idx_close(NULL);
}

static void every_type_round_trips(void **state)
{
    const place *p = *state;
    static const struct {
        k2_idx_dtype dtype;
        int32_t largest;
        bool above; /* whether largest + 1 is an int32 that must be refused */
    } cases[] = {
        {K2_IDX_UINT8, UINT8_MAX, true},   {K2_IDX_INT8, INT8_MAX, true},    {K2_IDX_INT16, INT16_MAX, true},
        {K2_IDX_UINT16, UINT16_MAX, true}, {K2_IDX_INT32, INT32_MAX, false}, {K2_IDX_INT64, INT32_MAX, false},
    };
    for (size_t i = 0; i < K2_COUNT(cases); i++) {
        const int32_t tokens[] = {0, cases[i].largest, 1}, over = cases[i].largest, negative = -1;
        int32_t back[3];
        k2_idx_builder *b = NULL;
        k2_idx *x = NULL;
        k2_error err;
        assert_int_equal(k2_idx_builder_begin(p->prefix, cases[i].dtype, &b, &err), K2_OK);
        assert_int_equal(k2_idx_builder_add(b, tokens, 3, &err), K2_OK);
        assert_int_equal(k2_idx_builder_commit(b, &err), K2_OK);
        assert_int_equal(k2_idx_open(p->prefix, &x, &err), K2_OK);
        assert_int_equal(k2_idx_read(x, 0, 0, 3, back, &err), K2_OK);
        assert_memory_equal(back, tokens, sizeof tokens);
        k2_idx_close(x);
        assert_int_equal(k2_idx_builder_begin(p->prefix, cases[i].dtype, &b, &err), K2_OK);
        if (cases[i].above) {
            const int32_t next = over + 1;
            assert_int_equal(k2_idx_builder_add(b, &next, 1, &err), K2_BAD_INPUT);
            assert_non_null(strstr(err.text, "does not fit"));
        }
        assert_int_equal(k2_idx_builder_add(b, &negative, 1, &err), K2_BAD_INPUT);
        k2_idx_builder_abort(b);
        assert_true(k2_file_exists(p->idx)); /* the older pair still stands */
        assert_true(k2_file_exists(p->bin));
    }
    assert_int_equal(k2_idx_dtype_for(264), K2_IDX_UINT16);
    assert_int_equal(k2_idx_dtype_for(65499), K2_IDX_UINT16);
    assert_int_equal(k2_idx_dtype_for(65500), K2_IDX_INT32);
    assert_int_equal(k2_idx_dtype_for(163840), K2_IDX_INT32);
}

static void long_and_empty_sequences(void **state)
{
    const place *p = *state;
    enum { N = 10007 };
    int32_t *tokens = k2_alloc_array(N, sizeof *tokens), *back = k2_alloc_array(N, sizeof *back);
    k2_idx_builder *b = NULL;
    k2_idx *x = NULL;
    k2_error err;
    uint64_t first, end;
    for (int32_t i = 0; i < N; i++) tokens[i] = i;
    assert_int_equal(k2_idx_builder_begin(p->prefix, K2_IDX_UINT16, &b, &err), K2_OK);
    k2_idx_builder_document_end(b); /* an empty document */
    assert_int_equal(k2_idx_builder_add(b, tokens, 0, &err), K2_OK);
    assert_int_equal(k2_idx_builder_add(b, tokens, N, &err), K2_OK);
    k2_idx_builder_document_end(b);
    assert_int_equal(k2_idx_builder_commit(b, &err), K2_OK);
    assert_int_equal(k2_idx_open(p->prefix, &x, &err), K2_OK);
    assert_int_equal(k2_idx_documents(x), 2);
    k2_idx_document(x, 0, &first, &end);
    assert_int_equal(first, end);
    assert_int_equal(k2_idx_length(x, 0), 0);
    assert_int_equal(k2_idx_read(x, 1, 0, N, back, &err), K2_OK);
    assert_memory_equal(tokens, back, N * sizeof *tokens);
    k2_idx_close(x);
    /* Nothing at all is an error, and leaves nothing. */
    unlink(p->idx);
    unlink(p->bin);
    assert_int_equal(k2_idx_builder_begin(p->prefix, K2_IDX_UINT16, &b, &err), K2_OK);
    assert_int_equal(k2_idx_builder_commit(b, &err), K2_BAD_INPUT);
    assert_false(k2_file_exists(p->bin));
    /* Only empty sequences: .bin has no bytes. */
    assert_int_equal(k2_idx_builder_begin(p->prefix, K2_IDX_UINT16, &b, &err), K2_OK);
    assert_int_equal(k2_idx_builder_add(b, tokens, 0, &err), K2_OK);
    assert_int_equal(k2_idx_builder_commit(b, &err), K2_OK);
    assert_int_equal(k2_idx_open(p->prefix, &x, &err), K2_OK);
    assert_int_equal(k2_idx_read(x, 0, 0, 0, back, &err), K2_OK);
    assert_int_equal(k2_idx_check_vocab(x, 1, &err), K2_OK);
    assert_false(k2_digest_zero(k2_idx_fingerprint(x)));
    k2_idx_close(x);
    k2_idx_builder_abort(NULL);
    k2_free(tokens);
    k2_free(back);
}

static void files_that_are_missing_or_cut(void **state)
{
    const place *p = *state;
    k2_idx *x = NULL;
    k2_error err;
    assert_int_equal(k2_idx_open(p->prefix, &x, &err), K2_NOT_FOUND);
    assert_non_null(strstr(err.text, p->idx));
    build_example(p);
    for (size_t n = 0; n < sizeof example_bin; n++) {
        assert_int_equal(k2_file_write_atomic(p->bin, example_bin, n, &err), K2_OK);
        assert_int_equal(k2_idx_open(p->prefix, &x, &err), K2_BAD_INPUT);
        assert_non_null(strstr(err.text, ".idx and .bin disagree: the sequences end at byte 12"));
    }
    unlink(p->bin);
    assert_int_equal(k2_idx_open(p->prefix, &x, &err), K2_NOT_FOUND);
    assert_non_null(strstr(err.text, p->bin));
    k2_idx_builder *b = NULL;
    assert_int_equal(k2_idx_builder_begin("/nonexistent/x", K2_IDX_UINT8, &b, &err), K2_NOT_FOUND);
    assert_null(b);
    assert_null(x);
}

static k2_code check(const unsigned char *idx, size_t n, uint64_t bin_bytes, k2_error *err)
{
    /* An own block of the exact size, so that a read past the end is seen. */
    unsigned char *copy = memcpy(k2_alloc(n + 1), idx, n);
    copy = k2_realloc_array(copy, K2_MAX(n, (size_t)1), 1);
    k2_code code = k2_idx_check("x.idx", copy, n, bin_bytes, err);
    k2_free(copy);
    return code;
}

static void an_index_cut_anywhere(void **state)
{
    (void)state;
    k2_error err;
    assert_int_equal(check(example_idx, sizeof example_idx, 12, &err), K2_OK);
    for (size_t n = 0; n < sizeof example_idx; n++) assert_int_equal(check(example_idx, n, 12, &err), K2_BAD_INPUT);
    assert_int_equal(check(example_idx, sizeof example_idx, 11, &err), K2_BAD_INPUT);
    assert_int_equal(check(example_idx, sizeof example_idx, 13, &err), K2_BAD_INPUT);
    assert_int_equal(check(example_idx, sizeof example_idx, 0, &err), K2_BAD_INPUT);
}

/* One place of the example changed, and what must be said about it. */
static void hostile_indexes(void **state)
{
    (void)state;
    static const struct {
        size_t at, n;
        uint64_t value;
        k2_code code;
        const char *text;
    } cases[] = {
        {0, 1, 'N', K2_BAD_INPUT, "does not begin with MMIDIDX"},
        {8, 1, 1, K2_BAD_INPUT, "does not begin with MMIDIDX"},
        {9, 8, 2, K2_BAD_INPUT, "version 2, expected 1"},
        {17, 1, 0, K2_BAD_INPUT, "dtype code 0"},
        {17, 1, 9, K2_BAD_INPUT, "dtype code 9"},
        {17, 1, 255, K2_BAD_INPUT, "dtype code 255"},
        {17, 1, 6, K2_UNSUPPORTED, "float type"},
        {17, 1, 7, K2_UNSUPPORTED, "float type"},
        {17, 1, 4, K2_BAD_INPUT, "sequence 1 begins at byte 6, expected 12"},
        {18, 8, 0, K2_BAD_INPUT, "holds no sequence"},
        {18, 8, 2, K2_BAD_INPUT, "2 sequences and 3 boundaries take 82"},
        {18, 8, 1ull << 61, K2_LIMIT, "at most"},
        {18, 8, UINT64_MAX, K2_LIMIT, "at most"},
        {18, 8, 1ull << 36, K2_BAD_INPUT, "take"},
        {26, 8, 2, K2_BAD_INPUT, "3 sequences and 2 boundaries take 86"},
        {26, 8, 1ull << 60, K2_LIMIT, "at most"},
        {34, 4, 0xffffffff, K2_BAD_INPUT, "sequence 0 has the length -1"},
        {34, 4, 0x80000000, K2_BAD_INPUT, "sequence 0 has the length -2147483648"},
        {34, 4, 2, K2_BAD_INPUT, "sequence 1 begins at byte 6, expected 4"},
        {42, 4, 0x7fffffff, K2_BAD_INPUT, ".idx and .bin disagree: the sequences end at byte 4294967302"},
        {42, 4, 1, K2_BAD_INPUT, ".idx and .bin disagree: the sequences end at byte 10, but .bin has 12 bytes"},
        {46, 8, 2, K2_BAD_INPUT, "sequence 0 begins at byte 2, expected 0"},
        {54, 8, UINT64_MAX, K2_BAD_INPUT, "sequence 1 begins at byte -1, expected 6"},
        {62, 8, 6, K2_BAD_INPUT, "sequence 2 begins at byte 6, expected 8"},
        {70, 8, 1, K2_BAD_INPUT, "document boundary 0 is 1, expected 0 to 0"},
        {78, 8, 4, K2_BAD_INPUT, "document boundary 1 is 4, expected 0 to 3"},
        {78, 8, UINT64_MAX, K2_BAD_INPUT, "document boundary 1 is -1"},
        {86, 8, 2, K2_BAD_INPUT, "the last document ends at sequence 2, expected 3"},
        {86, 8, 1, K2_BAD_INPUT, "document boundary 2 is 1, expected 2 to 3"},
    };
    for (size_t i = 0; i < K2_COUNT(cases); i++) {
        unsigned char bytes[sizeof example_idx];
        k2_error err = {0};
        memcpy(bytes, example_idx, sizeof bytes);
        for (size_t k = 0; k < cases[i].n; k++) bytes[cases[i].at + k] = (unsigned char)(cases[i].value >> (8 * k));
        assert_int_equal(check(bytes, sizeof bytes, 12, &err), cases[i].code);
        if (!strstr(err.text, cases[i].text)) fail_msg("case %zu: \"%s\" does not say \"%s\"", i, err.text, cases[i].text);
    }
    /* Multimodal: one more byte a sequence. One boundary only. */
    unsigned char longer[sizeof example_idx + 3] = {0};
    k2_error err;
    memcpy(longer, example_idx, sizeof example_idx);
    assert_int_equal(check(longer, sizeof longer, 12, &err), K2_UNSUPPORTED);
    memcpy(longer, example_idx, sizeof example_idx);
    longer[26] = 1;
    assert_int_equal(check(longer, sizeof example_idx - 16, 12, &err), K2_BAD_INPUT);
    assert_non_null(strstr(err.text, "1 document boundaries, expected at least 2"));
}

static void values_that_are_no_tokens(void **state)
{
    const place *p = *state;
    k2_idx *x = NULL;
    k2_error err;
    int32_t tokens[3];
    build_example(p);
    unsigned char bytes[sizeof example_idx];
    memcpy(bytes, example_idx, sizeof bytes);
    bytes[17] = K2_IDX_INT16; /* 65535 becomes -1 */
    assert_int_equal(k2_file_write_atomic(p->idx, bytes, sizeof bytes, &err), K2_OK);
    assert_int_equal(k2_idx_open(p->prefix, &x, &err), K2_OK);
    assert_int_equal(k2_idx_read(x, 2, 0, 2, tokens, &err), K2_BAD_INPUT);
    assert_string_equal(err.text, "sequence 2, token 1: -1 is no token id");
    assert_int_equal(k2_idx_check_vocab(x, 1000, &err), K2_BAD_INPUT);
    k2_idx_close(x);
}

int main(void)
{
#define T(f) cmocka_unit_test_setup_teardown(f, setup, teardown)
    const struct CMUnitTest tests[] = {
        T(the_builder_writes_the_format),  T(reading),
        T(every_type_round_trips),         T(long_and_empty_sequences),
        T(files_that_are_missing_or_cut),  cmocka_unit_test(an_index_cut_anywhere),
        cmocka_unit_test(hostile_indexes), T(values_that_are_no_tokens),
    };
    return cmocka_run_group_tests_name("idx", tests, NULL, NULL);
}
