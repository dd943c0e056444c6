/* The loop. */
#include "common/loop/loop.h"

bool k2_loop_ending(const k2_loop *loop) { return loop == NULL; }
