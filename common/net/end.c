/* The end of a process that has spoken over nng. */
#include "common/flight/flight.h"
#include "common/net/net_int.h"

#include <stdio.h>
#include <unistd.h>

/* What would run at an ordinary exit and must not be lost: the sanitizer's search for leaks, the coverage counts. */
extern void __lsan_do_leak_check(void) __attribute__((weak));
extern void __gcov_dump(void) __attribute__((weak));

static bool one_process; /* all the time there is one thread that opens and closes: the loop's */
static k2i_bridge *left; /* so that a search for leaks finds what nng's threads still use */

void k2_net_process_begin(void)
{
    one_process = true;
}

bool k2i_net_leave_open(k2i_bridge *b)
{
    if (!one_process) return false;
    b->left = left;
    left = b;
    return true;
}

_Noreturn void k2_net_process_end(int status)
{
    fflush(NULL);
    k2_flight_close();
    if (__lsan_do_leak_check) __lsan_do_leak_check();
    if (__gcov_dump) __gcov_dump();
    _exit(status);
}
