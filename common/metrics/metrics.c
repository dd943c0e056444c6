#include "common/metrics/metrics.h"
