/* A tokenizer as a filter, for comparison with other people's: records of a u32 length and bytes come in, u32 counts and ids go
 * out; with "decode" ids come in and bytes go out. With "bench" it encodes one file ROUNDS times and prints the least
 * CPU time.
 *
 *     token_encode KIND PATH PATTERN plain|trusted|decode < records > ids
 *     token_encode KIND PATH PATTERN bench FILE ROUNDS
 */
#include "common/token/token.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define RECORD_MAX (1u << 28)

static _Noreturn void fail(const char *what, const k2_error *err)
{
    fprintf(stderr, "token_encode: %s: %s\n", what, err ? err->text : "");
    exit(1);
}

static bool read_record(k2_buf *b)
{
    unsigned char head[4];
    k2_buf_clear(b);
    if (fread(head, 1, sizeof head, stdin) != sizeof head) return false;
    const uint32_t n = k2_load_u32le(head);
    if (n > RECORD_MAX) fail("a record is too long", NULL);
    char *bytes = k2_alloc(n);
    if (fread(bytes, 1, n, stdin) != n) fail("a record is cut", NULL);
    k2_buf_append(b, bytes, n);
    k2_free(bytes);
    return true;
}

static void write_record(const void *bytes, size_t items, size_t size)
{
    const uint32_t n = (uint32_t)items;
    fwrite(&n, sizeof n, 1, stdout);
    if (items) fwrite(bytes, size, items, stdout);
}

static void filter(const k2_tokenizer *t, const char *mode)
{
    k2_buf in, text;
    k2_tokens ids;
    k2_error err;
    k2_buf_init(&in, RECORD_MAX);
    k2_buf_init(&text, RECORD_MAX);
    k2_tokens_init(&ids, RECORD_MAX);
    while (read_record(&in)) {
        k2_code code;
        const char *bytes = in.data ? in.data : "";
        k2_tokens_clear(&ids);
        k2_buf_clear(&text);
        if (strcmp(mode, "decode") == 0)
            code = k2_tokenizer_decode(t, (const int32_t *)(const void *)bytes, in.len / 4, &text, &err);
        else if (strcmp(mode, "trusted") == 0)
            code = k2_tokenizer_encode_trusted(t, bytes, in.len, &ids, &err);
        else
            code = k2_tokenizer_encode(t, bytes, in.len, &ids, &err);
        if (code != K2_OK) fail("a record", &err);
        if (strcmp(mode, "decode") == 0)
            write_record(text.data, text.len, 1);
        else
            write_record(ids.ids, ids.count, sizeof(int32_t));
    }
    k2_buf_fini(&in);
    k2_buf_fini(&text);
    k2_tokens_fini(&ids);
}

static uint64_t cpu_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (uint64_t)t.tv_sec * K2_NS_PER_S + (uint64_t)t.tv_nsec;
}

static void bench(const k2_tokenizer *t, const char *path, int rounds)
{
    char *bytes;
    size_t n;
    k2_error err;
    k2_tokens ids;
    uint64_t best = UINT64_MAX;
    if (k2_file_read(path, RECORD_MAX, &bytes, &n, &err) != K2_OK) fail(path, &err);
    k2_tokens_init(&ids, RECORD_MAX);
    for (int i = 0; i < rounds; i++) {
        k2_tokens_clear(&ids);
        const uint64_t begin = cpu_ns();
        if (k2_tokenizer_encode(t, bytes, n, &ids, &err) != K2_OK) fail(path, &err);
        best = K2_MIN(best, cpu_ns() - begin);
    }
    printf("%" PRIu64 " %zu\n", best, ids.count);
    k2_free(bytes);
    k2_tokens_fini(&ids);
}

int main(int argc, char **argv)
{
    k2_tokenizer *t;
    k2_error err;
    if (argc < 5) fail("usage: token_encode KIND PATH PATTERN plain|trusted|decode|bench [FILE ROUNDS]", NULL);
    if (k2_tokenizer_load(&(k2_tokenizer_spec){.kind = argv[1], .path = argv[2], .pattern = argv[3]}, &t, &err) != K2_OK)
        fail(argv[2], &err);
    if (strcmp(argv[4], "bench") == 0 && argc == 7)
        bench(t, argv[5], atoi(argv[6]));
    else
        filter(t, argv[4]);
    k2_tokenizer_close(t);
    return 0;
}
