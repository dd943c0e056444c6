/* trainer.json of a checkpoint, which is written and read back to the same, and quarantine.json of a step that was put aside.
 */
#include "trainer/checkpoint_int.h"

#include <string.h>

#include "common/quarantine/quarantine.h"
#include "tests/fuzz/harness/parser.h"

static bool state(const uint8_t *text, size_t n)
{
    k2i_checkpoint s, back;
    k2_error err;
    k2_buf out;
    k2_code code = k2i_checkpoint_parse("trainer.json", (const char *)text, n, &s, &err);
    K2_ASSERT(code == K2_OK || (err.code == code && strncmp(err.text, "trainer.json", 12) == 0));
    if (code != K2_OK) return false;
    k2_buf_init(&out, 1u << 16);
    k2i_checkpoint_encode(&s, &out);
    code = k2i_checkpoint_parse("again", out.data, out.len, &back, &err);
    K2_ASSERT(code == K2_OK && s.step == back.step && s.pretrain_step == back.pretrain_step && s.updates == back.updates);
    K2_ASSERT(s.moments == back.moments && s.seed == back.seed && k2_digest_equal(s.weights, back.weights) &&
              k2_digest_equal(s.optimizer, back.optimizer));
    k2_buf_fini(&out);
    return true;
}

static bool note(const uint8_t *text, size_t n)
{
    k2_quarantine_note q;
    k2_error err;
    const k2_code code = k2_quarantine_parse("quarantine.json", (const char *)text, n, &q, &err);
    K2_ASSERT(code == K2_OK || (err.code == code && strncmp(err.text, "quarantine.json", 15) == 0));
    if (code != K2_OK) return false;
    K2_ASSERT(k2_quarantine_kind_name(q.kind) && strnlen(q.error, sizeof q.error) < sizeof q.error);
    K2_ASSERT(q.batch_first > q.batch_last || q.batch_last - q.batch_first < 1u << 20);
    return true;
}

const k2_parser k2_parsers[] = {
    {.name = "trainer.json", .take = state, .prefixes_refused = true},
    {.name = "quarantine.json", .take = note, .prefixes_refused = true},
};
const size_t k2_parsers_count = K2_COUNT(k2_parsers);
