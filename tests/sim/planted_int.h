/* planted - which mistake of common/base/planted.h is made. */
#ifndef K2_TESTS_SIM_PLANTED_INT_H
#define K2_TESTS_SIM_PLANTED_INT_H

#include "common/base/base.h"
#include "common/base/planted.h"

k2_planted sim_planted_now(void);
const char *sim_planted_name(k2_planted p);
const char *sim_planted_text(k2_planted p);
bool sim_planted_find(const char *name, k2_planted *out); /* *out must be NONE */

#endif
