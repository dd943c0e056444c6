/* Any bytes as a configuration, and any line as `path=value`; what is taken must write and read back to the same text.
 *     build/fuzz/config_fuzz tests/fuzz/config/corpus_config */
#include "common/config/config.h"

#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check_same_again(const k2_config *c)
{
    k2_error err;
    char *first = k2_config_json(c);
    k2_config *back = k2_alloc(sizeof *back);
    k2_config_defaults(back);
    K2_ASSERT(k2_config_parse(back, first, strlen(first), "again", &err) == K2_OK);
    char *second = k2_config_json(back);
    K2_ASSERT(strcmp(first, second) == 0);
    K2_ASSERT(k2_digest_equal(k2_config_identity(c), k2_config_identity(back)));
    k2_free(first);
    k2_free(second);
    k2_free(back);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    k2_error err;
    k2_config *c = k2_alloc(sizeof *c);
    k2_config_defaults(c);
    if (k2_config_parse(c, (const char *)data, size, "fuzz", &err) == K2_OK) check_same_again(c);
    (void)k2_config_check(c, &err);
    char *line = k2_alloc(size + 1);
    if (size) memcpy(line, data, size);
    if (k2_config_set(c, line, &err) == K2_OK) check_same_again(c);
    k2_free(line);
    k2_free(c);
    return 0;
}
