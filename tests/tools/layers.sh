#!/bin/sh
# layers.sh [ROOT] - hold every #include of the product against the level table in tests/cmake/k2.cmake.
#
# Rules, each with the line that broke it as output:
#   - a folder includes itself and what its K2_MAY_<folder> names; roles never one another
#   - from another folder only public headers: <folder>/<name>.h, and those that K2_PUBLIC_<folder> adds
#   - all other headers end in _int.h or _core.h
#   - a public header includes nothing but ours and the C library's own headers
#   - a third-party library is included only by its folders (K2_THIRD)
#   - a core (<name>_core.c, <name>_core_int.h) is pure: no loop, network, files, threads, clock
#   - the door, k2rl.c, has at most 150 lines
# Needs only a POSIX shell and awk, as a bare Debian has them.
set -eu
root=${1:-$(dirname "$0")/../..}
cd "$root"

find common master trainer rollout proxy replay -name '*.[ch]' | LC_ALL=C sort | awk '
function fail(file, line, text) {
    printf "%s:%d: %s\n", file, line, text
    bad++
}

# ---- the table ----------------------------------------------------------------------------------------------------

# Words of a set(): ${NAME} stands for the words of an earlier one.
function expand(text,    out, name) {
    while (match(text, /\$\{[A-Za-z0-9_]+\}/)) {
        name = substr(text, RSTART + 2, RLENGTH - 3)
        text = substr(text, 1, RSTART - 1) value[name] substr(text, RSTART + RLENGTH)
    }
    gsub(/"/, "", text)
    return text
}

function read_table(path,    line, name, words, n, roles, i, inside) {
    while ((getline line < path) > 0) {
        if (line ~ /^foreach\(role /) {
            sub(/^foreach\(role */, "", line)
            sub(/\).*/, "", line)
            n = split(line, roles, " ")
            inside = 1
        } else if (line ~ /^endforeach\(\)/) {
            inside = 0
        } else if (line ~ /^ *set\(K2_[A-Za-z0-9_{}$]+ /) {
            sub(/^ *set\(/, "", line)
            sub(/\).*/, "", line)
            name = line
            sub(/ .*/, "", name)
            words = line
            sub(/^[^ ]+ */, "", words)
            words = expand(words)
            if (inside)
                for (i = 1; i <= n; i++) value["K2_MAY_" roles[i]] = words
            else
                value[name] = words
        }
    }
    close(path)
}

function has(list, word) {
    return index(" " list " ", " " word " ") > 0
}

# ---- one file ------------------------------------------------------------------------------------------------------

function folder_of(path,    part) {
    split(path, part, "/")
    return part[1] == "common" ? part[2] : part[1]
}

function base_of(path) {
    sub(/.*\//, "", path)
    return path
}

function stem_of(path) {
    path = base_of(path)
    sub(/\.[ch]$/, "", path)
    return path
}

function is_public(path,    folder) {
    folder = folder_of(path)
    return path ~ /\.h$/ && (stem_of(path) == folder || has(value["K2_PUBLIC_" folder], stem_of(path)))
}

function check_name(file) {
    if (file ~ /\.h$/ && !is_public(file) && file !~ /_(int|core)\.h$/)
        fail(file, 1, "header is neither public nor ends in _int.h or _core.h")
}

function check_ours(file, line, path,    own, other) {
    if (path !~ /\//) path = substr(file, 1, length(file) - length(base_of(file))) path
    own = folder_of(file)
    other = folder_of(path)
    if (system("test -f " path) != 0) {
        fail(file, line, "no such file: " path)
        return
    }
    if (own != other && !has(value["K2_MAY_" own], other)) {
        fail(file, line, own " may not include " other "; allowed: " value["K2_MAY_" own])
        return
    }
    if (own != other && !is_public(path)) fail(file, line, path " is internal to " other)
    if (file ~ /_core(_int)?\.[ch]$/ && has("loop net http xfer launch coll journal flight stack", other) && !has(value["K2_PURE"], stem_of(path)))
        fail(file, line, "a core is pure, it may not include " other)
}

function check_system(file, line, name,    top, own) {
    own = folder_of(file)
    if (is_public(file) && !has(c_headers, name)) fail(file, line, "public header includes <" name ">")
    top = name
    sub(/\/.*/, "", top)
    sub(/\.h$/, "", top)
    if (("K2_THIRD_" top) in value && !has(value["K2_THIRD_" top], own))
        fail(file, line, own " may not touch " top "; allowed: " value["K2_THIRD_" top])
    if (file ~ /_core(_int)?\.[ch]$/ && !has(c_headers, name)) fail(file, line, "a core is pure, it may not include <" name ">")
}

function check_file(file,    text, line, path) {
    check_name(file)
    if (!(("K2_MAY_" folder_of(file)) in value)) fail(file, 1, "folder is not in the table of tests/cmake/k2.cmake")
    while ((getline text < file) > 0) {
        line++
        if (text !~ /^[ \t]*#[ \t]*include/) continue
        sub(/^[ \t]*#[ \t]*include[ \t]*/, "", text)
        path = text
        if (text ~ /^"/) {
            sub(/^"/, "", path)
            sub(/".*/, "", path)
            check_ours(file, line, path)
        } else {
            sub(/^</, "", path)
            sub(/>.*/, "", path)
            check_system(file, line, path)
        }
        includes++
    }
    close(file)
}

BEGIN {
    c_headers = "assert.h ctype.h errno.h float.h inttypes.h limits.h math.h stdalign.h stdarg.h stdatomic.h stdbool.h " \
        "stddef.h stdint.h stdio.h stdlib.h string.h sys/types.h"
    read_table("tests/cmake/k2.cmake")
    if (value["K2_MAY_master"] == "") fail("tests/cmake/k2.cmake", 1, "the table could not be read")
}
{
    files++
    check_file($0)
}
END {
    while ((getline text < "k2rl.c") > 0) door++
    if (door > 150) fail("k2rl.c", door, "the door has " door " lines, at most 150")
    if (files == 0) fail(".", 0, "no source files found")
    printf "layers: %d files, %d includes, %d faults\n", files, includes, bad
    exit bad > 0
}
'
