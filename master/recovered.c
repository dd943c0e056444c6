/* recovered: see recovered_int.h. */
#include "master/recovered_int.h"

#define PROMPT_TOKENS 8192u /* room for prompts while a journal is read: nothing is generated from them */

static void no_record(void *arg, uint32_t type, const void *bytes, size_t len)
{
    (void)arg, (void)type, (void)bytes, (void)len;
}

typedef struct reading {
    k2m_core *core;
    k2_code code;
    k2_error *err;
} reading;

static bool apply(void *arg, const k2_journal_record *r)
{
    reading *x = arg;
    x->code = k2m_core_apply(x->core, r->type, r->bytes, r->len, x->err);
    return x->code == K2_OK;
}

k2_code k2m_recovered(const k2_config *config, k2_journal *journal, k2m_core **out, k2_error *err)
{
    k2m_core_config cc = {
        .config = config, .prompts = {.length_max = PROMPT_TOKENS}, .checkpoints_dir = "", .record = no_record};
    reading x = {.err = err};
    k2_code code = k2m_core_new(&cc, &x.core, err);
    if (code != K2_OK) return code;
    code = k2_journal_read(journal, 0, apply, &x, err);
    if (code == K2_OK) code = x.code;
    if (code == K2_OK)
        *out = x.core;
    else
        k2m_core_free(x.core);
    return code;
}
