/* calls - the calls of tools in what a model writes, found as it is written.
 *
 *   CALLS_BEGIN  (CALL_BEGIN  functions.NAME:INDEX  CALL_ARGUMENTS  arguments  CALL_END)*  CALLS_END
 *
 * The marks are tokens, never text that looks like them, so what a user has a model repeat calls nothing. A call is told as soon as its name
 * is whole, its arguments as they come, exactly as they were written: they are the model's, and need not be JSON. What turns out to be no call
 * stays text with the marks' names in it; so nothing that was written is lost but marks and the space between calls.
 */
#ifndef K2_ROLLOUT_CALLS_INT_H
#define K2_ROLLOUT_CALLS_INT_H

#include "common/http/openai.h"
#include "common/token/token.h"

#define K2I_CALL_ID_MAX 512u /* bytes of a call's id; a name has 64 */

typedef struct k2i_calls {
    enum { K2I_IN_TEXT, K2I_IN_SECTION, K2I_IN_ID, K2I_IN_ARGUMENTS } state;
    bool called;          /* the section has a call */
    uint32_t count;       /* calls so far */
    k2_buf held;          /* what was written since the text ended, or the last call: text, should it be no call */
    k2_buf id;            /* of the call that begins */
    k2_buf content;       /* news: text, */
    k2_openai_calls news; /* and calls */
} k2i_calls;

void k2i_calls_init(k2i_calls *c);
void k2i_calls_fini(k2i_calls *c);
/* What comes next: text, or a mark with its name. */
void k2i_calls_text(k2i_calls *c, const char *text, size_t n);
void k2i_calls_mark(k2i_calls *c, k2_token_mark mark, const char *name);
/* Nothing comes next. */
void k2i_calls_end(k2i_calls *c);
/* The news have been told; what comes next adds to none. */
void k2i_calls_told(k2i_calls *c);

#endif
