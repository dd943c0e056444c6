/* A command is sent until the worker is known to have it. */
#include "master/mail_int.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

static k2_msg command(k2_msg_type type, uint64_t incarnation, uint64_t cmd)
{
    return (k2_msg){.type = type, .worker = 3, .incarnation = incarnation, .cmd = cmd};
}

static void put(k2m_mail *mail, k2_msg_type type, uint64_t incarnation, uint64_t cmd)
{
    k2_msg m = command(type, incarnation, cmd);
    k2m_mail_put(mail, &m);
}

/* The reply to a POLL was lost: the next POLL still names the command before. */
static void a_command_that_was_lost_is_sent_again(void **state)
{
    (void)state;
    k2m_mail mail = {0};
    assert_null(k2m_mail_next(&mail));
    put(&mail, K2_MSG_COMMIT, 11, 5);
    for (int polls = 0; polls < 3; polls++) {
        k2m_mail_heard(&mail, 11, 4);
        assert_non_null(k2m_mail_next(&mail));
        assert_int_equal(k2m_mail_next(&mail)->cmd, 5);
    }
    k2m_mail_heard(&mail, 11, 5);
    assert_null(k2m_mail_next(&mail));
}

/* DONE may come before the POLL that would say so; STOP comes behind what the worker is at. */
static void the_next_one_comes_when_the_first_has_come(void **state)
{
    (void)state;
    k2m_mail mail = {0};
    put(&mail, K2_MSG_COMMIT, 11, 5);
    put(&mail, K2_MSG_STOP, 11, 6);
    k2m_mail_heard(&mail, 11, 5);
    assert_int_equal(k2m_mail_next(&mail)->type, K2_MSG_STOP);
    k2m_mail_heard(&mail, 11, 5); /* an old POLL that comes again */
    assert_int_equal(k2m_mail_next(&mail)->type, K2_MSG_STOP);
    k2m_mail_heard(&mail, 11, 7); /* all up to that one */
    assert_null(k2m_mail_next(&mail));
}

static void commands_to_another_incarnation_are_void(void **state)
{
    (void)state;
    k2m_mail mail = {0};
    put(&mail, K2_MSG_COMMIT, 11, 5);
    put(&mail, K2_MSG_COMMIT, 12, 6);
    assert_int_equal(mail.count, 1);
    assert_int_equal(k2m_mail_next(&mail)->incarnation, 12);
    k2m_mail_heard(&mail, 13, 0);
    assert_null(k2m_mail_next(&mail));
    put(&mail, K2_MSG_COMMIT, 13, 7);
    k2m_mail_drop(&mail);
    assert_null(k2m_mail_next(&mail));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_command_that_was_lost_is_sent_again),
        cmocka_unit_test(the_next_one_comes_when_the_first_has_come),
        cmocka_unit_test(commands_to_another_incarnation_are_void),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
