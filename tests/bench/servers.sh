#!/bin/sh
# What the comparison needs beside Python's packages: two servers and the tools that make file systems, from Debian's
# packages, which are kept from starting any by themselves; ours listen on sockets of their own.
# Whatever is not there is left out of the comparison, which says so.
missing=
command -v redis-server >/dev/null || missing="$missing redis-server"
command -v beanstalkd >/dev/null || missing="$missing beanstalkd"
command -v mkfs.ext4 >/dev/null || missing="$missing e2fsprogs"
command -v mkfs.xfs >/dev/null || missing="$missing xfsprogs"
[ -n "$missing" ] || exit 0
if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
    echo "left out, not installed:$missing (as root, where apt-get is: installed)" >&2
    exit 0
fi
echo "installing$missing ..." >&2
# A policy that says no: the packages then start nothing. One that is there already is left as it is.
policy=/usr/sbin/policy-rc.d
if [ ! -e $policy ]; then
    printf '#!/bin/sh\nexit 101\n' >$policy && chmod +x $policy
    trap 'rm -f $policy' EXIT
fi
{ apt-get update -qq && apt-get install -y -qq --no-install-recommends $missing; } >/dev/null 2>&1 ||
    echo "(not installed:$missing)" >&2
