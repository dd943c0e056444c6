#!/bin/sh
# layers_test.sh - the layer check finds each kind of fault, and nothing in a sound tree.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
dir=$(mktemp -d /tmp/k2_layers_XXXXXX)
trap 'rm -rf "$dir"' EXIT
cd "$dir"
mkdir -p tests/cmake common/base common/loop common/net common/http master trainer rollout proxy replay
cp "$here/../cmake/k2.cmake" tests/cmake/
echo '#include <stddef.h>' >common/base/base.h
echo '#include "common/base/base.h"' >common/loop/loop.h
printf '#include "common/loop/loop.h"\n#include <uv.h>\n' >common/loop/loop_int.h
echo '#include "loop_int.h"' >common/loop/loop.c
echo '#include "common/http/openai.h"' >common/http/http.h
echo '#include <stdint.h>' >common/http/openai.h
printf '#include "common/loop/loop.h"\n#include "common/http/openai.h"\n' >master/io.c
echo '#include "common/http/openai.h"' >proxy/proxy_core.c
touch k2rl.c trainer/trainer.h

sh "$here/layers.sh" . || { echo "a sound tree was refused"; exit 1; }

# expect FILE 'CONTENT' 'MESSAGE': with this file the check fails and says so.
expect() {
    cp "$1" keep 2>/dev/null || rm -f keep
    printf '%b\n' "$2" >"$1"
    if out=$(sh "$here/layers.sh" .); then
        echo "not noticed: $1: $2"
        exit 1
    fi
    case $out in
    *"$3"*) ;;
    *)
        printf 'expected: %s\nfound:\n%s\n' "$3" "$out"
        exit 1
        ;;
    esac
    if [ -f keep ]; then mv keep "$1"; else rm "$1"; fi
}

expect common/base/x.c '#include "common/loop/loop.h"' 'common/base/x.c:1: base may not include loop'
expect common/loop/x.c '\n # include "common/net/net.h"' 'common/loop/x.c:2: no such file: common/net/net.h'
expect master/x.c '#include "common/loop/loop_int.h"' 'master/x.c:1: common/loop/loop_int.h is internal to loop'
expect rollout/x.c '#include "trainer/trainer.h"' 'rollout may not include trainer'
expect common/loop/more.h '#include <stddef.h>' 'header is neither public nor ends in _int.h or _core.h'
expect common/loop/loop.h '#include <uv.h>' 'public header includes <uv.h>'
expect common/net/x.c '#include <uv.h>' 'net may not touch uv; allowed: loop'
expect master/x_core.c '#include "common/loop/loop.h"' 'a core is pure, it may not include loop'
expect master/x_core_int.h '#include <time.h>' 'a core is pure, it may not include <time.h>'
mkdir common/other
expect common/other/x.c '' 'folder is not in the table'
i=0
while [ $i -lt 151 ]; do echo "//"; i=$((i + 1)); done >k2rl.c
out=$(sh "$here/layers.sh" .) && exit 1
case $out in *'the door has 151 lines'*) ;; *) exit 1 ;; esac
echo "layers_test: ok"
