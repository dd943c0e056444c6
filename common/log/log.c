/* Log lines: format, clean, write once. */
#include "common/log/log.h"

const char *k2_log_level_name(k2_log_level level)
{
    static const char *const names[] = {"debug", "info", "warn", "error", "off"};
    K2_ASSERT((unsigned)level < K2_COUNT(names));
    return names[level];
}
