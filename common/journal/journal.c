#include "common/journal/journal.h"
