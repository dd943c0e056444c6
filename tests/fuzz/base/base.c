/* What all parsers stand on: the look at JSON before a lenient parser sees it, UTF-8, numbers, and command lines. */
#include <stdio.h>
#include <string.h>

#include "common/base/base.h"
#include "tests/fuzz/harness/parser.h"

static bool json(const uint8_t *text, size_t n)
{
    const char *fault = k2_json_fault((const char *)text, n, 8);
    K2_ASSERT(!fault || fault[0]);
    return !fault;
}

/* One form is the form of itself. */
static bool sorted(const uint8_t *text, size_t n)
{
    k2_buf first, second;
    k2_buf_init(&first, 8 * n + 64);
    k2_buf_init(&second, 8 * n + 64);
    const bool ok = k2_json_sorted((const char *)text, n, &first);
    if (ok && !strstr(first.data, "Infinity")) {
        const bool again = k2_json_sorted(first.data, first.len, &second);
        K2_ASSERT(again && first.len == second.len && memcmp(first.data, second.data, first.len) == 0);
    }
    K2_ASSERT(ok || first.len == 0);
    k2_buf_fini(&first);
    k2_buf_fini(&second);
    return ok;
}

static bool member(const uint8_t *text, size_t n)
{
    const char *value;
    size_t value_n;
    if (!k2_json_member((const char *)text, n, "tools", &value, &value_n)) return false;
    K2_ASSERT((const uint8_t *)value > text && value_n > 0 && (const uint8_t *)value + value_n < text + n);
    return true;
}

/* Whatever the bytes are, written as a JSON string they are sound, and of text nothing is lost. */
static bool string(const uint8_t *bytes, size_t n)
{
    k2_buf out;
    k2_buf_init(&out, 6 * n + 2);
    const bool fits = k2_buf_json_string(&out, (const char *)bytes, n), valid = k2_utf8_valid((const char *)bytes, n);
    K2_ASSERT(fits && k2_utf8_valid(out.data, out.len) && out.len >= 2 + (valid ? n : 0));
    if (!memchr(bytes, 0, n)) K2_ASSERT(!k2_json_fault(out.data, out.len, 0));
    k2_buf_fini(&out);
    return valid;
}

static bool number(const uint8_t *text, size_t n)
{
    uint64_t v;
    char back[24];
    if (!k2_str_u64((const char *)text, &v)) return false;
    const int len = snprintf(back, sizeof back, "%llu", (unsigned long long)v);
    const char *digits = (const char *)text + strspn((const char *)text, "0");
    K2_ASSERT(n > 0 && (v == 0 ? *digits == 0 : strlen(digits) == (size_t)len && strcmp(digits, back) == 0));
    return true;
}

/* Words apart by line ends. */
static bool arguments(const uint8_t *text, size_t n)
{
    char *copy = k2_strndup((const char *)text, n), *words[64], *save = NULL;
    bool flag = false, help = false;
    uint32_t u32 = 0;
    uint64_t u64 = 0;
    const char *value = NULL;
    const k2_option options[] = {{.name = "--flag", .flag = &flag},
                                 {.name = "--workers", .u32 = &u32},
                                 {.name = "--seed", .u64 = &u64},
                                 {.name = "--listen", .text = &value}};
    int count = 0, operands = 0;
    for (char *w = strtok_r(copy, "\n", &save); w && count < 64; w = strtok_r(NULL, "\n", &save)) words[count++] = w;
    k2_error err;
    const k2_code code = k2_args_parse(words, count, options, K2_COUNT(options), &operands, &help, &err);
    K2_ASSERT(code == K2_OK ? operands >= 0 && operands <= count : err.text[0] != 0);
    k2_free(copy);
    return code == K2_OK && count > 0;
}

const k2_parser k2_parsers[] = {
    {.name = "JSON without a fault", .take = json},
    {.name = "JSON in one form", .take = sorted},
    {.name = "member of a JSON object", .take = member, .prefixes_refused = true},
    {.name = "UTF-8", .take = string},
    {.name = "number", .take = number, .text = true},
    {.name = "command line", .take = arguments, .text = true},
};
const size_t k2_parsers_count = K2_COUNT(k2_parsers);
