/* mail - see mail_int.h. */
#include "master/mail_int.h"

#include <string.h>

static void drop_first(k2m_mail *mail)
{
    k2_msg_free(&mail->list[0]);
    mail->count--;
    memmove(mail->list, mail->list + 1, mail->count * sizeof *mail->list);
}

void k2m_mail_drop(k2m_mail *mail)
{
    while (mail->count > 0) drop_first(mail);
}

static void drop_others(k2m_mail *mail, uint64_t incarnation)
{
    if (mail->count > 0 && mail->list[0].incarnation != incarnation) k2m_mail_drop(mail);
}

void k2m_mail_put(k2m_mail *mail, const k2_msg *command)
{
    drop_others(mail, command->incarnation);
    K2_ASSERT(mail->count < K2M_MAIL_MAX);
    k2_msg_copy(&mail->list[mail->count++], command);
}

void k2m_mail_heard(k2m_mail *mail, uint64_t incarnation, uint64_t cmd)
{
    drop_others(mail, incarnation);
    while (mail->count > 0 && mail->list[0].cmd <= cmd) drop_first(mail);
}

const k2_msg *k2m_mail_next(const k2m_mail *mail)
{
    return mail->count > 0 ? &mail->list[0] : NULL;
}
