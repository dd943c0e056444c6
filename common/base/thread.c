/* thread: what each thread of ours begins with. */
#include "common/base/base.h"

#include <signal.h>

#define SIGNAL_STACK_BYTES (64u << 10) /* the crash handler formats, forks and, at worst, unwinds */

void k2_thread_begin(void)
{
    if (K2_SANITIZED) return; /* the sanitizers give each thread theirs, and take back at its end what they find */
    static _Thread_local unsigned char memory[SIGNAL_STACK_BYTES];
    static _Thread_local bool begun;
    if (begun) return;
    stack_t alt = {.ss_sp = memory, .ss_size = sizeof memory};
    begun = sigaltstack(&alt, NULL) == 0;
}
