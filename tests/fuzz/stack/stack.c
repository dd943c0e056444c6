/* What the kernel and the compiler say of processes: lines of /proc/PID/stat, whose names may hold anything, and symbols. */
#include <string.h>

#include "common/stack/stack.h"
#include "tests/fuzz/harness/parser.h"

static bool process(const uint8_t *text, size_t n)
{
    k2_proc p;
    (void)n;
    if (!k2_proc_parse((const char *)text, &p)) return false;
    K2_ASSERT(p.pid > 0 && strnlen(p.name, sizeof p.name) < sizeof p.name && k2_proc_state_text(p.state));
    return true;
}

static bool symbol(const uint8_t *text, size_t n)
{
    char name[K2_STACK_NAME_MAX], again[K2_STACK_NAME_MAX];
    k2_stack_function((const char *)text, name);
    K2_ASSERT(strlen(name) <= n && strncmp(name, (const char *)text, strlen(name)) == 0);
    k2_stack_function(name, again);
    K2_ASSERT(strcmp(name, again) == 0);
    return n > 0;
}

const k2_parser k2_parsers[] = {
    {.name = "/proc/PID/stat", .take = process, .text = true},
    {.name = "symbol", .take = symbol, .text = true},
};
const size_t k2_parsers_count = K2_COUNT(k2_parsers);
