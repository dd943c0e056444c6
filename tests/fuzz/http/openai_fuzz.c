/* Any bytes as a body: a request that is taken must be written and read again to the same text; answers and health likewise
 * must not fault. The first byte chooses. build/fuzz/http_openai_fuzz tests/fuzz/http/corpus/http_openai */
#include <string.h>

#include "common/http/openai.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void request(const char *body, size_t n, bool chat)
{
    k2_openai_request r, again;
    k2_openai_error err;
    if (!k2_openai_parse_request(body, n, chat, &r, &err)) {
        K2_ASSERT(err.status == 400 && err.message[0]);
        return;
    }
    k2_buf first, second;
    k2_buf_init(&first, 1 << 24);
    k2_buf_init(&second, 1 << 24);
    k2_openai_write_request(&first, &r, NULL);
    K2_ASSERT(k2_openai_parse_request(first.data, first.len, chat, &again, &err));
    k2_openai_write_request(&second, &again, NULL);
    K2_ASSERT(first.len == second.len && memcmp(first.data, second.data, first.len) == 0);
    k2_openai_request_fini(&r);
    k2_openai_request_fini(&again);
    k2_buf_fini(&first);
    k2_buf_fini(&second);
}

static void answer(const char *body, size_t n)
{
    k2_openai_parsed p;
    k2_openai_parsed_init(&p);
    k2_buf out;
    k2_buf_init(&out, 1 << 24);
    if (k2_openai_parse_answer(body, n, &p, NULL) == K2_OK) k2_openai_write_chunk(&out, &p.a);
    k2_openai_parsed_fini(&p);
    k2_buf_fini(&out);
    uint64_t version;
    k2_digest digest;
    k2_openai_error e;
    k2_openai_read_health(body, n, &version, &digest);
    k2_openai_read_error(body, n, 500, &e);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size < 1) return 0;
    const char *body = (const char *)data + 1;
    if (data[0] % 3 == 2)
        answer(body, size - 1);
    else
        request(body, size - 1, data[0] % 3 == 1);
    return 0;
}
