/* asleep - wait until every other thread of this process sleeps.
 *
 * Threads that look for work in a loop signal nobody when they give up and sleep: what the kernel says of them is the only sign.
 */
#ifndef K2_TESTS_SUPPORT_ASLEEP_H
#define K2_TESTS_SUPPORT_ASLEEP_H

#include <stdbool.h>

/* False: a second has passed and one works on. */
bool others_asleep(void);

#endif
