/* Any text is a locator or an error of one line; what is a locator survives a round trip and never shows its nonce in errors.
 */
#include "common/xfer/xfer.h"

#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char *text = k2_strndup((const char *)data, size), again[K2_XFER_LOCATOR_MAX];
    k2_xfer_locator l, m;
    k2_error err = {.code = K2_OK};
    k2_code code = k2_xfer_locator_parse(text, &l, &err);
    if (code == K2_OK) {
        k2_xfer_locator_format(&l, true, again);
        K2_ASSERT(strcmp(text, again) == 0);
        code = k2_xfer_locator_parse(again, &m, NULL);
        K2_ASSERT(code == K2_OK && memcmp(&l, &m, sizeof l) == 0);
    } else {
        K2_ASSERT((code == K2_BAD_INPUT || code == K2_UNSUPPORTED) && err.code == code && err.text[0] != 0);
    }
    k2_free(text);
    return 0;
}
