/* mail - commands to one worker, each until the worker is known to have it. Pure: executable and simulator keep theirs in it.
 *
 * A reply to a POLL may be lost: a POLL that comes again late, when the server has forgotten that it was answered, takes a
 * command that nobody waits for. So a command that was sent stays the first, and every POLL is answered with it, until a POLL
 * names it or a later one as the last that came, or its DONE comes. The worker passes over one that comes twice.
 */
#ifndef K2_MASTER_MAIL_INT_H
#define K2_MASTER_MAIL_INT_H

#include "common/wire/wire.h"

#define K2M_MAIL_MAX 4u /* the core has one under way, and STOP */

/* Zero-initialise. */
typedef struct k2m_mail {
    k2_msg list[K2M_MAIL_MAX]; /* owned, of one incarnation */
    uint32_t count;
} k2m_mail;

/* memory   the command is copied
 * keeps    commands of another incarnation are void, and dropped
 */
void k2m_mail_put(k2m_mail *mail, const k2_msg *command);
/* This incarnation has all commands up to `cmd`; those of another are dropped. */
void k2m_mail_heard(k2m_mail *mail, uint64_t incarnation, uint64_t cmd);
/* What the next POLL is to be answered with; NULL: nothing. */
const k2_msg *k2m_mail_next(const k2m_mail *mail);
void k2m_mail_drop(k2m_mail *mail);

#endif
