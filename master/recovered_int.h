/* recovered - a master's core as the journal of a run leaves it, for those that only look: `k2rl why`, `k2rl replay-step`. */
#ifndef K2_MASTER_RECOVERED_INT_H
#define K2_MASTER_RECOVERED_INT_H

#include "common/journal/journal.h"
#include "master/core_int.h"

/* k2m_recovered - read the whole journal with the code of recovery.
 *
 * memory   *out is the caller's: k2m_core_free. No event may be given to it: it has no prompts, and records go nowhere
 * errors   those of the journal; CORRUPT where a record cannot be applied
 */
k2_code k2m_recovered(const k2_config *config, k2_journal *journal, k2m_core **out, k2_error *err);

#endif
