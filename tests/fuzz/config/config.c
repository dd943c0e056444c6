/* Configuration files, and `--set path=value`. What is taken is written and read back to the same text. */
#include <string.h>

#include "common/config/config.h"
#include "tests/fuzz/harness/parser.h"

static void check_same_again(const k2_config *c)
{
    k2_error err;
    char *first = k2_config_json(c);
    k2_config *back = k2_alloc(sizeof *back);
    k2_config_defaults(back);
    const k2_code code = k2_config_parse(back, first, strlen(first), "again", &err);
    K2_ASSERT(code == K2_OK);
    char *second = k2_config_json(back);
    K2_ASSERT(strcmp(first, second) == 0);
    K2_ASSERT(k2_digest_equal(k2_config_identity(c), k2_config_identity(back)));
    k2_free(first);
    k2_free(second);
    k2_free(back);
}

static bool judge(k2_config *c, k2_code code, const k2_error *err)
{
    k2_error why;
    if (code == K2_OK) check_same_again(c);
    K2_ASSERT(code == K2_OK || (err->code == code && err->text[0]));
    (void)k2_config_check(c, &why);
    k2_free(c);
    return code == K2_OK;
}

static k2_config *fresh(void)
{
    k2_config *c = k2_alloc(sizeof *c);
    k2_config_defaults(c);
    return c;
}

static bool file(const uint8_t *bytes, size_t n)
{
    k2_error err;
    k2_config *c = fresh();
    return judge(c, k2_config_parse(c, (const char *)bytes, n, "file", &err), &err);
}

static bool set(const uint8_t *text, size_t n)
{
    k2_error err;
    k2_config *c = fresh();
    (void)n;
    return judge(c, k2_config_set(c, (const char *)text, &err), &err);
}

const k2_parser k2_parsers[] = {
    {.name = "config file", .take = file, .prefixes_refused = true},
    {.name = "--set", .take = set, .text = true},
};
const size_t k2_parsers_count = K2_COUNT(k2_parsers);
