/* Bodies of the OpenAI interface. A request that is taken is written and read again to the same text; an answer likewise. */
#include <string.h>

#include "common/http/openai.h"
#include "tests/fuzz/harness/parser.h"

#define BODY_MAX (1u << 24)

static bool request(const char *body, size_t n, bool chat)
{
    k2_openai_request r, again;
    k2_openai_error err;
    if (!k2_openai_parse_request(body, n, chat, &r, &err)) {
        K2_ASSERT(err.status == 400 && err.message[0]);
        return false;
    }
    k2_buf first, second;
    k2_buf_init(&first, BODY_MAX);
    k2_buf_init(&second, BODY_MAX);
    k2_openai_write_request(&first, &r, NULL);
    const bool read = k2_openai_parse_request(first.data, first.len, chat, &again, &err);
    K2_ASSERT(read);
    k2_openai_write_request(&second, &again, NULL);
    K2_ASSERT(first.len == second.len && memcmp(first.data, second.data, first.len) == 0);
    const bool taken = k2_openai_refuse_extra(&r, &err);
    K2_ASSERT(taken || (err.status == 400 && err.message[0] && err.param[0]));
    K2_ASSERT(taken == k2_openai_refuse_extra(&again, &err));
    k2_openai_request_fini(&r);
    k2_openai_request_fini(&again);
    k2_buf_fini(&first);
    k2_buf_fini(&second);
    return true;
}

static bool completion(const uint8_t *body, size_t n)
{
    return request((const char *)body, n, false);
}

static bool chat(const uint8_t *body, size_t n)
{
    return request((const char *)body, n, true);
}

static bool answer(const uint8_t *body, size_t n)
{
    k2_openai_parsed p;
    k2_error err;
    k2_openai_parsed_init(&p);
    const k2_code code = k2_openai_parse_answer((const char *)body, n, &p, &err);
    K2_ASSERT(code == K2_OK || code == K2_PEER_PROTOCOL || code == K2_PEER_REFUSED);
    if (code == K2_OK) {
        k2_buf out;
        k2_buf_init(&out, BODY_MAX);
        k2_openai_write_chunk(&out, &p.a);
        k2_buf_fini(&out);
    }
    k2_openai_parsed_fini(&p);
    return code == K2_OK;
}

static bool health(const uint8_t *body, size_t n)
{
    uint64_t version, again;
    k2_digest digest, same;
    k2_buf out;
    if (!k2_openai_read_health((const char *)body, n, &version, &digest)) return false;
    k2_buf_init(&out, BODY_MAX);
    k2_openai_write_health(&out, true, version, digest);
    const bool read = k2_openai_read_health(out.data, out.len, &again, &same);
    K2_ASSERT(read && again == version && k2_digest_equal(digest, same));
    k2_buf_fini(&out);
    return true;
}

static bool error(const uint8_t *body, size_t n)
{
    k2_openai_error e;
    k2_openai_read_error((const char *)body, n, 500, &e);
    K2_ASSERT(e.status == 500 && strnlen(e.message, sizeof e.message) < sizeof e.message);
    return true; /* whatever it is becomes the message */
}

const k2_parser k2_parsers[] = {
    {.name = "completion", .take = completion, .prefixes_refused = true},
    {.name = "chat", .take = chat, .prefixes_refused = true},
    {.name = "answer", .take = answer, .prefixes_refused = true},
    {.name = "health", .take = health, .prefixes_refused = true},
    {.name = "error", .take = error},
};
const size_t k2_parsers_count = K2_COUNT(k2_parsers);
